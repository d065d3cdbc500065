# SPDX-License-Identifier: Apache-2.0
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import PortRef, Switch, Topology, equal_cost_paths, leaf_spine
from sdn.planners.disjoint import assign


def flows_per_leaf(fabric: Topology, pairs: list[tuple[str, str]]) -> tuple[Counter[str], Counter[str]]:
    """How many cross-leaf pairs leave and enter each leaf."""
    out: Counter[str] = Counter()
    into: Counter[str] = Counter()
    for src, dst in pairs:
        a, b = (fabric.peer(PortRef(name, 1)).node for name in (src, dst))
        if a != b:
            out[a] += 1
            into[b] += 1
    return out, into


@settings(deadline=None)
@given(st.data())
def test_the_load_of_every_leaf_is_optimal(data: st.DataObject) -> None:
    leaves, spines, hosts, parallel = (data.draw(st.integers(1, most)) for most in (4, 3, 4, 3))
    fabric = leaf_spine(leaves, spines, hosts, 10**7, parallel_links=parallel)
    names = [host.name for host in fabric.hosts]
    every_pair = [(a, b) for a in names for b in names if a != b]
    pairs = data.draw(st.lists(st.sampled_from(every_pair), unique=True, max_size=60)) if every_pair else []
    plan = assign(fabric, pairs)
    assert list(plan) == pairs
    for (src, dst), path in plan.items():
        assert path in equal_cost_paths(fabric, src, dst)
    load = Counter(port for path in plan.values() for port in path[1:-1])
    out, into = flows_per_leaf(fabric, pairs)
    uplinks = spines * parallel
    for port, flows in load.items():
        role = fabric.switch(port.node).role
        busiest = out[port.node] if role == "leaf" else into[fabric.peer(port).node]
        assert flows <= -(-busiest // uplinks)


def test_a_permutation_of_a_full_fabric_shares_no_link() -> None:
    fabric = leaf_spine(16, 16, 16, 10**11)
    sources = [host.name for host in fabric.hosts]
    for seed in range(5):
        targets = sources.copy()
        random.Random(seed).shuffle(targets)
        plan = assign(fabric, [pair for pair in zip(sources, targets, strict=True) if pair[0] != pair[1]])
        assert max(Counter(port for path in plan.values() for port in path).values()) == 1


def test_the_ring_of_the_demo_has_an_uplink_per_flow() -> None:
    fabric = leaf_spine(4, 4, 4, 10**7)
    ring = [f"h{4 * (i % 4) + i // 4 + 1}" for i in range(16)]
    plan = assign(fabric, [(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)])
    assert len({path[1] for path in plan.values()}) == len({path[2] for path in plan.values()}) == 16


def test_equal_arguments_give_equal_plans() -> None:
    fabric = leaf_spine(4, 4, 4, 10**7)
    pairs = [(f"h{i}", f"h{(5 * i) % 16 + 1}") for i in range(1, 17) if (5 * i) % 16 + 1 != i]
    assert assign(fabric, pairs) == assign(leaf_spine(4, 4, 4, 10**7), pairs)


def test_pairs_on_one_leaf_get_their_only_path() -> None:
    fabric = leaf_spine(1, 1, 2, 10**7)
    assert assign(fabric, [("h1", "h2")]) == {("h1", "h2"): (PortRef("h1", 1), PortRef("leaf1", 2))}
    assert assign(fabric, []) == {}


def without(fabric: Topology, *ports: PortRef) -> Topology:
    gone = {fabric.link_at(port) for port in ports}
    links = tuple(link for link in fabric.links if link not in gone)
    return Topology(fabric.name, fabric.hosts, fabric.switches, links, fabric.mtu_bytes)


def test_other_topologies_are_refused() -> None:
    fabric = leaf_spine(2, 2, 1, 10**7)
    everything = [PortRef(leaf, port) for leaf in ("leaf1", "leaf2") for port in (2, 3)]
    with pytest.raises(ValueError, match="no leaf is linked to a spine"):
        assign(without(fabric, *everything), [("h1", "h2")])
    optical = (*fabric.switches, Switch("o1", "ocs", 9, 0))
    with pytest.raises(ValueError, match="switch 'o1' has the role 'ocs'"):
        assign(Topology("t", fabric.hosts, optical, fabric.links, 1500), [("h1", "h2")])
    upside_down = tuple(Switch(s.name, "spine", s.dpid, s.hash_seed) for s in fabric.switches)
    with pytest.raises(ValueError, match="link h1:1 to leaf1:1 joins neither"):
        assign(Topology("t", fabric.hosts, upside_down, fabric.links, 1500), [("h1", "h2")])


def test_bad_pairs_are_refused() -> None:
    fabric = leaf_spine(2, 1, 1, 10**7)
    with pytest.raises(ValueError, match="'h1' to 'h2' occurs twice"):
        assign(fabric, [("h1", "h2"), ("h1", "h2")])
    with pytest.raises(ValueError, match="joins host 'h1' to itself"):
        assign(fabric, [("h1", "h1")])
    with pytest.raises(KeyError, match="no host 'h7'"):
        assign(fabric, [("h1", "h7")])
    with pytest.raises(KeyError, match="plugged into port h1:1"):
        assign(without(fabric, PortRef("h1", 1)), [("h1", "h2")])
    disjoint = without(leaf_spine(2, 2, 1, 10**7), PortRef("leaf1", 2), PortRef("leaf2", 3))
    with pytest.raises(ValueError, match="no spine has links to the leaves of both 'h1' and 'h2'"):
        assign(disjoint, [("h1", "h2")])


def test_missing_links_are_avoided() -> None:
    fabric = without(leaf_spine(2, 2, 2, 10**7), PortRef("leaf2", 3))
    pairs = [("h1", "h3"), ("h2", "h4")]
    for (src, dst), path in assign(fabric, pairs).items():
        assert path in equal_cost_paths(fabric, src, dst)
        assert path[1] == PortRef("leaf1", 4)
