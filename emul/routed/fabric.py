# SPDX-License-Identifier: Apache-2.0
"""A topology as running routers: each a namespace of Linux that forwards by the kernel's ECMP, with routes by eBGP.

It runs only inside the sandbox (`emul.sandbox`): everything it makes lives in the namespaces of the run, and the kernel
removes it with them.
"""

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from emul import commands, hosts, sandbox
from emul.bpf import Instruction
from emul.capture import Capture
from emul.commands import FabricError
from emul.flow_dump import ObservedFlow
from emul.layout import Layout, LayoutError
from emul.link_counters import LinkCounters
from emul.link_faults import FaultCounts, LinkFault
from emul.link_states import LinkState, link_states
from emul.port_settings import PortSettings
from emul.routed import header_hash
from emul.routed.crc_hash import crc_program
from emul.routed.nodes import Nodes
from emul.routed.requirements import lack
from emul.routed.router import Router
from emul.routed.setup_lines import link_lines, links_of
from netmodel import Flow, Forwarding, Link, LinuxCrcHash, LinuxL4Hash, PortRef, Topology, dump_topology
from netmodel.bgp_routes import bgp_routes
from netmodel.frr import BgpTimers
from netmodel.linux_routers import host_lines, router_sysctls
from netmodel.printable import printable
from netmodel.router_plan import RouterPlan
from netmodel.segments import segment_addresses

_ROUTES_TIMEOUT_S = 120.0
_CHANGE_TIMEOUT_S = 30.0
_POLL_S = 0.05
_WORKERS = 8
"""Routers that are set up at a time. Their set-up waits for the kernel and for each other's processes."""

_log = logging.getLogger("emul")


class RoutedFabric:
    """A fabric as a context manager: `with` brings it up (sessions established, all routes there) and takes it down.

    log_dir: directory for topology.yaml, routers/ (configurations and logs) and pcap/.
    pcap: ports, of routers or hosts, whose packets are captured.
    management: hosts reach the sandbox at `MANAGEMENT_ADDRESS` by separate links (`emul.management`).
    faults: by port of a router or host, what happens to packets that leave by it, from when the fabric is up.
    ecmp_hash: by which routers choose among equal paths: the kernel's own hash, or a CRC.
    unnumbered: links have no addresses (`netmodel.routers`).
    timers: of the BGP sessions.
    segments: routers know the segments of `netmodel.segments`. Needs IPv6, and links with addresses.

    Raises KeyError for a port in `pcap` or `faults` without a link, SandboxError outside the sandbox, LayoutError for a
    topology that it cannot carry, and CaptureError or FabricError when a part does not come up.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        log_dir: Path,
        pcap: Iterable[PortRef] = (),
        management: bool = False,
        faults: Mapping[PortRef, LinkFault] = MappingProxyType({}),
        ecmp_hash: LinuxL4Hash | LinuxCrcHash = LinuxL4Hash(),  # noqa: B008 (immutable)
        unnumbered: bool = False,
        timers: BgpTimers = BgpTimers(),  # noqa: B008 (immutable)
        segments: bool = False,
    ) -> None:
        self.topology = topology
        self._layout = Layout(topology)
        try:
            self._plan = RouterPlan(topology, unnumbered)
            self._segments = segment_addresses(topology) if segments else None
            for switch in topology.switches:
                router_sysctls(self._plan, switch.name)
        except ValueError as error:
            raise LayoutError(str(error)) from error
        self._log_dir = Path(log_dir)
        self._pcap = tuple(pcap)
        self._management = management
        self._faulty = dict(faults)
        self._all_routes = bgp_routes(self._plan)
        self._ecmp_hash = ecmp_hash
        self._timers = timers
        self._cut: set[Link] = set()
        self._down: set[str] = set()
        self._drained: set[str] = set()
        self._silent: set[PortRef] = set()
        """Ports that lose all packets by faults. They are up, but BGP does without them after its hold time."""
        self._changing = threading.Lock()
        self._stack = ExitStack()
        # Made when the fabric comes up, in this order.
        self._nodes: Nodes
        self._hosts: hosts.Hosts
        self._routers: dict[str, Router]
        self._settings: PortSettings
        for port in (*self._pcap, *self._faulty):
            topology.link_at(port)  # raises KeyError before anything is started

    def __enter__(self) -> Self:
        sandbox.require("a fabric of routers")
        if (lacking := lack()) is not None:
            raise FabricError(f"routers cannot run: {lacking.what}; {lacking.remedy}")
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

    # Nodes

    def enter(self, node: str) -> list[str]:
        """The argv prefix that runs a command in the namespaces of a host or router. Raises KeyError."""
        return ["mnexec", "-a", str(self.node_pid(node))]

    def node_pid(self, node: str) -> int:
        """The id of a process in the namespaces of a host or router. Raises KeyError for an unknown name."""
        if not self.topology.has_host(node):
            self.topology.switch(node)
        return self._nodes.pid(node)

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
        return self._nodes.pid(host_name)

    # Observation

    def link_states(self) -> list[LinkState]:
        """How every link is now. Raises FabricError."""
        live = {name: router.live_interfaces() for name, router in self._routers.items()}
        return link_states(self._layout, self._settings, lambda switch: live[switch])

    def rules(self, switch_name: str) -> str:
        """The routes in a router's kernel, and its BGP sessions. Raises KeyError, and FabricError."""
        self.topology.switch(switch_name)
        return self._routers[switch_name].rules()

    def routes(self) -> Forwarding:
        """The routes in the routers' kernels. Members of groups are in the kernels' order, which hashes select by."""
        with ThreadPoolExecutor(_WORKERS) as workers:
            found = workers.map(Router.routes, self._routers.values())
            groups: dict[str, Mapping[Any, tuple[int, ...]]] = dict(zip(self._routers, found, strict=True))
        homes = {nic.address for host in self.topology.hosts for nic in host.nics}
        return Forwarding(
            {name: {a: ports for a, ports in own.items() if a in homes} for name, own in groups.items()},
            frozenset(self._dead_links()),
            by_address=True,
        )

    def link_counters(self) -> dict[PortRef, LinkCounters]:
        """Counters of every linked router port since the fabric came up. Takes about 0.2 ms for a router."""
        return {port: count for router in self._routers.values() for port, count in router.counters().items()}

    def overruns(self) -> Mapping[PortRef, int]:
        """None: the kernel itself forwards."""
        return {}

    def fault_counts(self) -> Mapping[PortRef, FaultCounts]:
        """By port that has or had faults, or a delay of its link: the packets concerned. Raises FabricError."""
        return self._settings.fault_counts()

    def observed_ports(self, switch_name: str) -> dict[Flow, int]:
        """Egress port of every flow for which the router had a choice; the last one where it took several.

        A flow is listed from its first packet on, for an hour after its last. Raises KeyError for an unknown router,
        and FabricError.
        """
        self.topology.switch(switch_name)
        choices = self._all_routes.groups[switch_name]
        last: dict[Flow, tuple[float, int]] = {}
        for port, seen in self._routers[switch_name].flows():
            if len(choices.get(seen.flow.dst, ())) < 2:
                continue
            if seen.flow not in last or seen.idle_s <= last[seen.flow][0]:
                last[seen.flow] = (seen.idle_s, port.port)
        return {flow: port for flow, (_, port) in last.items()}

    def crossing(self, link: Link, within_s: float) -> list[ObservedFlow]:
        """The flows of UDP and TCP that a router sent over a link, in either direction, in the last `within_s` s.

        Raises FabricError.
        """
        ends = [end for end in (link.a, link.b) if self._layout.is_switch(end)]
        found = [(end, out, seen) for end in ends for out, seen in self._routers[end.node].flows()]
        return [seen for end, out, seen in found if out == end and seen.idle_s <= within_s]

    # Control

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or restore a link. Returns when all routers route accordingly.

        Raises ValueError for a link that the topology does not have, and FabricError, also when routes do not follow.
        """
        if link not in self.topology.links:
            raise ValueError(f"topology {self.topology.name!r} has no link {link.a} to {link.b}")
        with self._changing:
            if (link not in self._cut) == up:
                return
            (self._cut.discard if up else self._cut.add)(link)
            self._set_ends(link, up)
            self._wait_for_routes(_CHANGE_TIMEOUT_S)

    def set_router(self, name: str, up: bool) -> None:
        """Let a router die, with all its links, or return. Returns when all routers route accordingly.

        Raises KeyError for an unknown router, and FabricError, also when routes do not follow.
        """
        self.topology.switch(name)
        with self._changing:
            if (name not in self._down) == up:
                return
            (self._down.discard if up else self._down.add)(name)
            router = self._routers[name]
            if not up:
                router.daemons.kill()
            for link in links_of(self._layout, name):
                self._set_ends(link, up)
            if up:
                self._drained.discard(name)
                router.daemons.start_zebra()
                router.daemons.start_bgpd()
            self._wait_for_routes(_CHANGE_TIMEOUT_S)

    def reset_session(self, port: PortRef) -> None:
        """Reset the BGP session at a router's port. Returns when all routes are back.

        Raises ValueError where there is no session, and FabricError.
        """
        session = next((session for session in self._plan.sessions[port.node] if session.port == port), None)
        if session is None:
            raise ValueError(f"no BGP session is at port {port}: it is none of a link between routers")
        with self._changing:
            self._routers[port.node].reset(session, _CHANGE_TIMEOUT_S)
            self._wait_for_routes(_CHANGE_TIMEOUT_S)

    def set_drained(self, name: str, drained: bool) -> None:
        """Let a router ask its neighbours to send around it (graceful shutdown, RFC 8326), or end that.

        Returns when all routers do, or do no longer. Raises KeyError for an unknown router, and FabricError.
        """
        self.topology.switch(name)
        with self._changing:
            (self._drained.add if drained else self._drained.discard)(name)
            self._routers[name].drain(drained)
            self._wait_for_routes(_CHANGE_TIMEOUT_S)

    def set_rate(self, link: Link, part: float) -> None:
        """Leave a link this part of its rate, in both directions, unnoticed by routers. Raises FabricError.

        Raises ValueError for a link that the topology does not have, and for a part outside (0, 1].
        """
        self._settings.set_rate(link, part)

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port of a router or host exactly these faults, beside its link's delay.

        Raises KeyError for what is not a linked port, and FabricError.
        """
        self._settings.set_faults(port, fault)
        (self._silent.add if fault.loss >= 1 else self._silent.discard)(port)

    def settle(self) -> None:
        """Wait until all routers have the routes that BGP converges to. Raises FabricError when they do not in time."""
        with self._changing:
            self._wait_for_routes(_CHANGE_TIMEOUT_S)

    def _dead_links(self) -> set[Link]:
        """The links that are cut, and those of routers that are down."""
        return self._cut | {link for name in self._down for link in links_of(self._layout, name)}

    def _set_ends(self, link: Link, up: bool) -> None:
        """Bring the routers' ends of a link up or down: both, because the kernel drops routes of a port that is down,
        and keeps those of one without carrier."""
        if up and link in self._dead_links():
            return  # cut, or at another router that is down
        for end in (link.a, link.b):
            if self._layout.is_switch(end):
                self._routers[end.node].set_interface(end, up)

    def _wait_for_routes(self, timeout_s: float) -> None:
        """Wait until the kernels have the routes to which BGP converges. Raises FabricError."""
        dead = frozenset(self._dead_links().union(map(self.topology.link_at, self._silent)))
        expected = bgp_routes(self._plan, dead, self._drained).groups
        deadline = time.monotonic() + timeout_s
        pending = [router for name, router in self._routers.items() if name not in self._down]
        while True:
            pending = [router for router in pending if not self._is_settled(router, expected[router.name])]
            if not pending:
                return
            if time.monotonic() > deadline:
                names = ", ".join(router.name for router in pending)
                raise FabricError(f"no routes to all hosts in {timeout_s:.0f} s at {names}; see {self._log_dir}")
            time.sleep(_POLL_S)

    def _is_settled(self, router: Router, expected: Mapping[Any, tuple[int, ...]]) -> bool:
        routes = router.routes()
        homes = {nic.address for host in self.topology.hosts for nic in host.nics}
        return {a: tuple(sorted(ports)) for a, ports in routes.items() if a in homes} == expected

    # Bring-up. The exit stack takes the parts down in reverse order.

    def _start(self) -> None:
        stack, topology = self._stack, self.topology
        self._log_dir.mkdir(parents=True, exist_ok=True)
        (self._log_dir / "topology.yaml").write_text(dump_topology(topology))
        names = [switch.name for switch in topology.switches]
        self._nodes = Nodes([host.name for host in topology.hosts], names)
        stack.callback(self._nodes.stop)
        self._hosts = hosts.Hosts(self._layout, self._nodes)
        stack.callback(self._hosts.kill_processes)
        self._routers = {
            name: Router(
                self._plan,
                self._layout,
                name,
                self._nodes.pid(name),
                self._log_dir / "routers" / name,
                self._timers,
                self._segments,
            )
            for name in names
        }
        with ThreadPoolExecutor(_WORKERS) as workers:
            self._start_routers(workers)
        self._hosts.configure(lambda host: host_lines(self._plan, host, self._layout.interface))
        if self._management:
            self._hosts.add_management()
        for port in self._pcap:
            self._capture(port)
        self._wait_for_routes(_ROUTES_TIMEOUT_S)
        for router in self._routers.values():
            router.count_from_now()
        self._settings = PortSettings(
            self._layout, lambda port: self._nodes.pid(port.node), sandbox.SCRATCH_DIR / "bpf", "bands"
        )
        stack.callback(self._settings.remove_faults)
        self._settings.delay_links()
        for port, fault in self._faulty.items():
            self.set_faults(port, fault)
        _log.info(
            "fabric %s is up: %d hosts, %d routers",
            printable(topology.name),
            len(topology.hosts),
            len(topology.switches),
        )

    def _start_routers(self, workers: ThreadPoolExecutor) -> None:
        """Set up kernels and links, and start the daemons. Sessions come up meanwhile."""
        routers = list(self._routers.values())

        def each(step: Callable[[Router], None]) -> None:
            for _ in workers.map(step, routers):  # raises what a step raises
                pass

        each(Router.set_kernel)
        pids = {name: self._nodes.pid(name) for name in (*self._routers, *(host.name for host in self.topology.hosts))}
        commands.batch("ip", link_lines(self._layout, pids))
        hashing = {name: self._hashing(name) for name in self._routers}
        with header_hash.pinned(sandbox.SCRATCH_DIR / "header-hash", (code for code, _ in hashing.values())) as paths:
            path = dict(zip(hashing, paths, strict=True))
            each(lambda router: router.set_ports(path[router.name], hashing[router.name][1]))
        for router in routers:
            self._stack.callback(router.close)
            self._stack.callback(router.daemons.kill)
        each(lambda router: router.daemons.start_zebra())
        each(lambda router: router.daemons.start_bgpd())

    def _hashing(self, name: str) -> tuple[Sequence[Instruction], list[PortRef]]:
        """The program that decides on the hash of packets, and the ports of a router where they pass it.

        The kernel's own hash needs one only where packets come in from hosts.
        """
        if isinstance(self._ecmp_hash, LinuxL4Hash):
            return header_hash.FORGET, [PortRef(name, port) for port in self._plan.hosts[name]]
        seed = self.topology.switch(name).hash_seed
        code = crc_program(seed, self._ecmp_hash.offsets.get(seed, 0), self._plan.version)
        return code, [port for port in self.topology.linked_ports() if port.node == name]

    def _capture(self, port: PortRef) -> None:
        """Start a packet capture at a port. Raises CaptureError."""
        directory = self._log_dir / "pcap"
        directory.mkdir(exist_ok=True)
        enter = ["nsenter", f"--net=/proc/{self._nodes.pid(port.node)}/ns/net"]
        capture = Capture(self._layout.interface(port), directory / f"{port.node}-{port.port}.pcap", enter)
        self._stack.callback(capture.stop)
