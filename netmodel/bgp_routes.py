# SPDX-License-Identifier: Apache-2.0
"""The routes to which BGP converges on a fabric of routers. Pure.

Each router takes the neighbours with the shortest AS path, all of them where several are equally short, and refuses a
path that has its own AS (RFC 4271, sections 9.1.2 and 9.1.2.2). While all links live, these are the shortest paths of
`netmodel.forwarding`. With dead links they are fewer: a path that would go down and up again does not exist.
"""

from collections.abc import Collection, Mapping, Sequence

from netmodel.flow import Address
from netmodel.next_hops import Forwarding
from netmodel.router_plan import RouterPlan
from netmodel.topology import Link


def bgp_routes(
    plan: RouterPlan, dead_links: frozenset[Link] = frozenset(), drained: Collection[str] = ()
) -> Forwarding:
    """The routes of every router to all hosts without the dead links. Members of groups are in ascending order.

    drained: routers in graceful shutdown (RFC 8326). A router uses a path through them only if it has no other.
    """
    routes = _groups(plan, dead_links)
    if drained:
        around = _groups(plan, dead_links | {link for link in plan.links if {link.a.node, link.b.node} & set(drained)})
        for name, groups in routes.items():
            if name not in drained:
                groups.update(around[name])
    return Forwarding(routes, dead_links)


def _groups(plan: RouterPlan, dead_links: frozenset[Link]) -> dict[str, dict[Address, tuple[int, ...]]]:
    neighbours: dict[str, list[tuple[int, str]]] = {switch.name: [] for switch in plan.topology.switches}
    for link in plan.links:
        if link not in dead_links:
            neighbours[link.a.node].append((link.a.port, link.b.node))
            neighbours[link.b.node].append((link.b.port, link.a.node))
    groups: dict[str, dict[Address, tuple[int, ...]]] = {name: {} for name in neighbours}
    for home, hosts in plan.hosts.items():
        alive = {
            address: port
            for port, address in hosts.items()
            if plan.topology.link_at(plan.topology.port_of(address)) not in dead_links
        }
        if alive:
            groups[home].update({address: (port,) for address, port in alive.items()})
            for name, ports in _towards(home, neighbours, plan.as_numbers).items():
                groups[name].update(dict.fromkeys(alive, ports))
    return groups


def _towards(
    home: str, neighbours: Mapping[str, Sequence[tuple[int, str]]], as_numbers: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """By router other than `home`: the ports by which it sends to what is behind `home`."""
    paths: dict[str, tuple[int, ...]] = {home: (as_numbers[home],)}  # the AS path that each router announces
    found: dict[str, tuple[int, ...]] = {}
    frontier = [home]
    while frontier:
        offers: dict[str, list[str]] = {}
        for sender in frontier:
            for name in dict.fromkeys(peer for _, peer in neighbours[sender]):
                if name not in paths and as_numbers[name] not in paths[sender]:
                    offers.setdefault(name, []).append(sender)
        for name, senders in offers.items():
            found[name] = tuple(sorted(port for port, peer in neighbours[name] if peer in senders))
            paths[name] = (as_numbers[name], *paths[senders[0]])
        frontier = list(offers)
    return found
