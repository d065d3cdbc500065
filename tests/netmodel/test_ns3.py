# SPDX-License-Identifier: Apache-2.0
"""Topology files of ns-3 simulations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import Topology, clos, equal_cost_paths, fat_tree, leaf_spine
from netmodel.ns3 import read_ns3

SMALL = """6 2 6
4 5
0 4 25Gbps 1000ns 0.000000
1 4 25Gbps 1us 0
2 5 25Gbps 0.001ms 0
3 5 25Gbps 1000ns 0
4 5 100Gbps 2us 0
1 5 25Gbps 1us 0
"""
"""As HPCC's files: four hosts, of which one is on both leaves, which a link joins."""


def written(topology: Topology) -> str:
    """The links of a topology in the format, hosts first."""
    nodes = [host.name for host in topology.hosts] + [switch.name for switch in topology.switches]
    number = {name: place for place, name in enumerate(nodes)}
    lines = [f"{len(nodes)} {len(topology.switches)} {len(topology.links)}"]
    lines.append(" ".join(str(number[switch.name]) for switch in topology.switches))
    for link in topology.links:
        delay_ns = round((link.delay_s or 0.0) * 1e9)
        lines.append(f"{number[link.a.node]} {number[link.b.node]} {link.rate_bps}bps {delay_ns}ns 0.0")
    return "\n".join(lines) + "\n"


def test_hosts_have_a_nic_for_each_link_and_links_their_rate_and_delay() -> None:
    topology = read_ns3(SMALL)
    assert [(host.name, len(host.nics)) for host in topology.hosts] == [("h0", 1), ("h1", 2), ("h2", 1), ("h3", 1)]
    assert [(switch.name, switch.role) for switch in topology.switches] == [("leaf4", "leaf"), ("leaf5", "leaf")]
    assert [(str(link.a), str(link.b)) for link in topology.links] == [
        ("h0:1", "leaf4:1"),
        ("h1:1", "leaf4:2"),
        ("h2:1", "leaf5:1"),
        ("h3:1", "leaf5:2"),
        ("leaf4:3", "leaf5:3"),
        ("h1:2", "leaf5:4"),
    ]
    assert [link.delay_s for link in topology.links] == [1e-6, 1e-6, 1e-6, 1e-6, 2e-6, 1e-6]
    assert [link.rate_bps for link in topology.links] == [25 * 10**9] * 4 + [100 * 10**9, 25 * 10**9]


@given(
    st.one_of(
        st.builds(leaf_spine, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.just(10**9)),
        st.builds(clos, *(st.integers(1, 3) for _ in range(5)), st.just(10**9), core_delay_s=st.just(5e-6)),
        st.just(fat_tree(4, 10**9)),
    )
)
def test_a_fabric_that_is_written_has_the_same_switches_links_and_addresses(topology: Topology) -> None:
    found = read_ns3(written(topology))
    assert [switch.role for switch in found.switches] == [switch.role for switch in topology.switches]
    assert [link.rate_bps for link in found.links] == [link.rate_bps for link in topology.links]
    assert [link.delay_s for link in found.links] == [link.delay_s or 0.0 for link in topology.links]
    assert [host.nics for host in found.hosts] == [host.nics for host in topology.hosts]
    ends = topology.hosts[0].name, topology.hosts[-1].name
    if ends[0] != ends[1]:
        ways = equal_cost_paths(found, found.hosts[0].name, found.hosts[-1].name)
        assert len(ways) == len(equal_cost_paths(topology, *ends))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (SMALL, "", "t.txt:1: has no numbers of nodes, switches and links, and no switches after them"),
        ("6 2 6", "6 2", "t.txt:1: must have three numbers"),
        ("6 2 6", "6 2 x", "t.txt:1: 'x' is not a whole number"),
        ("6 2 6", "6 2 -6", "t.txt:1: '-6' is not a whole number"),
        ("6 2 6", "6 2 9999999999", "t.txt:1: '9999999999' is not a whole number of at most 9 digits"),
        ("6 2 6", "6 2 999999999", "t.txt:1: must have switches, more nodes than these, and at most 1,000,000 of each"),
        ("6 2 6", "999999999 2 6", "t.txt:1: must have switches, more nodes"),
        ("6 2 6", "6 6 6", "t.txt:1: must have switches, more nodes"),
        ("6 2 6", "6 2 5", "t.txt:1: says 5 links, and 6 lines follow the switches"),
        ("6 2 6", "7 2 6", "t.txt:1: host 6 has no link"),
        ("4 5\n", "4 4\n", "t.txt:2: must have the different numbers of 2 switches"),
        ("4 5\n", "4 6\n", "t.txt:2: 6 is not a node of 0 to 5"),
        ("4 5\n", "4\n", "t.txt:2: must have the different numbers of 2 switches"),
        ("1 4 25Gbps 1us 0", "1 4 25Gbps 1us", "t.txt:4: a link has five words"),
        ("1 4 25Gbps 1us 0", "1 9 25Gbps 1us 0", "t.txt:4: 9 is not a node of 0 to 5"),
        ("1 4 25Gbps 1us 0", "1 4 25GBps 1us 0", "t.txt:4: '25GBps' is not a rate"),
        ("1 4 25Gbps 1us 0", "1 4 25Gbps 1min 0", "t.txt:4: '1min' is not a time"),
        (
            "1 4 25Gbps 1us 0",
            "1 4 25Gbps 2s 0",
            "t.txt:4: the delay of link h1:1 to leaf4:2 is 2.0 s, but must lie in 0..1",
        ),
        ("1 4 25Gbps 1us 0", "1 4 25Gbps 1us 0.01", "t.txt:4: the error rate must be 0"),
        ("1 4 25Gbps 1us 0", "1 4 25Gbps 1us few", "t.txt:4: could not convert string to float"),
        ("1 4 25Gbps 1us 0", "1 0 25Gbps 1us 0", "t.txt:4: joins two hosts; one end must be a switch"),
        ("4 5 100Gbps", "4 4 100Gbps", "t.txt:7: link leaf4:3 to leaf4:4 joins switch 'leaf4' to itself"),
    ],
)
def test_a_bad_file_is_one_sentence(old: str, new: str, told: str) -> None:
    assert old in SMALL
    with pytest.raises(ValueError, match=r"t\.txt:") as refusal:
        read_ns3(SMALL.replace(old, new, 1), "t.txt")
    assert str(refusal.value).startswith(told)


def test_switches_far_from_hosts_are_refused() -> None:
    chain = "\n".join(f"{node} {node + 1} 1Gbps 1us 0" for node in range(4))
    with pytest.raises(ValueError, match=r"t\.txt:2: switch 4 is not within three hops of a host"):
        read_ns3(f"5 4 4\n1 2 3 4\n{chain}\n", "t.txt")
    with pytest.raises(ValueError, match=r"t\.txt:257: switch 0 has more than 254 hosts"):
        read_ns3("256 1 255\n0\n" + "\n".join(f"{host} 0 1Gbps 1us 0" for host in range(1, 256)), "t.txt")
