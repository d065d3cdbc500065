# SPDX-License-Identifier: Apache-2.0
"""Segments of routers, and those that pin a path."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from netmodel import PortRef, Topology, TopologyError, clos, equal_cost_paths, fat_tree, leaf_spine
from netmodel.segments import segment_addresses, segments_of

RATE = 10**9
TWO_TIERS = leaf_spine(2, 2, 1, RATE, ipv6=True)
PARALLEL = leaf_spine(2, 2, 1, RATE, parallel_links=2, ipv6=True)
THREE_TIERS = fat_tree(4, RATE, ipv6=True)


def test_every_port_between_routers_has_two_segments_of_its_own() -> None:
    own = segment_addresses(PARALLEL)
    assert (
        set(own.out)
        == set(own.pop)
        == {end for link in PARALLEL.links for end in (link.a, link.b)}
        - {end for link in PARALLEL.links if PARALLEL.has_host(link.a.node) for end in (link.a, link.b)}
    )
    assert len({*own.out.values(), *own.pop.values()}) == 2 * len(own.out)
    assert own.out[PortRef("leaf2", 3)] == ip_address("fd03:0:0:2::3")
    assert own.pop[PortRef("leaf2", 3)] == ip_address("fd03:0:0:2:1::3")


@pytest.mark.parametrize(
    ("topology", "count"), [(TWO_TIERS, 2), (PARALLEL, 3), (THREE_TIERS, 3), (clos(2, 1, 1, 1, 1, RATE, ipv6=True), 0)]
)
def test_segments_lead_along_the_path_whatever_routers_choose(topology: Topology, count: int) -> None:
    """Routers act on the segments one by one; where these have ended, the path must be the only one."""
    own = segment_addresses(topology)
    out, pop = ({segment: port for port, segment in of.items()} for of in (own.out, own.pop))
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    for path in equal_cost_paths(topology, src, dst):
        segments = segments_of(topology, path)
        assert len(segments) == count
        way, at = [path[0]], topology.peer(path[0]).node
        for segment in segments[:-1]:
            assert out[segment].node == at  # the packet is there when its segment is the destination
            way.append(out[segment])
            at = topology.peer(out[segment]).node
        assert not segments or pop[segments[-1]].node == at
        rest = {one[len(way) :] for one in equal_cost_paths(topology, src, dst) if one[: len(way)] == tuple(way)}
        assert rest == {path[len(way) :]}


def test_hosts_of_one_leaf_need_no_segments() -> None:
    (path,) = equal_cost_paths(THREE_TIERS, "h1", "h2")
    assert segments_of(THREE_TIERS, path) == ()


def test_ipv4_is_refused() -> None:
    with pytest.raises(TopologyError, match="segment routing needs IPv6"):
        segment_addresses(leaf_spine(2, 2, 1, RATE))
