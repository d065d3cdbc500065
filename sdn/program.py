# SPDX-License-Identifier: Apache-2.0
"""What every switch must hold, and how to get from one state to the next. Pure: no switch, no OpenFlow library.

A program is derived from `netmodel.forwarding` alone, so what switches do and what the predictor walks cannot differ.
An address with one port is a plain output. With several it points at a select group; there is one group per switch on
which hosts live, so that the loss of a link rewrites a few groups and not the routes of every host behind them.

Bucket ids are the indices of the live members, ascending by port, in every state of the fabric: after a link died,
`forwarding(topology, dead_links)` names the members and the predictor needs nothing else. The price is that the death
of a member may move flows of other members too, as with a plain modulo hash in hardware; stable ids would spare these
but tie a prediction to the history of failures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from netmodel import Link, Topology, forwarding


@dataclass(frozen=True, slots=True)
class Output:
    """Send by one port."""

    port: int


@dataclass(frozen=True, slots=True)
class ViaGroup:
    """Send by the member that a select group chooses."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Route:
    """What a switch does with packets to one address. `rewrite_mac`: set as Ethernet destination (the last hop)."""

    target: Output | ViaGroup
    rewrite_mac: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A select group: `ports[k]` is the output of bucket id k, weight 1; `hash_seed` is its selection_method_param."""

    group_id: int
    hash_seed: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All of one switch: routes, the groups they use, and the ARP requests it answers itself (address to MAC)."""

    routes: Mapping[IPv4Address, Route]
    groups: Mapping[int, Group]
    arp: Mapping[IPv4Address, str]


@dataclass(frozen=True, slots=True)
class Change:
    """Steps from one program to another, to be carried out in this order so that no packet meets a missing group."""

    add_groups: tuple[Group, ...]
    modify_groups: tuple[Group, ...]
    put_routes: tuple[tuple[IPv4Address, Route], ...]
    delete_routes: tuple[IPv4Address, ...]
    delete_groups: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(
            self.add_groups or self.modify_groups or self.put_routes or self.delete_routes or self.delete_groups
        )


def programs(topology: Topology, dead_links: frozenset[Link] = frozenset()) -> dict[str, Program]:
    """The program of every switch that forwards by address, by switch name."""
    groups_of = forwarding(topology, dead_links).groups
    numbers = {switch.name: number for number, switch in enumerate(topology.switches, start=1)}
    nics = {nic.address: nic.mac for host in topology.hosts for nic in host.nics}
    attachments = {}
    for address in nics:
        try:
            attachments[address] = topology.peer(topology.port_of(address))
        except KeyError:
            continue  # a NIC without a cable: no switch forwards to it
    result = {}
    for switch in topology.switches:
        if switch.role == "ocs":
            continue
        routes: dict[IPv4Address, Route] = {}
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
        result[switch.name] = Program(routes, groups, nics if has_hosts else {})
    return result


def difference(old: Program, new: Program) -> Change:
    """The least change that turns `old` into `new`. ARP answers follow the cabling alone and never change."""
    return Change(
        add_groups=tuple(group for number, group in new.groups.items() if number not in old.groups),
        modify_groups=tuple(
            group for number, group in new.groups.items() if number in old.groups and old.groups[number] != group
        ),
        put_routes=tuple((address, route) for address, route in new.routes.items() if old.routes.get(address) != route),
        delete_routes=tuple(address for address in old.routes if address not in new.routes),
        delete_groups=tuple(number for number in old.groups if number not in new.groups),
    )


EMPTY = Program({}, {}, {})
"""The program of a switch that has just been wiped."""
