# SPDX-License-Identifier: Apache-2.0
"""The next hops that were read from switches: as operators send them, and the links that they use. Pure."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import TypeAlias

from netmodel import Link, PortRef, Topology
from netmodel.flow import Address
from sdn.path_service.group_lists import Group, Listed

NextHops: TypeAlias = Mapping[str, Mapping[Address, Sequence[int]]]
"""By switch and address: the ports of a group, in the order by which the switch's hash numbers them."""


def listed(next_hops: NextHops) -> Listed:
    """The next hops as JSON has them."""
    found: Listed = {}
    for switch, own in next_hops.items():
        groups: dict[tuple[int, ...], list[str]] = {}
        for address, ports in own.items():
            groups.setdefault(tuple(ports), []).append(str(address))
        found[switch] = [Group(list(ports), addresses) for ports, addresses in groups.items()]
    return found


def unlisted(groups: Listed) -> NextHops:
    """The inverse of `listed`. Raises ValueError for what is not an IP address."""
    return {
        switch: {ip_address(address): group.ports for group in own for address in group.addresses}
        for switch, own in groups.items()
    }


def unused_links(topology: Topology, next_hops: NextHops) -> frozenset[Link]:
    """The links between two switches that no route uses in one of their directions: those that are dead or drained."""
    used = {PortRef(switch, port) for switch, own in next_hops.items() for ports in own.values() for port in ports}
    switches = {switch.name for switch in topology.switches}
    return frozenset(
        link
        for link in topology.links
        if link.a.node in switches and link.b.node in switches and not used.issuperset((link.a, link.b))
    )
