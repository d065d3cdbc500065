# SPDX-License-Identifier: Apache-2.0
"""Fabrics of several planes: no link joins them, and every host has a NIC in each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netmodel import (
    PortRef,
    SpecError,
    Topology,
    TopologySpec,
    clos,
    dump_topology,
    equal_cost_paths,
    fat_tree,
    forwarding,
    in_planes,
    leaf_spine,
    parse_yaml,
)

RATE = 10_000_000


def read(text: str) -> Topology:
    return parse_yaml(text, TopologySpec, file="t.yaml").topology


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda ipv6: leaf_spine(3, 2, 2, RATE, ipv6=ipv6),
        lambda ipv6: clos(2, 2, 2, 1, 2, RATE, ipv6=ipv6),
        lambda ipv6: fat_tree(2, RATE, ipv6=ipv6),
    ],
)
def test_a_nic_of_each_host_is_in_each_plane(build: Callable[[bool], Topology], ipv6: bool) -> None:
    single = build(ipv6)
    topology = in_planes(single, 3)
    groups = forwarding(topology).groups
    for plane in range(3):
        for host in topology.hosts:
            nic = host.nics[plane]
            home = topology.peer(PortRef(host.name, plane + 1))
            assert (nic.name, home) == (
                f"nic{plane}",
                PortRef(f"p{plane + 1}{(at := single.peer(PortRef(host.name, 1))).node}", at.port),
            )
            for switch in topology.switches:
                assert (nic.address in groups[switch.name]) == switch.name.startswith(f"p{plane + 1}")
    first, last = topology.hosts[0].name, topology.hosts[-1].name
    for plane in range(3):
        paths = equal_cost_paths(topology, first, last, src_nic=plane, dst_nic=plane)
        assert len(paths) == len(equal_cost_paths(single, first, last))
        assert all(str(path[1].node).startswith(f"p{plane + 1}") for path in paths)


def test_one_plane_is_the_fabric_itself() -> None:
    plain = leaf_spine(2, 2, 2, RATE)
    assert in_planes(plain, 1) is plain


def test_planes_are_read_from_yaml_and_written_out() -> None:
    built = in_planes(leaf_spine(2, 2, 2, RATE), 2)
    assert built.name == "leaf-spine-2x2x2-2-planes"
    assert read("leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 10M, planes: 2}") == built
    assert read(dump_topology(built)) == built
    assert read("fat_tree: {k: 4, host_rate: 10M, planes: 4, name: hpn}") == in_planes(fat_tree(4, RATE), 4, name="hpn")
    text = "clos: {pods: 2, leaves: 2, aggs: 2, cores_per_agg: 1, hosts_per_leaf: 2, host_rate: 10M, planes: 2}"
    assert read(text) == in_planes(clos(2, 2, 2, 1, 2, RATE), 2)


@pytest.mark.parametrize(
    ("planes", "leaves", "expected"),
    [(0, 2, "planes is 0, but must lie in 1..64"), (3, 30_000, "3 planes have 90000 leaves, and there are addresses")],
)
def test_impossible_planes_are_refused_with_their_place(planes: int, leaves: int, expected: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read(f"leaf_spine: {{leaves: {leaves}, spines: 1, hosts_per_leaf: 1, host_rate: 10M, planes: {planes}}}")
    assert expected in str(refusal.value)
    assert "t.yaml:1:" in str(refusal.value)
