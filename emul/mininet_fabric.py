# SPDX-License-Identifier: Apache-2.0
"""A topology as a running Mininet network with a private Open vSwitch, shaped veth links and an OpenFlow app.

It runs only inside the sandbox (`emul.sandbox`): everything it makes lives in the namespaces of the run, and the kernel
removes it with them.
"""

import logging
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, get_args

from emul import commands, hosts, packet_sockets, rxe, sandbox
from emul.capture import Capture
from emul.commands import FabricError
from emul.detours import DetouringHosts
from emul.flow_dump import ObservedFlow
from emul.layout import INTERFACE_GROUP, Layout, switch_end
from emul.link_counters import LinkCounters, PortCounters
from emul.link_faults import FaultCounts, LinkFault
from emul.link_states import LinkState, link_states, live_interfaces
from emul.mininet_net import Network
from emul.netlink import InterfaceCounters
from emul.observation import SwitchObserver
from emul.ocs import RECONFIGURATION_S, OpticalSwitches
from emul.openflow_app import OpenFlowAppError, OpenFlowAppProcess, our_app, own_app
from emul.ovs import OPENFLOW, Datapath, PrivateOvs, load_kernel_datapath
from emul.port_settings import PortSettings
from emul.relays import Relays
from netmodel import Circuits, Flow, Link, PortRef, Topology, check_circuits, dump_topology, with_circuits
from netmodel.printable import printable
from sdn.failover.detours import Detours
from sdn.openflow.source_rules import Pinning
from sdn.openflow.steering import Steer, Steering
from sdn.topoopt.relays import RelayPlan

OPENFLOW_PORT = 6653
"""TCP port of the OpenFlow app: the port that IANA assigned. It is free, because the network namespace is our own."""

Nics = Literal["plain", "rxe"]
"""NICs of hosts: Ethernet interfaces only, or with a device of the kernel's SoftRoCE on each."""

# Generous, because an emulated machine (QEMU without KVM) may take a minute to import a library.
_READY_TIMEOUT_S = 300.0
_LINK_TIMEOUT_S = 30.0
# An Ethernet frame of the local experimental EtherType 0x88b5 (IEEE 802). No host processes it.
_PRIMING_FRAME = "ff" * 6 + "02" + "00" * 5 + "88b5" + "00" * 46

_log = logging.getLogger("emul")


class MininetFabric:
    """A fabric as a context manager: `with` brings it up (switches programmed, links shaped) and takes it down.

    log_dir: directory for topology.yaml, the logs of OVS and the OpenFlow app, and pcap/.
    datapath: "user" runs anywhere, "kernel" needs the openvswitch kernel module.
    nics: with "rxe" every host's NIC is an RDMA device too (`rxe.device_name`). Where the kernel supports rxe in its
        first network namespace only, all hosts share that namespace.
    pcap: ports, of switches or hosts, whose packets are captured.
    pinning: how source ports choose paths.
    app: a file with an os-ken app that programs the switches in place of ours (`sdn.openflow.own_app`). It takes no
        steering and no circuits, and its choices of ports are not compared with the predicted ones.
    management: hosts reach the sandbox at `MANAGEMENT_ADDRESS` by separate links (`emul.management`).
    faults: by port of a switch or host, what happens to packets that leave by it, from when the fabric is up.
    on_dead: called with all dead links whenever they change, before switches route around them, in a thread of its own.

    Raises ValueError for an unknown datapath, and for an app with optical switches, KeyError for a port in `pcap`
    or `faults` without a link, SandboxError outside the sandbox, LayoutError for a topology that it cannot carry,
    HashMismatchError when OVS does not choose ports as predicted, and OvsError, RxeError, OpenFlowAppError,
    CaptureError or FabricError when a part does not come up.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        log_dir: Path,
        datapath: Datapath = "user",
        nics: Nics = "plain",
        pcap: Iterable[PortRef] = (),
        pinning: Pinning = "hash",
        app: Path | None = None,
        management: bool = False,
        faults: Mapping[PortRef, LinkFault] = MappingProxyType({}),
        on_dead: Callable[[Sequence[Link]], None] = lambda _: None,
    ) -> None:
        self.topology = topology
        self._layout = Layout(topology)
        self._log_dir = Path(log_dir)
        self._datapath: Datapath = datapath
        self._nics: Nics = nics
        self._pcap = tuple(pcap)
        self._pinning: Pinning = pinning
        self._app = app
        self._management = management
        self._faulty = dict(faults)
        self._on_dead = on_dead
        self._interfaces = self._layout.switch_interfaces()
        self._dead: set[Link] = set()
        self._receivers: dict[PortRef, socket.socket] = {}
        self._steering: Steering | None = None
        self._changing = threading.Lock()
        self._stack = ExitStack()
        # Made when the fabric comes up, in this order.
        self._ovs: PrivateOvs
        self._network: Network
        self._hosts: hosts.Hosts
        self._openflow_app: OpenFlowAppProcess | None = None  # stays None where all switches are optical
        self._optical: OpticalSwitches
        self._observer: SwitchObserver
        self._relays: Relays
        self._detours: DetouringHosts
        self._counters: PortCounters
        self._settings: PortSettings
        if datapath not in get_args(Datapath):
            raise ValueError(f"datapath {datapath!r} is none of {', '.join(get_args(Datapath))}")
        if app is not None and any(switch.role == "ocs" for switch in topology.switches):
            raise ValueError(f"{app} cannot program topology {topology.name!r}, which has optical switches")
        for port in self._pcap:
            topology.link_at(port)  # raises KeyError before anything is started
        for port in self._faulty:
            topology.link_at(port)

    def __enter__(self) -> Self:
        sandbox.require("a Mininet fabric")
        if self._datapath == "kernel":
            load_kernel_datapath()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def ovs(self) -> PrivateOvs:
        """The private OVS that carries the fabric."""
        return self._ovs

    # Nodes

    def enter(self, node: str) -> list[str]:
        """The argv prefix that runs a command in the namespaces of a host or switch: all switches share the sandbox's.

        OVS's tools, such as `ovs-ofctl`, then reach the private OVS. Raises KeyError for an unknown name.
        """
        if self.topology.has_host(node):
            return self._hosts.enter(node)
        self.topology.switch(node)
        return []

    def node_pid(self, node: str) -> int:
        """The id of a process in the namespaces of a host or switch. Raises KeyError for an unknown name."""
        if self.topology.has_host(node):
            return self.host_pid(node)
        self.topology.switch(node)
        return self._ovs.vswitchd_pid

    def interface(self, port: PortRef) -> str:
        """The name of a linked port's interface, in the namespaces of its node. Raises KeyError."""
        self.topology.link_at(port)
        return self._layout.interface(port)

    def name_hosts(self) -> None:
        """Let programs on hosts find hosts by name. Raises FabricError."""
        self._hosts.add_names(self._log_dir / "hosts")

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command in a host's network and mount namespaces. Keywords go to subprocess.Popen.

        A command that still runs when the fabric goes down is killed. Raises KeyError for an unknown host.
        """
        self.topology.host(host_name)
        return self._hosts.popen(host_name, argv, **popen_kwargs)

    def host_pid(self, host_name: str) -> int:
        """The id of a process in a host's namespaces, for `nsenter --net --target PID`. Raises KeyError."""
        self.topology.host(host_name)
        return self._network.pid(host_name)

    # Observation

    def link_states(self) -> list[LinkState]:
        """How every link is now. Raises FabricError."""
        live = live_interfaces(commands.run(["ip", "-j", "link", "show"]))
        return link_states(self._layout, self._settings, lambda _: live)

    def rules(self, switch_name: str) -> str:
        """The groups and flows of a switch, as `ovs-ofctl` prints them. Raises KeyError, and OvsError."""
        self.topology.switch(switch_name)
        shown = (
            self._ovs.command("ovs-ofctl", "-O", OPENFLOW, f"dump-{what}", switch_name) for what in ("groups", "flows")
        )
        return "".join(shown)

    def link_counters(self) -> dict[PortRef, LinkCounters]:
        """Counters of every linked switch port since the fabric came up. Takes about 1 ms for 50 ports."""
        return self._counters.read()

    def overruns(self) -> Mapping[PortRef, int]:
        """Packets lost at each switch port because OVS did not fetch them in time (userspace datapath only).

        A value above zero means that the machine was too slow for the rates; the run measured the machine, not the
        fabric.
        """
        return {port: packet_sockets.receive_drops(receiver) for port, receiver in self._receivers.items()}

    def fault_counts(self) -> Mapping[PortRef, FaultCounts]:
        """By port that has or had faults, or a delay of its link: the packets concerned. Raises FabricError."""
        return self._settings.fault_counts()

    def observed_ports(self, switch_name: str) -> dict[Flow, int]:
        """Egress port of every flow of UDP and TCP for which the switch had a choice, from OVS's datapath flow table.

        A flow is listed from its first packet on. Where a switch has only one port for a destination, OVS does not look
        at UDP ports and the flow is not listed. Raises KeyError for an unknown switch, and OvsError.
        """
        return self._observer.observed_ports(switch_name)

    def crossing(self, link: Link, within_s: float) -> list[ObservedFlow]:
        """The flows that a switch with a choice sent over a link, in either direction, in the last `within_s` s.

        Raises OvsError.
        """
        return self._observer.crossing(link, within_s)

    def traced_port(self, switch_name: str, flow: Flow) -> int | None:
        """The port by which a switch would send a flow's next packet; None if it would drop it. Sends no packet.

        Raises KeyError for an unknown switch, and OvsError.
        """
        return self._observer.traced_port(switch_name, flow)

    def strays(self) -> dict[PortRef, int]:
        """By ingress port: packets dropped since `steer` because the steering does not allow their destination there.

        Raises OvsError.
        """
        return self._observer.strays()

    def relay_counters(self) -> dict[PortRef, InterfaceCounters]:
        """By NIC: packets and bytes that its relay interface received and sent. Raises FabricError."""
        return self._relays.counters()

    def check_relays(self, plan: RelayPlan) -> None:
        """Check that all hosts that `plan` uses as relays do forward. Raises RelayError and FabricError."""
        self._relays.check(plan)

    # Control

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or restore a link. Returns when all switches route accordingly.

        Raises ValueError for a link that the topology does not have, FabricError, and OpenFlowAppError when the routes
        do not follow.
        """
        if link not in self.topology.links:
            raise ValueError(f"topology {self.topology.name!r} has no link {link.a} to {link.b}")
        with self._changing:
            if (link not in self._dead) == up:
                return
            interface = self._interfaces[switch_end(self._layout, link)]
            commands.run(["ip", "link", "set", "dev", interface, "up" if up else "down"])
            (self._dead.discard if up else self._dead.add)(link)
            # The OpenFlow app does not hear of links between optical switches and hosts: no routes depend on them.
            if self._openflow_app is not None and self._is_routed(link):
                dead = sorted([str(other.a), str(other.b)] for other in self._dead if self._is_routed(other))
                self._openflow_app.wait_for("links", _LINK_TIMEOUT_S, dead=dead)

    def set_rate(self, link: Link, part: float) -> None:
        """Leave a link this part of its rate, in both directions, unnoticed by switches. Raises FabricError.

        Raises ValueError for a link that the topology does not have, and for a part outside (0, 1].
        """
        self._settings.set_rate(link, part)

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port of a switch or host exactly these faults, beside its link's delay.

        Raises KeyError for what is not a linked port, and FabricError.
        """
        self._settings.set_faults(port, fault)

    def _namespace_pid(self, port: PortRef) -> int | None:
        """A process in the host's network namespace in which a port is; None for the namespace of the switches."""
        return None if self._layout.shared or self._layout.is_switch(port) else self._network.pid(port.node)

    @property
    def circuits(self) -> Circuits:
        """The circuits that the optical switches are set to; none at the start."""
        return self._optical.circuits

    def set_circuits(self, circuits: Circuits, reconfiguration_s: float = RECONFIGURATION_S) -> None:
        """Set the named optical switches to exactly these circuits. Returns when light passes.

        The ports of circuits that change are dark for `reconfiguration_s` seconds; other circuits stay up. After that
        the switches that forward by address are reprogrammed and have confirmed.

        Raises TopologyError, before anything changes, for ports that are used twice or have no link; ValueError where
        the steering does not fit the new circuits; OvsError, OpenFlowAppError and HashMismatchError.
        """
        if self._openflow_app is None:
            self._optical.set(circuits, reconfiguration_s)
            return
        check_circuits(self.topology, circuits)
        self._check_steering(self._steering, {**self.circuits, **circuits})
        with self._changing:
            self._optical.set(circuits, reconfiguration_s)
            self._program(self._openflow_app)
        # Without circuits a switch may have had no choice of ports, so the check at start-up has not covered it.
        self._observer.check_hash(self.circuits, self._pinning)

    def set_relays(self, plan: RelayPlan) -> None:
        """Make hosts send to and forward for others as `plan` says for the current circuits. Raises FabricError."""
        self._relays.set(self.circuits, plan)

    def allow_detours(self) -> None:
        """Prepare hosts and switches for `set_detours`. Raises FabricError and OvsError."""
        self._detours.allow()

    def set_detours(self, plan: Detours) -> None:
        """Make hosts whose rail is dead send over others as planned, and no longer as before. Raises FabricError."""
        self._detours.set(plan)

    def _add_flows(self, switch: str, flows: Sequence[str]) -> None:
        file = self._log_dir / f"mac-flows-{switch}.txt"
        file.write_text("\n".join(flows))
        self._ovs.command("ovs-ofctl", "-O", OPENFLOW, "add-flows", switch, str(file))

    def steer(self, steering: Steering | None) -> None:
        """Give `steering` precedence over the routes, or remove it with None. Returns when all switches have confirmed.

        `observed_ports` and `strays` start anew. Raises ValueError where the steering does not fit the topology, and
        OpenFlowAppError when there is nothing to steer or switches do not follow.
        """
        if self._openflow_app is None:
            raise OpenFlowAppError(f"topology {self.topology.name!r} has optical switches only, and nothing to steer")
        if self._app is not None:
            raise OpenFlowAppError(f"the switches are programmed by {self._app}, which takes no steering")
        self._check_steering(steering, self.circuits)
        with self._changing:
            self._steering = steering
            self._program(self._openflow_app)

    def check_switches(self) -> None:
        """Raises OpenFlowAppError if what programs the switches has failed, or ended, since the fabric came up."""
        if self._openflow_app is not None:
            self._openflow_app.check()

    def _check_steering(self, steering: Steering | None, circuits: Circuits) -> None:
        if steering is not None:
            steering.routes(with_circuits(self.topology, circuits))

    def _program(self, app: OpenFlowAppProcess) -> None:
        """Program the switches for the current steering and circuits."""
        # The first purge keeps packets of old flows out of the new rules' counters; after the second no flow uses an
        # old rule.
        self._ovs.appctl("revalidator/purge")
        app.steer(Steer(steer=self._steering, circuits=self.circuits), _LINK_TIMEOUT_S)
        self._ovs.appctl("revalidator/purge")

    def _is_routed(self, link: Link) -> bool:
        """Whether a switch that forwards by address is at an end of `link`."""
        ends = (end for end in (link.a, link.b) if self._layout.is_switch(end))
        return any(self.topology.switch(end.node).role != "ocs" for end in ends)

    def _report_dead(self, event: Mapping[str, Any]) -> None:
        """Pass the OpenFlow app's event of dead links on to `on_dead`."""
        if event.get("event") == "dead":
            ends = {tuple(pair) for pair in event["dead"]}
            self._on_dead([link for link in self.topology.links if (str(link.a), str(link.b)) in ends])

    # Bring-up. The exit stack takes the parts down in reverse order.

    def _start(self) -> None:
        stack, topology = self._stack, self.topology
        self._log_dir.mkdir(parents=True, exist_ok=True)
        hosts.disable_ipv6()
        if self._nics == "rxe":
            rxe.load()
            self._layout = Layout(topology, shared=not rxe.per_namespace())
        self._ovs = stack.enter_context(PrivateOvs(sandbox.SCRATCH_DIR / "ovs", self._log_dir))
        self._network = Network(self._layout, self._datapath, OPENFLOW_PORT, self._ovs.command)
        self._hosts = hosts.Hosts(self._layout, self._network)
        stack.callback(self._remove_links)
        stack.callback(self._network.stop)
        if self._nics == "rxe":
            stack.callback(self._hosts.remove_rdma_devices)
        stack.callback(self._hosts.kill_processes)
        self._start_openflow_app()
        self._hosts.configure(self._layout.host_lines)
        if self._layout.shared:
            self._hosts.share_namespace()
            stack.callback(self._hosts.unshare_namespace)
        if self._management:
            self._hosts.add_management()
        self._start_switches()
        if self._nics == "rxe":
            self._hosts.add_rdma_devices()
        self._optical = OpticalSwitches(topology, self._ovs.command, self._log_dir)
        self._observer = SwitchObserver(topology, self._interfaces, self._ovs, self._datapath)
        if self._app is None:
            self._observer.check_hash(self.circuits, self._pinning)
        self._relays = Relays(topology, self._hosts.run)
        self._detours = DetouringHosts(topology, self._hosts.run, self._add_flows)
        if self._datapath == "user":
            self._enlarge_socket_buffers()
        for port in self._pcap:
            self._capture(port)
        self._counters = PortCounters(self._interfaces)
        self._settings = PortSettings(self._layout, self._namespace_pid, sandbox.SCRATCH_DIR / "bpf")
        stack.callback(self._settings.remove_faults)
        self._settings.delay_links()
        for port, fault in self._faulty.items():
            self.set_faults(port, fault)
        _log.info(
            "fabric %s is up: %d hosts, %d switches",
            printable(topology.name),
            len(topology.hosts),
            len(topology.switches),
        )

    def _start_openflow_app(self) -> None:
        """Start the OpenFlow app. It loads while the hosts are configured; `_start_switches` waits for it."""
        topology_file = self._log_dir / "topology.yaml"
        topology_file.write_text(dump_topology(self.topology))
        if any(switch.role != "ocs" for switch in self.topology.switches):
            app = our_app(self._pinning) if self._app is None else own_app(self._app)
            log_file = self._log_dir / "openflow-app.log"
            self._openflow_app = OpenFlowAppProcess(app, topology_file, OPENFLOW_PORT, log_file, self._report_dead)
            self._stack.callback(self._openflow_app.stop)

    def _start_switches(self) -> None:
        """Configure the switches' interfaces, make the bridges, and wait until the OpenFlow app has programmed them."""
        commands.batch("ip", self._layout.switch_link_lines())
        for name in self._interfaces.values():
            hosts.disable_offloads(name)
        if self._openflow_app is not None:
            # A bridge that finds no listener tries again only a second later.
            self._openflow_app.wait_for("listening", _READY_TIMEOUT_S)
        self._network.start_switches()
        # After the bridges are made, because OVS removes foreign qdiscs from a port that it takes over.
        commands.batch("tc", self._layout.switch_shape_lines())
        if self._openflow_app is not None and (dead := self._openflow_app.wait_for("ready", _READY_TIMEOUT_S)["dead"]):
            raise FabricError(f"links {dead} do not come up; see {self._log_dir}")

    def _enlarge_socket_buffers(self) -> None:
        """Enlarge the packet sockets of ovs-vswitchd, and keep its receiving ones to read their drop counters."""
        # ovs-vswitchd opens its sending socket for the first packet that it sends, so make it send one.
        port = next(iter(self._interfaces))
        packet = f"in_port=controller,packet={_PRIMING_FRAME},actions=output:{port.port}"
        self._ovs.command("ovs-ofctl", "-O", OPENFLOW, "packet-out", port.node, packet)
        try:
            receivers = packet_sockets.enlarge(self._ovs.vswitchd_pid, set(self._interfaces.values()))
        except packet_sockets.PacketSocketError as error:
            raise FabricError(str(error)) from error
        for receiver in receivers.values():
            self._stack.callback(receiver.close)
        self._receivers = {port: receivers[name] for port, name in self._interfaces.items()}

    def _capture(self, port: PortRef) -> None:
        """Start a packet capture at a port. Raises CaptureError."""
        directory = self._log_dir / "pcap"
        directory.mkdir(exist_ok=True)
        enter = () if self._layout.is_switch(port) else self._hosts.enter(port.node)
        interface = self._layout.interface(port)
        capture = Capture(interface, directory / f"{port.node}-{port.port}.pcap", enter)
        self._stack.callback(capture.stop)

    def _remove_links(self) -> None:
        """Delete all veths at once, so that another fabric can come up in this sandbox."""
        # A failure is not an error: the kernel deletes the host's end with its namespace, at some time.
        subprocess.run(
            ["ip", "link", "delete", "group", INTERFACE_GROUP], stdin=subprocess.DEVNULL, capture_output=True
        )
