# SPDX-License-Identifier: Apache-2.0
"""Fabrics with three tiers: wiring, names, and what they are called in YAML."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import (
    PortRef,
    SpecError,
    Topology,
    TopologySpec,
    clos,
    derived_hash_seed,
    dump_topology,
    equal_cost_paths,
    fat_tree,
    leaf_spine,
    parse_yaml,
    pods,
    rail_only,
    tiers,
    top_switches,
    uplinks,
)

RATE, AGG_RATE, CORE_RATE = 10_000_000, 20_000_000, 40_000_000


def read(text: str) -> Topology:
    return parse_yaml(text, TopologySpec, file="t.yaml").topology


def cables(topology: Topology) -> Counter[tuple[str, str, int]]:
    """The links by the names of their ends and their rate."""
    return Counter((link.a.node, link.b.node, link.rate_bps) for link in topology.links)


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    parallel=st.integers(1, 2),
)
def test_agg_a_of_every_pod_has_the_same_cores(shape: tuple[int, int, int, int, int], parallel: int) -> None:
    count, leaves, aggs, cores, hosts = shape
    expected: Counter[tuple[str, str, int]] = Counter()
    for pod in range(count):
        for leaf in range(pod * leaves, (pod + 1) * leaves):
            for host in range(leaf * hosts, (leaf + 1) * hosts):
                expected[f"h{host + 1}", f"leaf{leaf + 1}", RATE] = 1
            for agg in range(aggs):
                expected[f"leaf{leaf + 1}", f"agg{pod * aggs + agg + 1}", AGG_RATE] = parallel
        for agg in range(aggs):
            for core in range(agg * cores, (agg + 1) * cores):
                expected[f"agg{pod * aggs + agg + 1}", f"core{core + 1}", CORE_RATE] = parallel
    topology = clos(*shape, RATE, AGG_RATE, CORE_RATE, parallel)
    assert cables(topology) == expected
    assert [switch.dpid for switch in topology.switches] == list(range(1, len(topology.switches) + 1))
    assert all(switch.hash_seed == derived_hash_seed(switch.dpid) for switch in topology.switches)
    for switch in topology.switches:  # ports are numbered without gaps
        ports = sorted(port.port for port in topology.linked_ports() if port.node == switch.name)
        assert ports == list(range(1, len(ports) + 1))


def test_ports_are_hosts_or_lower_switches_first() -> None:
    topology = clos(2, 2, 2, 2, 3, RATE, parallel_links=2)
    assert str(topology.peer(PortRef("leaf3", 3))) == "h9:1"
    assert [str(topology.peer(PortRef("leaf3", port))) for port in (4, 5, 6, 7)] == [
        "agg3:1",
        "agg3:2",
        "agg4:1",
        "agg4:2",
    ]
    assert [str(topology.peer(PortRef("agg4", port))) for port in (5, 6, 7, 8)] == [
        "core3:3",
        "core3:4",
        "core4:3",
        "core4:4",
    ]


def test_hosts_have_the_addresses_of_a_leaf_spine() -> None:
    three, two = clos(2, 2, 1, 1, 3, RATE), leaf_spine(4, 1, 3, RATE)
    assert three.hosts == two.hosts
    assert clos(2, 2, 1, 1, 3, RATE, ipv6=True).hosts == leaf_spine(4, 1, 3, RATE, ipv6=True).hosts


def test_a_fat_tree_has_full_bisection_and_every_path() -> None:
    topology = fat_tree(4, RATE)
    assert (topology.name, len(topology.hosts), len(topology.switches), len(topology.links)) == (
        "fat-tree-4",
        16,
        20,
        48,
    )
    by_role = Counter(switch.role for switch in topology.switches)
    assert by_role == {"leaf": 8, "agg": 8, "core": 4}
    assert len(equal_cost_paths(topology, "h1", "h2")) == 1
    assert len(equal_cost_paths(topology, "h1", "h3")) == 2
    assert len(equal_cost_paths(topology, "h1", "h16")) == 4


def test_they_are_read_from_yaml_and_written_out() -> None:
    text = (
        "clos: {pods: 2, leaves: 3, aggs: 2, cores_per_agg: 1, hosts_per_leaf: 4, host_rate: 10M, agg_rate: 20M, "
        "core_rate: 40M, parallel_links: 2, mtu_bytes: 1500, name: lab}"
    )
    built = clos(2, 3, 2, 1, 4, RATE, AGG_RATE, CORE_RATE, 2, 1500, name="lab")
    assert read(text) == built
    assert read(dump_topology(built)) == built
    assert read("fat_tree: {k: 4, host_rate: 10M, ipv6: true}") == fat_tree(4, RATE, ipv6=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fat_tree: {k: 5, host_rate: 1G}", "t.yaml:1: fat_tree.k: k is 5, but must be an even number in 2..64"),
        (
            "clos: {pods: 0, leaves: 1, aggs: 1, cores_per_agg: 1, hosts_per_leaf: 255, host_rate: 1G}",
            "t.yaml:1: clos.pods: pods is 0, but must lie in 1..65535",
        ),
        (
            "clos: {pods: 256, leaves: 257, aggs: 1, cores_per_agg: 1, hosts_per_leaf: 1, host_rate: 1G}",
            "t.yaml:1: clos.leaves: 256 pods have 65792 leaves, and there are addresses for 65536",
        ),
        (
            "clos: {pods: 64, leaves: 64, aggs: 64, cores_per_agg: 256, hosts_per_leaf: 1, host_rate: 1G}",
            "these numbers make 1,314,816 links, and 1,000,000 are the most",
        ),
    ],
)
def test_impossible_numbers_are_refused_with_their_place(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read(text)
    assert expected in str(refusal.value)


def test_tiers_and_pods_are_known_whatever_the_upper_roles_are_called() -> None:
    topology = fat_tree(4, RATE)
    plain = replace(
        topology,
        switches=tuple(
            replace(switch, role="leaf" if switch.role == "leaf" else "spine") for switch in topology.switches
        ),
    )
    for tree in (topology, plain):
        assert Counter(tiers(tree).values()) == {1: 8, 2: 8, 3: 4}
        assert top_switches(tree) == ["core1", "core2", "core3", "core4"]
        assert len(uplinks(tree)) == 32
        assert len(set(pods(tree).values())) == 4
        assert pods(tree)["leaf1"] == pods(tree)["leaf2"] == pods(tree)["agg2"] != pods(tree)["leaf3"]
        assert "core1" not in pods(tree)


@pytest.mark.parametrize("optical", [0, 2])
def test_two_tiers_are_one_pod(optical: int) -> None:
    topology = leaf_spine(3, 2, 1, RATE, optical_switches=optical)
    assert top_switches(topology) == ["spine1", "spine2"]
    assert len(uplinks(topology)) == (0 if optical else 6)


def test_rails_without_spines_have_no_upper_tier() -> None:
    topology = rail_only(2, 2, RATE, RATE)
    assert (top_switches(topology), uplinks(topology)) == ([], ())
