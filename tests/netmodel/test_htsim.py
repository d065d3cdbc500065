# SPDX-License-Identifier: Apache-2.0
"""htsim's topology files."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import Topology, clos, fat_tree, in_planes, leaf_spine, rail_only
from netmodel.htsim import read_topo, write_topo

TINY = """# the format of csg-htsim's leaf_spine_tiny.topo
Nodes 32
Tiers 2
Podsize 32

Tier 0
Downlink_speed_Gbps 100
Radix_Down 8
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 0
Oversubscribed 4

Tier 1
Downlink_speed_Gbps 200
Radix_Down 4
Downlink_Latency_ns 1000
Switch_Latency_ns 0
"""


SMALL = """# three tiers, with the keys of csg-htsim's fat_tree_1024.topo and the bundles of its zrs.topo
nodes 24
TIERS 3
podsize 12

Tier 0
downlink_speed_gbps 100
Radix_Down 6
Radix_Up 3
Oversubscribed 2
Downlink_Latency_ns 1000

Tier 1
Downlink_speed_Gbps 100
Radix_Down 2
Radix_Up 6
Downlink_Latency_ns 1000

Tier 2
Downlink_speed_Gbps 200
Radix_Down 6
Downlink_Latency_ns 600000
Bundle 3
"""
GBPS = 10**9


def with_one_delay(topology: Topology, delay_s: float) -> Topology:
    """The first link gets a delay."""
    first, *others = topology.links
    return replace(topology, links=(replace(first, delay_s=delay_s), *others))


def test_three_tiers_are_read_with_keys_in_any_case() -> None:
    assert read_topo(SMALL) == clos(
        *(2, 2, 3, 2, 6, 100 * GBPS, 100 * GBPS, 200 * GBPS, 1),
        core_parallel_links=3,
        host_delay_s=1e-6,
        agg_delay_s=1e-6,
        core_delay_s=600e-6,
    )


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    parallel=st.integers(1, 2),
    times=st.integers(1, 2),
    delays_ns=st.tuples(*(st.integers(0, GBPS) for _ in range(3))),
)
def test_three_tiers_that_are_written_are_read_again(
    shape: tuple[int, int, int, int], parallel: int, times: int, delays_ns: tuple[int, int, int]
) -> None:
    _, leaves, aggs, cores = shape
    low, high = 50 * cores * GBPS, 50 * leaves * GBPS  # as much up as down at every agg
    host, agg, core = (delay_ns / 1e9 for delay_ns in delays_ns)
    topology = clos(
        *(*shape, aggs * parallel * times, low, low, high, parallel),
        host_delay_s=host,
        agg_delay_s=agg,
        core_delay_s=core,
    )
    assert read_topo(write_topo(topology)) == topology


def test_a_written_fat_tree_has_what_htsim_needs() -> None:
    """csg-htsim's `set_custom_params` checks these numbers against each other."""
    assert write_topo(fat_tree(4, 100 * GBPS)) == (
        "Nodes 16\nTiers 3\nPodsize 4\n\n"
        "Tier 0\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\nRadix_Down 2\n"
        "Radix_Up 2\nOversubscribed 1\n\n"
        "Tier 1\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\nRadix_Down 2\n"
        "Radix_Up 2\nOversubscribed 1\nBundle 1\n\n"
        "Tier 2\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\nRadix_Down 4\nBundle 1\n"
    )


def test_a_leaf_may_have_faster_uplinks_where_htsim_takes_them() -> None:
    """csg-htsim 841d9e7 builds this fabric: the ports down are one and a half times those up, and slower by as much."""
    written = write_topo(clos(2, 2, 2, 3, 3, 100 * GBPS, 150 * GBPS, 100 * GBPS))
    assert "Radix_Down 3\nRadix_Up 2\nOversubscribed 1\n" in written


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("TIERS 3", "TIERS 4", "t.topo:3: Tiers is 4; topologies of 2 or 3 tiers are read"),
        ("nodes 24", "nodes 25", "t.topo:2: 25 nodes in pods of 12, and these on leaves of 6, do not divide evenly"),
        ("Radix_Down 2", "Radix_Down 3", "t.topo:15: aggs have 3 ports down, and 2 leaves of a pod need 2"),
        ("Radix_Down 6\nDown", "Radix_Down 7\nDown", "t.topo:21: cores have 7 ports down, and 2 pods need 6"),
        ("Radix_Up 6", "Radix_Up 5", "t.topo:16: 5 uplinks in bundles of 3 do not divide evenly"),
        ("Radix_Up 6\n", "", "t.topo:13: tier 1 needs Radix_Up above 0"),
        (SMALL[SMALL.index("Tier 2") :], "", "t.topo:6: a topology needs Nodes, Tier 0, Tier 1 and Tier 2"),
        ("Radix_Up 3\n", "Radix_Up 3\nBundle 2\n", "t.topo:10: Bundle of tier 0 must be 1"),
        ("podsize 12\n", "", "t.topo:2: 24 nodes in pods of 0,"),
        (
            "600000",
            "1000000001",
            "t.topo:22: Downlink_Latency_ns is 1000000001, and 1 s is the longest delay of a link",
        ),
        ("600000", "²", "t.topo:22: Downlink_Latency_ns needs one whole number of at most 18 digits"),
        ("600000", "9" * 5000, "t.topo:22: Downlink_Latency_ns needs one whole number of at most 18 digits"),
    ],
)
def test_a_bad_file_of_three_tiers_is_one_sentence(old: str, new: str, expected: str) -> None:
    assert old in SMALL
    with pytest.raises(ValueError, match=r"t\.topo:") as refusal:
        read_topo(SMALL.replace(old, new, 1), "t.topo")
    assert str(refusal.value).startswith(expected)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (in_planes(fat_tree(4, GBPS), 2), "is not a Clos of three tiers with equal pods"),
        (fat_tree(4, GBPS // 2), "not whole numbers of Gbit/s"),
        (clos(2, 2, 2, 2, 3, GBPS), "has 3 x 1 Gbit/s down and 2 x 1 up at each leaf; htsim takes only leaves with"),
        (clos(2, 2, 1, 1, 4, GBPS, 4 * GBPS), "has 4 x 1 Gbit/s down and 1 x 4 up at each leaf; htsim takes only"),
        (clos(2, 2, 4, 1, 2, 4 * GBPS, GBPS), "has 2 x 4 Gbit/s down and 4 x 1 up at each leaf; htsim takes only"),
        (clos(2, 1, 2, 2, 2, GBPS), "has 1 Gbit/s down and 2 up at each agg; htsim takes as much up"),
        (fat_tree(4, GBPS, agg_delay_s=1.5e-9), "has delays that are not whole nanoseconds"),
        (with_one_delay(fat_tree(4, GBPS), 1e-6), "has links of different delay on a tier"),
        (with_one_delay(leaf_spine(2, 1, 1, GBPS), 1e-6), "has links of different delay on a tier"),
    ],
)
def test_other_three_tiers_are_not_written(topology: Topology, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        write_topo(topology)


def test_a_leaf_spine_is_read() -> None:
    assert read_topo(TINY) == leaf_spine(*(4, 2, 8, 100 * 10**9, 200 * 10**9), host_delay_s=1e-6, fabric_delay_s=1e-6)
    none = read_topo(TINY.replace("Downlink_Latency_ns 1000\n", ""))
    assert none == leaf_spine(4, 2, 8, 100 * 10**9, 200 * 10**9)


def test_a_written_topology_has_what_htsim_needs() -> None:
    """csg-htsim 841d9e7 reads these bytes, and without `Oversubscribed` it refuses them."""
    assert write_topo(leaf_spine(2, 1, 8, 100 * 10**9, parallel_links=2)) == (
        "Nodes 16\nTiers 2\nPodsize 16\n\n"
        "Tier 0\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\n"
        "Radix_Down 8\nRadix_Up 2\nOversubscribed 4\n\n"
        "Tier 1\nDownlink_speed_Gbps 100\nDownlink_Latency_ns 1000\nSwitch_Latency_ns 0\nRadix_Down 4\nBundle 2\n"
    )


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([25, 400]))
def test_what_is_written_is_read_again(leaves: int, spines: int, times: int, parallel: int, gbps: int) -> None:
    shape = (leaves, spines, times * spines * parallel, gbps * 10**9, None, parallel)
    topology = leaf_spine(*shape, host_delay_s=600e-9, fabric_delay_s=0.0)
    assert read_topo(write_topo(topology)) == topology
    plain = leaf_spine(*shape)
    assert read_topo(write_topo(plain, 700)) == leaf_spine(*shape, host_delay_s=700e-9, fabric_delay_s=700e-9)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Tiers 2", "Tiers 3", "t.topo:6: a topology needs Nodes, Tier 0, Tier 1 and Tier 2"),
        ("Nodes 32", "Nodes many", "t.topo:2: Nodes needs one whole number"),
        ("Nodes 32", "Nodes 33", "t.topo:2: 33 nodes on leaves of 8, and 2 uplinks in bundles of 1, do not divide"),
        ("Radix_Down 4", "Radix_Down 5", "t.topo:16: spines have 5 ports down, and 4 leaves need 4"),
        ("Radix_Up 2", "Radix_Upwards 2", "t.topo:9: Radix_Upwards is not a key of a topology"),
        ("Radix_Up 2\n", "", "t.topo:6: tier 0 needs Radix_Up above 0"),
        ("Radix_Up 2", "Radix_Up 0", "t.topo:9: tier 0 needs Radix_Up above 0"),
        ("Nodes 32\n", "", "t.topo:5: a topology needs Nodes, Tier 0 and Tier 1"),
        (TINY[TINY.index("Tier 1") :], "", "t.topo:6: a topology needs Nodes, Tier 0 and Tier 1"),
        ("Radix_Up 2", "Radix_Up 900000000", "t.topo:2: spines is 900000000, but must lie in 1..65535"),
        ("Tier 1", "Tier 2", "t.topo:14: Tier 2 comes after 1 others; they count from 0 in order"),
        ("Tier 0\n", "", "t.topo:6: Downlink_speed_Gbps belongs to a tier; write Tier 0 before it"),
    ],
)
def test_a_bad_file_is_one_sentence(old: str, new: str, expected: str) -> None:
    assert old in TINY
    with pytest.raises(ValueError, match=r"t\.topo:") as refusal:
        read_topo(TINY.replace(old, new, 1), "t.topo")
    assert str(refusal.value).startswith(expected)


def test_other_topologies_are_not_written() -> None:
    with pytest.raises(ValueError, match="is not a leaf-spine of equal leaves"):
        write_topo(rail_only(2, 2, 10**9, 10**9))
    with pytest.raises(ValueError, match="not whole numbers of Gbit/s"):
        write_topo(leaf_spine(2, 2, 2, 10**8))
    for hosts, uplink_gbps in ((3, 100), (1, 100), (2, 400)):
        with pytest.raises(ValueError, match="2 uplinks on a leaf; htsim takes as many hosts as uplinks or a multiple"):
            write_topo(leaf_spine(2, 2, hosts, 10**11, uplink_gbps * 10**9))
