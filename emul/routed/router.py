# SPDX-License-Identifier: Apache-2.0
"""One router of a running fabric: its kernel, and FRR's daemons beside it."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from emul import commands, hosts, namespaces
from emul.commands import FabricError
from emul.flow_dump import ObservedFlow
from emul.layout import Layout
from emul.link_counters import LinkCounters
from emul.link_states import live_interfaces
from emul.netlink import QdiscDrops, interface_counters
from emul.routed.daemons import RoutingDaemons
from emul.routed.flow_set import flows_of
from emul.routed.header_hash import attach_lines
from emul.routed.kernel_routes import routes_of
from emul.routed.setup_lines import NOTED_PROTOCOLS, SEGMENT_SETTINGS, flow_rules, port_up_lines, router_lines
from emul.shaping import QUEUE_PACKETS, shape_lines
from netmodel import PortRef
from netmodel.flow import Address
from netmodel.frr import BgpTimers, bgpd_configuration, zebra_configuration
from netmodel.linux_routers import router_sysctls
from netmodel.router_plan import RouterPlan, Session
from netmodel.segments import SegmentAddresses

_POLL_S = 0.05


class Router:
    """A router in the namespaces of process `pid`. Methods raise FabricError when a command fails.

    folder: for the configuration and the logs of its daemons. segments: those of the fabric, if routers know them.
    """

    def __init__(
        self,
        plan: RouterPlan,
        layout: Layout,
        name: str,
        pid: int,
        folder: Path,
        timers: BgpTimers,
        segments: SegmentAddresses | None = None,
    ) -> None:
        self.name = name
        self._plan = plan
        self._segments = segments
        self._layout = layout
        self._pid = pid
        self._enter = ["mnexec", "-a", str(pid)]
        self._enter_network = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        self._ports = {layout.interface(port): port for port in layout.topology.linked_ports() if port.node == name}
        self._numbers = {interface: port.port for interface, port in self._ports.items()}
        self._base: dict[PortRef, LinkCounters] = {}
        folder.mkdir(parents=True, exist_ok=True)
        configuration = {
            "zebra": zebra_configuration(plan, name, layout.interface),
            "bgpd": bgpd_configuration(plan, name, layout.interface, timers),
        }
        self.daemons = RoutingDaemons(name, configuration, self._enter, folder, pid)

    # Setting up

    def set_kernel(self) -> None:
        """Set what must be there before the router has interfaces."""
        settings = router_sysctls(self._plan, self.name)
        if self._segments is not None:
            settings |= SEGMENT_SETTINGS
        commands.run([*self._enter, "sysctl", "-q", "-w", *(f"{name}={value}" for name, value in settings.items())])

    def set_ports(self, program: Path, ports: Iterable[PortRef]) -> None:
        """Set addresses, queues and rates of all ports, and note flows from now on.

        program: what decides on the hash of packets that come in by `ports`.
        """
        for interface in self._ports:
            hosts.disable_offloads(interface, self._enter)
        self._batch("ip", router_lines(self._plan, self._layout, self.name, self._segments))
        topology = self._layout.topology
        lines = [
            line
            for interface, port in self._ports.items()
            for line in shape_lines(
                interface, topology.link_at(port).rate_bps, topology.mtu_bytes, QUEUE_PACKETS, "bands"
            )
        ]
        self._batch("tc", lines)
        lines = [line for port in ports for line in attach_lines(self._layout.interface(port), program)]
        commands.batch("tc", lines, self._enter_network)  # its mount namespace does not have the program
        commands.run([*self._enter, "nft", "-f", "-"], flow_rules(self._plan.version))
        self._drops = namespaces.within(self._pid, QdiscDrops)

    def set_interface(self, port: PortRef, up: bool) -> None:
        """Bring a port up or down. The neighbour's loses its carrier with it."""
        down = [f"link set dev {self._layout.interface(port)} down"]
        self._batch("ip", port_up_lines(self._plan, self._layout, port, self._segments) if up else down)

    def drain(self, drained: bool) -> None:
        """Ask all neighbours to send around this router (graceful shutdown, RFC 8326), or to do so no longer."""
        self.daemons.command(
            "configure terminal",
            f"router bgp {self._plan.as_numbers[self.name]}",
            f"{'' if drained else 'no '}bgp graceful-shutdown",
        )

    def reset(self, session: Session, timeout_s: float) -> None:
        """Reset a session. Returns when it is established again. Raises FabricError also when it is not in time."""
        before = self._established(session)
        self.daemons.command(f"clear bgp {self._peer(session)}")
        deadline = time.monotonic() + timeout_s
        while self._established(session) == before:
            if time.monotonic() > deadline:
                raise FabricError(f"the BGP session at {session.port} is not back after {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _established(self, session: Session) -> int:
        """How often a session has been established."""
        shown = json.loads(self.daemons.command(f"show bgp neighbors {self._peer(session)} json"))
        return int(shown[self._peer(session)]["connectionsEstablished"])

    def _peer(self, session: Session) -> str:
        return self._layout.interface(session.port) if session.address is None else str(session.address)

    def _batch(self, tool: str, lines: Sequence[str]) -> None:
        commands.batch(tool, lines, self._enter)

    # Looking

    def routes(self) -> dict[Address, tuple[int, ...]]:
        """By address: the ports of the kernel's next hops, in its order."""
        listed = commands.run([*self._enter, "ip", f"-{self._plan.version}", "-j", "route", "show"])
        return routes_of(listed, self._numbers)

    def rules(self) -> str:
        """The routes in the kernel, and the sessions of BGP, for people."""
        shown = commands.run([*self._enter, "ip", f"-{self._plan.version}", "route", "show"])
        try:
            return f"{shown}{self.daemons.command('show bgp summary')}"
        except FabricError as error:  # the router is dead, and its routes are still there
            return f"{shown}no BGP: {error}\n"

    def live_interfaces(self) -> set[str]:
        """The interfaces that are up and have a carrier."""
        return live_interfaces(commands.run([*self._enter, "ip", "-j", "link", "show"]))

    def flows(self) -> list[tuple[PortRef, ObservedFlow]]:
        """The flows that the router has forwarded, each with the port by which they left."""
        family = "ip6" if self._plan.version == 6 else "ip"
        # Without -n, which would print times in whole seconds. Ports and addresses are numbers all the same.
        look = [*self._enter, "nft", "list", "set", family, "paralet_flows"]
        return [
            (self._ports[seen.out_interface], seen)
            for name, protocol in NOTED_PROTOCOLS.items()
            for seen in flows_of(commands.run([*look, f"{name}_flows"]), protocol)
            if seen.out_interface in self._ports
        ]

    def count_from_now(self) -> None:
        """Let `counters` count from now."""
        self._base = self._totals()

    def counters(self) -> Mapping[PortRef, LinkCounters]:
        """The counters of all ports."""
        return {port: total.since(self._base[port]) for port, total in self._totals().items()}

    def close(self) -> None:
        """Close what `set_ports` opened."""
        self._drops.close()

    def _totals(self) -> dict[PortRef, LinkCounters]:
        seen = interface_counters(Path(f"/proc/{self._pid}/net/dev").read_text())
        drops = self._drops.read()
        return {
            port: LinkCounters.of(seen[interface], drops.get(interface, 0)) for interface, port in self._ports.items()
        }
