# SPDX-License-Identifier: Apache-2.0
"""The boundary to Mininet, which has no types: nodes and veth links of a topology, and its bridges.

Mininet makes the namespaces, cables and bridges; addresses, MTU, shaping and offloads are set by `MininetFabric` with
batches, for Mininet would run a shell command for each and log, not raise, when one fails.
"""

import importlib
import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Mininet 2.3.0 imports distutils (mininet/node.py), which Python 3.12 removed (PEP 632). Importing setuptools registers
# the copy of distutils that setuptools contains.
try:
    importlib.import_module("distutils")
except ModuleNotFoundError:
    importlib.import_module("setuptools")

from mininet.link import Link as VethLink
from mininet.net import Mininet
from mininet.node import OVSSwitch

from emul.layout import Layout
from emul.ovs import Datapath

# Importing Mininet makes its own class that of all later loggers, and with it a level that drops what they inform of.
logging.setLoggerClass(logging.Logger)

OPENFLOW_ADDRESS = "127.0.0.1"
OPENFLOW = "OpenFlow15"


@dataclass(frozen=True, slots=True)
class _OpenFlowAddress:
    """All that `OVSSwitch.start` asks of a controller. Mininet's own classes start a shell, or a controller, too."""

    name: str
    protocol: str
    port: int

    def IP(self) -> str:
        """The address; Mininet's name for it."""
        return OPENFLOW_ADDRESS


class _Bridge(OVSSwitch):
    """Mininet's switch, except that a refused `ovs-vsctl` raises; Mininet would go on with half a bridge."""

    def vsctl(self, *args: object, **_kwargs: object) -> str:
        """Run `ovs-vsctl` with the words Mininet quoted for a shell."""
        run: Callable[..., str] = self.params["run"]
        return run("ovs-vsctl", *shlex.split(" ".join(str(arg) for arg in args)))


class Network:
    """Mininet nodes and links of a topology; `start_switches` makes the bridges.

    run: runs an OVS command of the private OVS, and raises when it fails (`PrivateOvs.command`).
    """

    def __init__(self, layout: Layout, datapath: Datapath, openflow_port: int, run: Callable[..., str]) -> None:
        # Mininet.init raises system-wide limits (net.core, kernel.pty, ..): not ours to change, and not needed.
        Mininet.inited = True
        # Its set-up check runs `ovs-vsctl -t 1` and leaves the interpreter when a busy machine takes longer.
        OVSSwitch.isSetup = True
        OVSSwitch.OVSVersion = "2.5"  # only ever compared with 1.10
        self._net: Any = Mininet(topo=None, build=False, link=VethLink, controller=None)
        self._openflow_port = openflow_port
        topology = layout.topology
        self._optical = {switch.name for switch in topology.switches if switch.role == "ocs"}
        for host in topology.hosts:
            self._net.addHost(host.name, ip=None, inNamespace=not layout.shared)
        for switch in topology.switches:
            self._net.addSwitch(
                switch.name,
                cls=_Bridge,
                dpid=f"{switch.dpid:016x}",
                datapath=datapath,
                protocols=OPENFLOW,
                failMode="secure",
                run=run,
            )
        for link in topology.links:
            self._net.addLink(
                self._net.get(link.a.node),
                self._net.get(link.b.node),
                port1=link.a.port,
                port2=link.b.port,
                intfName1=layout.interface(link.a),
                intfName2=layout.interface(link.b),
            )

    def pid(self, node: str) -> int:
        """A process that lives in the node's namespaces."""
        return int(self._net.get(node).pid)

    def start_switches(self) -> None:
        """Make the bridges and point them at the OpenFlow app, which has no part in optical switches."""
        app = _OpenFlowAddress("openflow", "tcp", self._openflow_port)
        for switch in self._net.switches:
            switch.start([] if switch.name in self._optical else [app])

    def stop(self) -> None:
        """End the nodes' shells. Bridges and veths are left to the sandbox, whose end removes them all at once."""
        for node in (*self._net.hosts, *self._net.switches):
            node.terminate()
