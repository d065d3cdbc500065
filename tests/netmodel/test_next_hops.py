# SPDX-License-Identifier: Apache-2.0
from collections import deque
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import Link, PortRef, Topology, forwarding, leaf_spine
from tests.netmodel.sample import link, random_fabric, three_tier, wired


def reference(topology: Topology, dead: frozenset[Link]) -> dict[str, dict[IPv4Address, tuple[int, ...]]]:
    """Shortest-path groups, one address and one breadth-first search at a time."""
    near: dict[str, list[tuple[int, str]]] = {s.name: [] for s in topology.switches}
    entry: dict[str, PortRef] = {}
    for each in topology.links:
        for a, b in ((each.a, each.b), (each.b, each.a)):
            if each not in dead and a.node in near:
                near[a.node].append((a.port, b.node))
                if b.node not in near:
                    entry[b.node] = a
    groups: dict[str, dict[IPv4Address, tuple[int, ...]]] = {name: {} for name in near}
    for host in topology.hosts:
        if host.name not in entry:
            continue
        hops = {entry[host.name].node: 0}
        queue = deque(hops)
        while queue:
            here = queue.popleft()
            for _, there in near[here]:
                if there in near and there not in hops:
                    hops[there] = hops[here] + 1
                    queue.append(there)
        for name in hops:
            ports = [port for port, there in near[name] if hops.get(there) == hops[name] - 1]
            if hops[name] == 0:
                ports = [entry[host.name].port]
            groups[name][host.nics[0].address] = tuple(sorted(ports))
    return groups


@given(st.integers(0, 10**6))
def test_groups_are_all_shortest_paths_on_any_fabric(seed: int) -> None:
    topology, dead = random_fabric(seed)
    assert {name: dict(routes) for name, routes in forwarding(topology, dead).groups.items()} == reference(
        topology, dead
    )


def test_a_leaf_spine_with_parallel_links() -> None:
    groups = forwarding(leaf_spine(2, 2, 2, 10**7, parallel_links=2)).groups
    here, there = IPv4Address("10.0.0.2"), IPv4Address("10.0.1.1")
    assert groups["leaf1"][here] == (2,)
    assert groups["leaf1"][there] == (3, 4, 5, 6)
    assert groups["spine2"][there] == (3, 4)
    assert len(groups["leaf1"]) == 4


def test_three_tier_routes_go_no_higher_than_needed() -> None:
    topology = three_tier(pods=2, leaves=2, aggregations=2, cores=3)
    groups = forwarding(topology).groups
    neighbour, far = (topology.host(name).nics[0].address for name in ("h0-1", "h1-0"))
    assert groups["l0-0"][neighbour] == groups["l0-0"][far] == (2, 3)
    assert len(groups["a0-0"][neighbour]) == 1
    assert len(groups["a0-0"][far]) == 3


def test_a_dead_uplink_is_removed_from_every_group_that_used_it() -> None:
    topology = leaf_spine(3, 2, 1, 10**7)
    dead = topology.link_at(PortRef("leaf2", 2))  # to spine1
    groups = forwarding(topology, frozenset({dead})).groups
    to_2, to_3 = IPv4Address("10.0.1.1"), IPv4Address("10.0.2.1")
    assert groups["leaf2"][to_3] == (3,)
    assert groups["leaf1"][to_2] == (3,)  # spine1 no longer has a short way
    assert groups["leaf1"][to_3] == (2, 3)


def test_unreachable_addresses_are_absent_with_the_reason() -> None:
    topology = leaf_spine(2, 1, 1, 10**7)
    h2 = IPv4Address("10.0.1.1")
    cut = forwarding(topology, frozenset({topology.link_at(PortRef("leaf2", 2))})).groups
    assert h2 not in cut["leaf1"]
    assert list(cut["leaf2"]) == [h2]
    with pytest.raises(KeyError, match=r"switch 'leaf1' has no path to 10\.0\.1\.1, which is behind 'leaf2'"):
        cut["leaf1"][h2]
    unplugged = forwarding(topology, frozenset({topology.link_at(PortRef("h2", 1))})).groups
    with pytest.raises(KeyError, match=r"no NIC with address 10\.0\.1\.1 is attached"):
        unplugged["leaf2"][h2]


def test_optical_switches_do_not_forward() -> None:
    topology = wired({"h1": "l1", "h2": "l2"}, [("l1", "o1"), ("l2", "o1"), ("l1", "s1"), ("l2", "s1")])
    groups = forwarding(topology).groups
    assert dict(groups["o1"]) == {}
    assert groups["l1"][topology.host("h2").nics[0].address] == (3,)


def test_an_unknown_dead_link_is_refused() -> None:
    with pytest.raises(ValueError, match="dead link leaf1:7 to leaf2:7 is not a link of topology"):
        forwarding(leaf_spine(2, 1, 1, 10**7), frozenset({link("leaf1:7", "leaf2:7")}))


def test_a_fabric_of_many_hosts_shares_its_groups() -> None:
    topology = leaf_spine(64, 32, 128, 10**11)
    routes = forwarding(topology).groups["leaf1"]
    assert len(routes) == 64 * 128
    assert routes[IPv4Address("10.0.63.128")] == tuple(range(129, 161))
    assert len({id(group) for group in (routes[h.nics[0].address] for h in topology.hosts[128:])}) == 1
