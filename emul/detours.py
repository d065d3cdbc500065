# SPDX-License-Identifier: Apache-2.0
"""Hosts that forward packets of GPUs whose rail is dead, as `sdn.failover.detours` plans.

A packet keeps its addresses. Every hop writes the MAC of the next host's NIC into it: a host by a neighbour entry for
the destination, and switches, which have no route to a NIC of another network, deliver by that MAC.
"""

from collections.abc import Callable, Iterator, Sequence

from emul.relays import FORWARDING
from netmodel import Nic, PortRef, Topology
from netmodel.linux_routers import FIRST_NIC_TABLE
from sdn.failover.detours import Detours

_MAC_PRIORITY = 50
"""Below that of routes by address."""


def mac_flows(topology: Topology, switch: str) -> list[str]:
    """Flows in the syntax of ovs-ofctl: what has no route goes to the attached NIC whose MAC it has."""
    found = []
    for host in topology.hosts:
        for number, nic in enumerate(host.nics, start=1):
            port = topology.peer(PortRef(host.name, number))
            if port.node == switch:
                found.append(f"priority={_MAC_PRIORITY},ip,dl_dst={nic.mac},actions=output:{port.port}")
    return found


class DetouringHosts:
    """The hosts of a running fabric.

    run: runs a command in a host's network namespace with lines as its input, and raises when the command fails.
    add_flows: adds flows to a switch.
    """

    def __init__(
        self,
        topology: Topology,
        run: Callable[[str, Sequence[str], Sequence[str] | None], str],
        add_flows: Callable[[str, Sequence[str]], None],
    ) -> None:
        self._topology = topology
        self._run = run
        self._add_flows = add_flows
        self._undo: dict[str, list[str]] = {}

    def allow(self) -> None:
        """Let hosts forward, and switches deliver by MAC what they have no route for. It lasts, and takes seconds."""
        for switch in self._topology.switches:
            self._add_flows(switch.name, mac_flows(self._topology, switch.name))
        for host in self._topology.hosts:
            interfaces = [f"net.ipv4.conf.{nic.name}.rp_filter=0" for nic in host.nics]
            self._run(host.name, ["sysctl", "-q", "-w", *FORWARDING, *interfaces], None)

    def set(self, plan: Detours) -> None:
        """Make hosts send and forward as planned, and no longer as by an earlier plan; an empty plan has no detours."""
        lines: dict[str, dict[str, None]] = {}
        undo: dict[str, dict[str, None]] = {}
        for way in plan.ways.values():
            for host, do, after in self._lines(plan, way):
                lines.setdefault(host, {}).update(dict.fromkeys(do))
                undo.setdefault(host, {}).update(dict.fromkeys(after))
        for host in dict.fromkeys([*self._undo, *lines]):
            self._run(host, ["ip", "-batch", "-"], [*self._undo.get(host, ()), *lines.get(host, ())])
        self._undo = {host: [*after] for host, after in undo.items()}

    def _lines(self, plan: Detours, way: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
        """For each host that sends on the way: its name, lines for `ip -batch`, and lines that undo them."""
        end = self._nic(way[-1], plan.nic)
        hops = [(FIRST_NIC_TABLE + plan.nic, plan.local_nic), (None, plan.nic), (None, plan.local_nic)]
        for (table, out), here, there in zip(hops, way, way[1:], strict=False):
            device = self._nic(here, out).name
            route = f"{end.address}/32 dev {device}" + ("" if table is None else f" table {table}")
            neighbour = f"neighbour replace {end.address} nud permanent dev {device} lladdr"
            yield (
                here,
                [f"route replace {route}", f"{neighbour} {self._nic(there, out).mac}"],
                [f"route delete {route}", f"{neighbour} {end.mac}"],
            )

    def _nic(self, host: str, number: int) -> Nic:
        return self._topology.host(host).nics[number]
