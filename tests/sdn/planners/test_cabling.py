# SPDX-License-Identifier: Apache-2.0
"""Topologies as fabrics of numbers and back, and hashed ECMP against `netmodel`'s own walk."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import (
    CrcHash,
    EcmpHash,
    Flow,
    Link,
    NoRouteError,
    OvsHash,
    PortRef,
    Topology,
    XorHash,
    equal_cost_paths,
    forwarding,
    leaf_spine,
    path_of,
)
from sdn.planners import LOCAL, PLANNERS, UNREACHABLE, Commodities, Plan, cabling, ecmp_hashed


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same fabric with links, ports' ends and switches in another order, and the switches' ports renumbered."""
    rng = random.Random(seed)
    switches = {switch.name for switch in topology.switches}
    port: dict[PortRef, PortRef] = {}
    for name in switches:
        mine = [ref for ref in topology.linked_ports() if ref.node == name]
        numbers = rng.sample(range(1, 2 * len(mine) + 1), len(mine))
        port.update({ref: PortRef(name, number) for ref, number in zip(mine, numbers, strict=True)})
    links = []
    for link in topology.links:
        ends = [port.get(link.a, link.a), port.get(link.b, link.b)]
        rng.shuffle(ends)
        links.append(Link(*ends, link.rate_bps))
    rng.shuffle(links)
    order = rng.sample(topology.switches, len(switches))
    return Topology(topology.name, topology.hosts, tuple(order), tuple(links), topology.mtu_bytes)


def between_switches(topology: Topology) -> list[Link]:
    return [link for link in topology.links if not any(topology.has_host(end.node) for end in (link.a, link.b))]


def pairs_of(topology: Topology, seed: int, most: int = 40) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    names = [host.name for host in topology.hosts]
    return [(a, b) for a, b in ((rng.choice(names), rng.choice(names)) for _ in range(most)) if a != b]


@pytest.mark.parametrize("name", ["ecmp", "greedy", "optimal"])
@settings(derandomize=True, max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 5))
def test_plans_are_equal_cost_paths(name: str, seed: int, dead: int) -> None:
    topology = shuffled(leaf_spine(4, 3, 3, 10**7, parallel_links=2), seed)
    dead_links = frozenset(random.Random(seed).sample(between_switches(topology), dead))
    routes = forwarding(topology, dead_links)
    cables = cabling(topology, dead_links)
    pairs = pairs_of(topology, seed)
    plan = PLANNERS[name](cables.fabric, cables.commodities(pairs))
    for i, (src, dst) in enumerate(pairs):
        path = cables.path(plan, i)
        if plan.spine[i] == UNREACHABLE:
            assert path is None
        else:
            assert path in equal_cost_paths(topology, src, dst, routes=routes)


@pytest.mark.parametrize("ecmp_hash", [OvsHash(), CrcHash("crc32"), XorHash()], ids=str)
@settings(derandomize=True, max_examples=15)
@given(st.integers(0, 1000), st.integers(0, 6))
def test_hashed_paths_are_those_of_netmodel(ecmp_hash: EcmpHash, seed: int, dead: int) -> None:
    topology = shuffled(leaf_spine(3, 3, 3, 10**7, parallel_links=2), seed)
    dead_links = frozenset(random.Random(seed).sample(between_switches(topology), dead))
    routes = forwarding(topology, dead_links)
    cables = cabling(topology).without(dead_links)
    pairs = pairs_of(topology, seed)
    ports = np.random.default_rng(seed).integers(0xC000, 0x10000, len(pairs))
    plan = ecmp_hashed(cables, cables.commodities(pairs), ecmp_hash, src_port=ports)
    for i, (src, dst) in enumerate(pairs):
        flow = Flow(topology.host(src).nics[0].address, topology.host(dst).nics[0].address, int(ports[i]))
        try:
            expected = path_of(topology, flow, ecmp_hash, routes=routes)
        except NoRouteError:
            expected = None
        if expected is not None and len(expected) > 4:
            expected = None  # the long way round, by a third leaf
        assert cables.path(plan, i) == expected


def test_numbers_and_names() -> None:
    topology = leaf_spine(2, 2, 2, 10**7, 4 * 10**7)
    cables = cabling(topology)
    assert (cables.fabric.tors, cables.fabric.spines, cables.fabric.parallel, cables.fabric.nics) == (2, 2, 1, 4)
    assert cables.fabric.nic_tor.tolist() == [0, 0, 1, 1]
    assert set(cables.fabric.nic_rate_bps.tolist()) == {1e7}
    assert set(cables.fabric.link_rate_bps.ravel().tolist()) == {4e7}
    assert [cables.nic(host.name) for host in topology.hosts] == [0, 1, 2, 3]
    uplink = topology.link_at(PortRef("leaf2", 4))
    assert cables.link(uplink) == (1, 1, 0)
    assert cables.without([uplink]).fabric.link_rate_bps[1, 1, 0] == 0
    host_link = topology.link_at(PortRef("h1", 1))
    with pytest.raises(KeyError, match="h1:1 to leaf1:1 does not join a leaf and a spine"):
        cables.link(host_link)
    with pytest.raises(KeyError, match="the link of h1:1 is dead"):
        cabling(topology, frozenset([host_link])).nic("h1")
    with pytest.raises(KeyError, match="no host 'h9'"):
        cables.nic("h9")


def test_a_leaf_alone_needs_no_spine() -> None:
    topology = leaf_spine(1, 1, 3, 10**7)
    bare = Topology("t", topology.hosts, topology.switches[:1], topology.links[:3], 1500)
    cables = cabling(bare)
    plan: Plan = PLANNERS["optimal"](cables.fabric, cables.commodities([("h1", "h2")]))
    assert cables.path(plan, 0) == cables.path_by(0, 1, LOCAL, -1, -1) == (PortRef("h1", 1), PortRef("leaf1", 2))
    assert plan.rates.tolist() == [1e7]
    assert len(Commodities.of([], [])) == 0
