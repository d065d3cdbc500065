# SPDX-License-Identifier: Apache-2.0
"""The interface to Mininet, which has no type annotations: namespaces, veth links and bridges of a topology.

Mininet makes the namespaces, cables and bridges. `MininetFabric` brings interfaces up and sets addresses, MTU, shaping
and offloads in batches, because Mininet runs one shell command per setting, and logs failures instead of raising an
exception.
"""

import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from emul.layout import Layout
from emul.ovs import OPENFLOW_VERSIONS, Datapath


@contextmanager
def _distutils() -> Iterator[None]:
    """Within the block, `distutils.version.StrictVersion` can be imported.

    Mininet 2.3.0 imports it (mininet/node.py) and compares a version of OVS with 1.10. Python 3.12 removed distutils
    (PEP 632). setuptools has a copy, but importing that takes 0.15 s of every run.
    """
    package, version = ModuleType("distutils"), ModuleType("distutils.version")
    vars(version)["StrictVersion"] = lambda text: tuple(map(int, text.split(".")))
    added = {name: module for module in (package, version) if (name := module.__name__) not in sys.modules}
    sys.modules |= added
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


with _distutils():
    from mininet.link import Intf
    from mininet.link import Link as VethLink
    from mininet.net import Mininet
    from mininet.node import OVSSwitch

# Importing Mininet sets the class of all loggers created later to its own, whose level drops messages of level INFO.
logging.setLoggerClass(logging.Logger)

OPENFLOW_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _OpenFlowAddress:
    """What `OVSSwitch.start` reads of Mininet's `Controller`, which itself would start a process."""

    name: str
    protocol: str
    port: int

    def IP(self) -> str:
        """The address. The name is Mininet's."""
        return OPENFLOW_ADDRESS


class _Interface(Intf):
    """Mininet's interface, except that it is left as it is; Mininet would run ifconfig in the node's shell for each."""

    def config(self, **_params: object) -> dict[str, object]:
        """Configure nothing. The name is Mininet's."""
        return {}


class _Bridge(OVSSwitch):
    """Mininet's switch, except that a failed `ovs-vsctl` raises; Mininet would continue with an incomplete bridge."""

    def vsctl(self, *args: object, **_kwargs: object) -> str:
        """Run `ovs-vsctl` with arguments that Mininet quoted for a shell."""
        run: Callable[..., str] = self.params["run"]
        return run("ovs-vsctl", *shlex.split(" ".join(str(arg) for arg in args)))


class Network:
    """The Mininet nodes and links of a topology. `start_switches` makes the bridges.

    run: runs a command of the private OVS and raises when it fails (`PrivateOvs.command`).
    """

    def __init__(self, layout: Layout, datapath: Datapath, openflow_port: int, run: Callable[..., str]) -> None:
        # Mininet.init raises system-wide limits (net.core, kernel.pty), which a run must not change and does not need.
        Mininet.inited = True
        # Mininet's set-up check runs `ovs-vsctl -t 1` and exits the interpreter when a busy machine takes longer.
        OVSSwitch.isSetup = True
        OVSSwitch.OVSVersion = "2.5"  # Mininet only compares it with 1.10
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
                protocols=OPENFLOW_VERSIONS,
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
                intf=_Interface,
            )

    def pid(self, node: str) -> int:
        """The id of a process in the node's namespaces."""
        return int(self._net.get(node).pid)

    def start_switches(self) -> None:
        """Make the bridges and connect them to the OpenFlow app, except those of optical switches."""
        app = _OpenFlowAddress("openflow", "tcp", self._openflow_port)
        for switch in self._net.switches:
            switch.start([] if switch.name in self._optical else [app])

    def stop(self) -> None:
        """End the nodes' shells. Bridges and veths disappear with the sandbox."""
        for node in (*self._net.hosts, *self._net.switches):
            node.terminate()
