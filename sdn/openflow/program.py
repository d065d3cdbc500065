# SPDX-License-Identifier: Apache-2.0
"""The program of every switch, and the steps from one program to the next. Pure: no switch, no OpenFlow library.

A program is derived from `netmodel.forwarding` alone, so switches do what the predictor computes. A route to an address
with one port is a plain output. With several ports it names a select group. All hosts behind the same switch share a
group, so that the loss of a link changes a few groups instead of the routes of all hosts.

Bucket ids are the indices of the live members, ascending by port, in every state of the fabric. After a link has
failed, `forwarding(topology, dead_links)` gives the members, and the predictor needs nothing else. The cost is that the
loss of a member may also move flows of other members, as with a modulo hash in hardware. Stable ids would avoid that,
but predictions would then depend on the history of failures.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from netmodel import Link, Switch, Topology, forwarding
from netmodel.flow import Address
from sdn.openflow.networks import Network, networks_of
from sdn.openflow.source_rules import Pinning, SourceMatch, source_rules
from sdn.openflow.steering import Steering

_Table: TypeAlias = Mapping[Address, tuple[int, ...]]

_FIRST_SINGLE = 0x10000
"""Numbers of groups with one port start here, above those of groups by switch."""


@dataclass(frozen=True, slots=True)
class Output:
    """An action: send the packet by one port."""

    port: int


@dataclass(frozen=True, slots=True)
class ViaGroup:
    """Send by the member that a select group chooses."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Route:
    """The action of a switch for packets to one address. The last hop sets `rewrite_mac` as Ethernet destination."""

    target: Output | ViaGroup
    rewrite_mac: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class IngressMatch:
    """Matches packets to `network` that enter by `port`."""

    port: int
    network: Network


@dataclass(frozen=True, slots=True)
class Group:
    """A select group: `ports[k]` is the output of bucket id k, weight 1; `hash_seed` is its selection_method_param."""

    group_id: int
    hash_seed: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The state of one switch: routes, the groups that they use, and ARP answers (address to MAC).

    `pins` give the port for packets with certain source ports and precede routes. `steers` are for packets that enter
    by certain ports and precede pins. Other packets that enter by a port of `closed` are dropped and counted.
    """

    routes: Mapping[Address, Route]
    groups: Mapping[int, Group]
    arp: Mapping[Address, str]
    pins: Mapping[SourceMatch, int] = field(default_factory=dict)
    steers: Mapping[IngressMatch, Route] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """Steps from one program to another. This order ensures that no packet meets a missing group.

    Old pins and steers are deleted before new ones are added, because rules for another number of ways would overlap;
    meanwhile packets use the group, which is already up to date. Ports are closed before that and opened after it, so
    that no packet leaves its job.
    """

    add_groups: tuple[Group, ...]
    modify_groups: tuple[Group, ...]
    put_routes: tuple[tuple[Address, Route], ...]
    delete_routes: tuple[Address, ...]
    delete_groups: tuple[int, ...]
    delete_pins: tuple[SourceMatch, ...] = ()
    put_pins: tuple[tuple[SourceMatch, int], ...] = ()
    close: tuple[int, ...] = ()
    delete_steers: tuple[IngressMatch, ...] = ()
    put_steers: tuple[tuple[IngressMatch, Route], ...] = ()
    open: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)


def programs(
    topology: Topology,
    dead_links: frozenset[Link] = frozenset(),
    pinning: Pinning = "hash",
    steering: Steering | None = None,
) -> dict[str, Program]:
    """The program of every switch that forwards by address, by switch name.

    Raises ValueError as `source_rules` does with `pinning` "rules", and when `steering` does not fit the topology.
    """
    routing = forwarding(topology, dead_links) if steering is None else steering.routes(topology, dead_links)
    groups_of = routing.groups
    pins = source_rules(topology, routing) if pinning == "rules" else {}
    numbers = {switch.name: number for number, switch in enumerate(topology.switches, start=1)}
    nics = {nic.address: nic.mac for host in topology.hosts for nic in host.nics}
    attachments = {}
    for address in nics:
        try:
            attachments[address] = topology.peer(topology.port_of(address))
        except KeyError:
            continue  # a NIC without a cable: no switch forwards to it
    ingress: defaultdict[str, dict[int, _Table]] = defaultdict(dict)
    for entry, table in routing.ingress.items():
        ingress[entry.node][entry.port] = table
    result = {}
    for switch in topology.switches:
        if switch.role == "ocs":
            continue
        routes: dict[Address, Route] = {}
        groups: dict[int, Group] = {}
        for address, ports in groups_of[switch.name].items():
            home = attachments[address].node
            if len(ports) == 1:
                routes[address] = Route(Output(ports[0]), nics[address] if home == switch.name else None)
                continue
            group_id = numbers[home]
            groups.setdefault(group_id, Group(group_id, switch.hash_seed, ports))
            routes[address] = Route(ViaGroup(group_id))
        has_hosts = any(port.node == switch.name for port in attachments.values())
        steered = _Steered(switch, routes)
        for number, table in ingress[switch.name].items():
            steered.add(number, table, groups_of[switch.name])
        result[switch.name] = Program(
            routes,
            groups | steered.groups,
            nics if has_hosts else {},
            pins.get(switch.name, {}),
            steered.steers,
            frozenset(steered.closed),
        )
    return result


class _Steered:
    """Collects the rules of one switch for packets by ingress port."""

    def __init__(self, switch: Switch, routes: Mapping[Address, Route]) -> None:
        self.steers: dict[IngressMatch, Route] = {}
        self.groups: dict[int, Group] = {}
        self.closed: set[int] = set()
        self._switch, self._routes = switch, routes

    def add(self, port: int, table: _Table, usual: _Table) -> None:
        """The rules for one ingress port: those that differ from the routes, or all if some address is closed."""
        if not usual.keys() <= table.keys():
            self.closed.add(port)
        addresses: defaultdict[Route, list[Address]] = defaultdict(list)
        for address, ways in table.items():
            route = self._routes[address]
            if ways != usual[address]:
                route = Route(self._only(*ways))
            if port in self.closed or route != self._routes[address]:
                addresses[route].append(address)
        for route, members in addresses.items():
            self.steers.update((IngressMatch(port, network), route) for network in networks_of(members))

    def _only(self, port: int) -> ViaGroup:
        """A group with one member. Its hash makes the datapath list flows one by one, as with several members."""
        group = Group(_FIRST_SINGLE + port, self._switch.hash_seed, (port,))
        self.groups[group.group_id] = group
        return ViaGroup(group.group_id)


def difference(old: Program, new: Program) -> Change:
    """The smallest change from `old` to `new`. ARP answers depend on the cabling alone and never change."""
    return Change(
        add_groups=tuple(group for number, group in new.groups.items() if number not in old.groups),
        modify_groups=tuple(
            group for number, group in new.groups.items() if number in old.groups and old.groups[number] != group
        ),
        put_routes=tuple((address, route) for address, route in new.routes.items() if old.routes.get(address) != route),
        delete_routes=tuple(address for address in old.routes if address not in new.routes),
        delete_groups=tuple(number for number in old.groups if number not in new.groups),
        delete_pins=tuple(match for match in old.pins if match not in new.pins),
        put_pins=tuple((match, port) for match, port in new.pins.items() if old.pins.get(match) != port),
        close=tuple(sorted(new.closed - old.closed)),
        delete_steers=tuple(match for match in old.steers if match not in new.steers),
        put_steers=tuple((match, route) for match, route in new.steers.items() if old.steers.get(match) != route),
        open=tuple(sorted(old.closed - new.closed)),
    )


EMPTY = Program({}, {}, {})
"""The program of a switch whose state has been deleted."""
