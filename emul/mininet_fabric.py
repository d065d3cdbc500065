# SPDX-License-Identifier: Apache-2.0
"""A topology as a running Mininet network: private OVS, shaped veth links, the OpenFlow app, counters, faults.

Only inside the sandbox (`emul.sandbox`): everything is made in the namespaces of this run and removed with them.
"""

import logging
import os
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from emul import management, packet_sockets, rxe, sandbox, shared_hosts
from emul.capture import Capture
from emul.flow_dump import ObservedFlow, counted_by_port, observed_flows, traced_output
from emul.layout import INTERFACE_GROUP, Layout, switch_end
from emul.mininet_net import OPENFLOW, Network
from emul.netlink import InterfaceCounters, read_interface_counters, read_root_qdisc_drops
from emul.ocs import RECONFIGURATION_S, OpticalSwitches
from emul.openflow_app import OpenFlowAppError, OpenFlowAppProcess
from emul.ovs import Datapath, PrivateOvs, load_kernel_datapath
from emul.relays import Relays
from netmodel import Circuits, Flow, Link, PortRef, Topology, check_circuits, dump_topology, forwarding, lit
from sdn.openflow.hash_check import judge, questions
from sdn.openflow.messages import STRAY_COOKIE
from sdn.openflow.source_rules import Pinning, ecmp_hash_of
from sdn.openflow.steering import Steer, Steering
from sdn.topoopt.relays import RelayPlan

OPENFLOW_PORT = 6653  # its IANA number; free, for the network namespace is ours alone

HASH_QUESTIONS = 32
"""Flows traced at start-up to see that OVS hashes as predicted; about 4 ms each."""

Nics = Literal["plain", "rxe"]
"""What hosts have: Ethernet interfaces, or these and a device of the kernel's SoftRoCE on each."""

# Long, for a machine that is itself emulated takes a minute to import a library.
_READY_TIMEOUT_S = 300.0
_LINK_TIMEOUT_S = 30.0
_BATCH_TIMEOUT_S = 120.0
# Checksums and segments that the sender leaves to a NIC are nobody's work on a veth into the userspace datapath.
_OFFLOADS_OFF = ("tx", "off", "rx", "off", "gro", "off", "gso", "off", "tso", "off")
# An Ethernet frame of a local experimental type (IEEE 802 type 0x88b5), which no host takes.
_PRIMING_FRAME = "ff" * 6 + "02" + "00" * 5 + "88b5" + "00" * 46

_log = logging.getLogger("emul")


class FabricError(Exception):
    """The fabric cannot be brought up or asked; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """One switch port since the fabric came up. Bytes are those of Ethernet frames without the check sequence.

    tx is what left the switch by the port, after its queue; `dropped` counts packets that its queue dropped instead.
    """

    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int
    dropped: int


class MininetFabric:
    """A context manager; `with` brings the fabric up (switches programmed, links shaped) and takes it down.

    log_dir: gets topology.yaml, the logs of OVS and the OpenFlow app, and pcap/. datapath: "user" runs anywhere,
    "kernel" needs the openvswitch module. nics: with "rxe" every host's NIC is an RDMA device too (`rxe.device_name`);
    where a kernel has these in its first network namespace only, all hosts share that one. pcap: the ports (of switches
    or hosts) to capture at. pinning: what UDP source ports choose paths by. management: hosts reach what listens at
    `MANAGEMENT_ADDRESS` in the sandbox, by links of their own that carry nothing else (`emul.management`). on_dead:
    told of the links that are dead, whenever that changes and before switches route around them, in its own thread.

    Raises SandboxError outside the sandbox, LayoutError for a topology it cannot carry, HashMismatchError when OVS
    does not choose as predicted, and OvsError, RxeError, OpenFlowAppError, CaptureError or FabricError when a part does
    not come up.
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
        management: bool = False,
        on_dead: Callable[[Sequence[Link]], None] = lambda _: None,
    ) -> None:
        self.topology = topology
        self._layout = Layout(topology)
        self._log_dir = Path(log_dir)
        self._datapath: Datapath = datapath
        self._nics: Nics = nics
        self._pcap = tuple(pcap)
        self._pinning: Pinning = pinning
        self._management = management
        self._on_dead = on_dead
        self._interfaces = self._layout.switch_interfaces()
        self._ports = {name: port for port, name in self._interfaces.items()}
        self._indices: dict[PortRef, int] = {}
        self._dead: set[Link] = set()
        self._base: dict[PortRef, LinkCounters] = {}
        self._receivers: dict[PortRef, socket.socket] = {}
        self._host_processes: list[subprocess.Popen[Any]] = []
        self._stack = ExitStack()
        self._network: Network
        self._ovs: PrivateOvs
        self._openflow_app: OpenFlowAppProcess | None = None
        self._steering: Steering | None = None
        self._optical: OpticalSwitches
        self._relays: Relays
        if datapath not in get_args(Datapath):
            raise ValueError(f"datapath {datapath!r} is none of {', '.join(get_args(Datapath))}")
        for port in self._pcap:
            topology.link_at(port)  # KeyError with a sentence, before anything is started

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

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command in a host's network (and mount) namespace; keywords go to subprocess.Popen.

        If it still runs when the fabric goes down, it is killed. Raises KeyError for an unknown host.
        """
        self.topology.host(host_name)
        process = subprocess.Popen([*self._enter(host_name), *argv], **popen_kwargs)
        self._host_processes.append(process)
        return process

    def host_pid(self, host_name: str) -> int:
        """A process that lives in a host's namespaces, for `nsenter --net --target PID`. Raises KeyError."""
        self.topology.host(host_name)
        return self._network.pid(host_name)

    def link_counters(self) -> dict[PortRef, LinkCounters]:
        """Counters of every linked switch port, from zero when the fabric came up. About a millisecond for 50 ports."""
        return {
            port: LinkCounters(
                now.tx_bytes - base.tx_bytes,
                now.tx_packets - base.tx_packets,
                now.rx_bytes - base.rx_bytes,
                now.rx_packets - base.rx_packets,
                now.dropped - base.dropped,
            )
            for port, now in self._raw_counters().items()
            for base in (self._base[port],)
        }

    def observed_ports(self, switch_name: str) -> dict[Flow, int]:
        """Out port of every UDP flow for which the switch had a choice, from OVS's datapath flow table.

        A flow is listed from its first packet on. Where a switch has one way only, OVS does not look at UDP ports and
        the flow is not listed. Raises KeyError for an unknown switch and OvsError.
        """
        self.topology.switch(switch_name)
        return {seen.flow: out.port for node, out, seen in self._observed() if node == switch_name}

    def crossing(self, link: Link, within_s: float) -> list[ObservedFlow]:
        """The UDP flows that a switch with a choice has sent over a link, either way, in the last `within_s` seconds.

        Raises OvsError.
        """
        return [seen for _, out, seen in self._observed() if out in (link.a, link.b) and seen.idle_s <= within_s]

    def _observed(self) -> Iterator[tuple[str, PortRef, ObservedFlow]]:
        """Every flow of the datapath's table with the switch and the port that it leaves by."""
        name = "netdev@ovs-netdev" if self._datapath == "user" else "system@ovs-system"
        for seen in observed_flows(self._ovs.appctl("dpctl/dump-flows", "--names", name)):
            incoming, outgoing = self._ports.get(seen.in_interface), self._ports.get(seen.out_interface)
            if incoming is not None and outgoing is not None:
                yield incoming.node, outgoing, seen

    def set_link(self, link: Link, up: bool) -> None:
        """Cut a link, or mend it; returns when the OpenFlow app has every switch route accordingly.

        Raises ValueError for a link that the topology lacks, OpenFlowAppError when the routes do not follow.
        """
        if link not in self.topology.links:
            raise ValueError(f"topology {self.topology.name!r} has no link {link.a} to {link.b}")
        if (link not in self._dead) == up:
            return
        interface = self._interfaces[switch_end(self._layout, link)]
        _run(["ip", "link", "set", "dev", interface, "up" if up else "down"])
        (self._dead.discard if up else self._dead.add)(link)
        # The OpenFlow app hears nothing of links at optical switches alone: no routes depend on them.
        seen = [other for other in self._dead if self._is_routed(other)]
        if self._openflow_app is not None and self._is_routed(link):
            dead = sorted([str(other.a), str(other.b)] for other in seen)
            self._openflow_app.wait_for("links", _LINK_TIMEOUT_S, dead=dead)

    def _is_routed(self, link: Link) -> bool:
        """Whether a switch that forwards by address is at an end of `link`."""
        ends = (end for end in (link.a, link.b) if self._layout.is_switch(end))
        return any(self.topology.switch(end.node).role != "ocs" for end in ends)

    @property
    def circuits(self) -> Circuits:
        """What the optical switches are set to; they begin dark."""
        return self._optical.circuits

    def set_circuits(self, circuits: Circuits, reconfiguration_s: float = RECONFIGURATION_S) -> None:
        """Set the named optical switches to exactly these circuits; returns when light goes through.

        The ports of circuits that change are dark for `reconfiguration_s`; others go on. Switches that forward by
        address are told after that, and have confirmed. Raises TopologyError, before anything has changed, for ports
        that are used twice or have no link, ValueError where the steering would not fit any more, and OvsError.
        """
        if self._openflow_app is None:
            self._optical.set(circuits, reconfiguration_s)
            return
        check_circuits(self.topology, circuits)
        self._check_steering(self._steering, {**self.circuits, **circuits})
        self._optical.set(circuits, reconfiguration_s)
        self._order(self._openflow_app)
        self._check_hash()  # which has had no choice in the dark

    def set_relays(self, plan: RelayPlan) -> None:
        """Let hosts send and forward for others as planned for the circuits that are set. Raises FabricError."""
        self._relays.set(self.circuits, plan)

    def relay_counters(self) -> dict[PortRef, InterfaceCounters]:
        """By NIC: what hosts have taken in and sent for others, by the interfaces that are there for it."""
        return self._relays.counters()

    def check_relays(self, plan: RelayPlan) -> None:
        """Raises RelayError when a host that should relay does not."""
        self._relays.check(plan)

    def steer(self, steering: Steering | None) -> None:
        """Put `steering` above the routes, or, with None, do without; returns when every switch has confirmed.

        What `observed_ports` tells starts anew. Raises ValueError where the steering does not fit the topology, and
        OpenFlowAppError when switches do not follow.
        """
        if self._openflow_app is None:
            raise OpenFlowAppError(f"topology {self.topology.name!r} has optical switches only, and nothing to steer")
        self._check_steering(steering, self.circuits)
        self._steering = steering
        self._order(self._openflow_app)

    def _check_steering(self, steering: Steering | None, circuits: Circuits) -> None:
        if steering is not None:
            steering.routes(lit(self.topology, circuits))

    def _order(self, app: OpenFlowAppProcess) -> None:
        """Have switches do what follows from the steering and the circuits that are set."""
        # Before: what old flows have carried must not be counted by new rules. After: no flow goes by an old rule.
        self._ovs.appctl("revalidator/purge")
        app.steer(Steer(steer=self._steering, circuits=self.circuits), _LINK_TIMEOUT_S)
        self._ovs.appctl("revalidator/purge")

    def strays(self) -> dict[PortRef, int]:
        """Packets dropped because what comes in by that switch port may not go where they wanted to, since `steer`."""
        self._ovs.appctl("revalidator/wait")  # or the counters would lack the last half second
        return {
            PortRef(switch.name, port): packets
            for switch in self.topology.switches
            for port, packets in counted_by_port(
                self._ovs.command(
                    "ovs-ofctl", "--no-names", "-O", OPENFLOW, "dump-flows", switch.name, f"cookie={STRAY_COOKIE:#x}/-1"
                )
            )
        }

    def overruns(self) -> Mapping[PortRef, int]:
        """Packets lost at each switch port because OVS, short of CPU, did not fetch them in time (user datapath only).

        Anything but zero means that the machine was too slow for the rates, and not the fabric for the traffic.
        """
        return {port: packet_sockets.receive_drops(receiver) for port, receiver in self._receivers.items()}

    def _start(self) -> None:
        stack, layout, topology = self._stack, self._layout, self.topology
        self._log_dir.mkdir(parents=True, exist_ok=True)
        topology_file = self._log_dir / "topology.yaml"
        topology_file.write_text(dump_topology(topology))
        # Neighbour and router discovery would stir the counters. A new namespace does not inherit this.
        quiet = "net.ipv6.conf.{}.disable_ipv6=1"
        no_ipv6 = ["sysctl", "-q", "-e", "-w", quiet.format("all"), quiet.format("default")]
        _run(no_ipv6)
        if self._nics == "rxe":
            rxe.load()
            layout = self._layout = Layout(topology, shared=not rxe.per_namespace())
        self._ovs = stack.enter_context(PrivateOvs(sandbox.SCRATCH_DIR / "ovs", self._log_dir))
        self._network = Network(layout, self._datapath, OPENFLOW_PORT, self._ovs.command)
        stack.callback(self._remove_links)
        stack.callback(self._network.stop)
        stack.callback(self._remove_rxe)
        stack.callback(self._kill_host_processes)
        if any(switch.role != "ocs" for switch in topology.switches):
            self._openflow_app = OpenFlowAppProcess(
                topology_file, OPENFLOW_PORT, self._log_dir / "openflow-app.log", self._pinning, self._hear
            )
            stack.callback(self._openflow_app.stop)
        for host in topology.hosts:
            enter = self._enter(host.name)
            _run([*enter, *no_ipv6])
            _run([*enter, "ip", "-batch", "-"], layout.host_lines(host))
            for _, name in layout.linked_nics(host):
                _run([*enter, "ethtool", "-K", name, *_OFFLOADS_OFF])
            _run([*enter, "tc", "-batch", "-"], layout.host_shape_lines(host))
        if layout.shared:
            _run(["sysctl", "-q", "-w", *shared_hosts.sysctls(layout)])
            _run(["ip", "-batch", "-"], shared_hosts.lines(layout))
            stack.callback(_run, ["ip", "-batch", "-"], shared_hosts.undo_lines(layout))
        if self._management and layout.shared:
            _run(["ip", "-batch", "-"], management.main_lines({}))
        elif self._management:
            pids = {host.name: self._network.pid(host.name) for host in topology.hosts}
            _run(["ip", "-batch", "-"], management.main_lines(pids))
            for number, host in enumerate(topology.hosts):
                _run([*self._enter(host.name), "ip", "-batch", "-"], management.host_lines(number))
        _run(["ip", "-batch", "-"], layout.switch_link_lines())
        for name in self._interfaces.values():
            _run(["ethtool", "-K", name, *_OFFLOADS_OFF])
        if self._openflow_app is not None:
            self._openflow_app.wait_for("listening", _READY_TIMEOUT_S)  # or the bridges retry only a second later
        self._network.start_switches()
        # After the bridges: OVS removes foreign qdiscs from a port it takes over.
        _run(["tc", "-batch", "-"], layout.switch_shape_lines())
        if self._openflow_app is not None and (dead := self._openflow_app.wait_for("ready", _READY_TIMEOUT_S)["dead"]):
            raise FabricError(f"links {dead} do not come up; see {self._log_dir}")
        if self._nics == "rxe":
            for host in topology.hosts:
                for port, name in layout.linked_nics(host):
                    rxe.add(rxe.device_name(host, port.port - 1), name, self._enter(host.name))
        self._optical = OpticalSwitches(topology, self._ovs.command, self._log_dir)
        self._check_hash()
        self._relays = Relays(topology, lambda host, argv, lines: _run([*self._enter(host), *argv], lines))
        if self._datapath == "user":
            self._give_sockets_room()
        for port in self._pcap:
            self._capture(port)
        self._indices = {port: socket.if_nametoindex(name) for port, name in self._interfaces.items()}
        self._base = self._raw_counters()
        _log.info("fabric %s is up: %d hosts, %d switches", topology.name, len(topology.hosts), len(topology.switches))

    def traced_port(self, switch_name: str, flow: Flow) -> int | None:
        """The port by which a switch would send a flow's next packet, None if it would drop it; sends nothing.

        Raises KeyError for an unknown switch and OvsError.
        """
        self.topology.switch(switch_name)
        # As if from the bridge itself: a switch never sends a packet back by the port it came in by.
        packet = (
            f"in_port=LOCAL,udp,nw_src={flow.src},nw_dst={flow.dst},udp_src={flow.src_port},udp_dst={flow.dst_port}"
        )
        out = traced_output(self._ovs.appctl("ofproto/trace", "--names", switch_name, packet))
        port = self._ports.get(out or "")
        return None if port is None else port.port

    def _check_hash(self) -> None:
        seen = lit(self.topology, self.circuits)
        asked = questions(seen, forwarding(seen), ecmp_hash_of(seen, self._pinning), HASH_QUESTIONS)
        judge(asked, [self.traced_port(question.switch, question.flow) for question in asked])

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "dead":
            ends = {tuple(pair) for pair in event["dead"]}
            self._on_dead([link for link in self.topology.links if (str(link.a), str(link.b)) in ends])

    def _give_sockets_room(self) -> None:
        # The sending socket is opened for the first packet ever sent, so one is.
        port, _ = next(iter(self._interfaces.items()))
        self._ovs.command(
            "ovs-ofctl",
            "-O",
            OPENFLOW,
            "packet-out",
            port.node,
            f"in_port=controller,packet={_PRIMING_FRAME},actions=output:{port.port}",
        )
        senders = 0
        for duplicate in packet_sockets.borrow(self._ovs.vswitchd_pid):
            packet_sockets.give_room(duplicate)
            if packet_sockets.is_sender(duplicate):
                senders += 1
                duplicate.close()
            elif (receiving := self._ports.get(duplicate.getsockname()[0])) is not None:
                self._receivers[receiving] = duplicate
                self._stack.callback(duplicate.close)
            else:
                duplicate.close()
        if senders != 1 or len(self._receivers) != len(self._interfaces):
            raise FabricError(
                f"ovs-vswitchd has {senders} sending and {len(self._receivers)} receiving packet sockets where 1 and "
                f"{len(self._interfaces)} were expected; this Open vSwitch does its input and output otherwise"
            )

    def _kill_host_processes(self) -> None:
        for process in self._host_processes:
            process.kill()  # a no-op for those that have been waited for
        for process in self._host_processes:
            process.wait()

    def _remove_rxe(self) -> None:
        for host in self.topology.hosts if self._nics == "rxe" else ():
            for port, _ in self._layout.linked_nics(host):
                rxe.remove(rxe.device_name(host, port.port - 1), self._enter(host.name))

    def _remove_links(self) -> None:
        """Delete the veths, all at once, so that another fabric can come up in this sandbox."""
        # Not an error when they are gone: a host's end goes with its namespace, at a time of the kernel's choosing.
        subprocess.run(
            ["ip", "link", "delete", "group", INTERFACE_GROUP], stdin=subprocess.DEVNULL, capture_output=True
        )

    def _capture(self, port: PortRef) -> None:
        directory = self._log_dir / "pcap"
        directory.mkdir(exist_ok=True)
        prefix = () if self._layout.is_switch(port) else self._enter(port.node)
        interface = self._layout.interface(port)
        capture = Capture(interface, directory / f"{port.node}-{port.port}.pcap", prefix)
        self._stack.callback(capture.stop)

    def _raw_counters(self) -> dict[PortRef, LinkCounters]:
        interfaces, drops = read_interface_counters(), read_root_qdisc_drops()
        result = {}
        for port, name in self._interfaces.items():
            seen = interfaces[name]
            result[port] = LinkCounters(
                seen.tx_bytes, seen.tx_packets, seen.rx_bytes, seen.rx_packets, drops.get(self._indices[port], 0)
            )
        return result

    def _enter(self, host_name: str) -> list[str]:
        return [] if self._layout.shared else ["mnexec", "-a", str(self._network.pid(host_name))]


def _run(argv: Sequence[str], lines: Sequence[str] | None = None) -> str:
    """Output of a configuration command, with `lines` as its input. Raises FabricError with the command's own words."""
    if lines is not None and not lines:
        return ""
    try:
        done = subprocess.run(
            argv,
            input=None if lines is None else "\n".join(lines) + "\n",
            stdin=subprocess.DEVNULL if lines is None else None,
            capture_output=True,
            text=True,
            timeout=_BATCH_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise FabricError(f"{error.filename} is missing; `paralet doctor` tells what to install") from error
    except subprocess.TimeoutExpired as error:
        raise FabricError(f"{' '.join(argv)} did not end in {_BATCH_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise FabricError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
