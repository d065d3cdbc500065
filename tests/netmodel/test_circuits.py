# SPDX-License-Identifier: Apache-2.0
"""Forwarding through optical switches: switches that forward by address see joined cables as one link."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import (
    Circuits,
    Flow,
    Link,
    NoRouteError,
    OvsHash,
    PortRef,
    Topology,
    TopologyError,
    direct_connect,
    duplex,
    far_end,
    forwarding,
    leaf_spine,
    links_with_circuits,
    path_of,
    with_circuits,
)

RATE = 10**7


def straight(cabled: Topology, plain: Topology) -> Circuits:
    """The circuits with which `cabled`, through optical switches, joins what `plain` joins by cables."""
    joined: dict[str, dict[int, int]] = {}
    for link in plain.links:
        if not plain.has_host(link.a.node):
            a, b = cabled.peer(link.a), cabled.peer(link.b)
            assert a.node == b.node
            joined.setdefault(a.node, {}).update(duplex([(a.port, b.port)]))
    return joined


@pytest.mark.parametrize("switches", [1, 2, 3, 5])
@pytest.mark.parametrize(("leaves", "spines", "hosts", "parallel"), [(3, 3, 2, 1), (2, 4, 1, 2), (4, 4, 2, 1)])
def test_straight_circuits_give_the_plain_leaf_spine(
    leaves: int, spines: int, hosts: int, parallel: int, switches: int
) -> None:
    plain = leaf_spine(leaves, spines, hosts, RATE, parallel_links=parallel)
    cabled = leaf_spine(leaves, spines, hosts, RATE, parallel_links=parallel, optical_switches=switches)
    seen = with_circuits(cabled, straight(cabled, plain))
    assert replace(seen, name=plain.name) == plain
    assert forwarding(seen).groups == forwarding(plain).groups
    ports = [sum(end.node == f"ocs{k + 1}" for end in cabled.linked_ports()) for k in range(switches)]
    assert sum(ports) == 2 * leaves * spines * parallel


def test_without_circuits_only_hosts_of_one_leaf_reach_each_other() -> None:
    cabled = leaf_spine(2, 2, 2, RATE, optical_switches=1)
    routes = forwarding(with_circuits(cabled, {}))
    flow = Flow(cabled.host("h1").nics[0].address, cabled.host("h3").nics[0].address, 50_000)
    assert cabled.host("h2").nics[0].address in routes.groups["leaf1"]
    with pytest.raises(NoRouteError):
        path_of(with_circuits(cabled, {}), flow, OvsHash(), routes=routes)


def test_leaves_can_be_joined_directly_and_a_one_way_circuit_is_no_link() -> None:
    cabled = leaf_spine(2, 2, 1, RATE, fabric_rate_bps=RATE // 2, optical_switches=1)
    one, other = PortRef("leaf1", 2), PortRef("leaf2", 2)
    there, back = cabled.peer(one).port, cabled.peer(other).port
    seen = with_circuits(cabled, {"ocs1": duplex([(there, back)])})
    assert Link(one, other, RATE // 2) in seen.links
    assert len(seen.links) == 2 + 1
    flow = Flow(cabled.host("h1").nics[0].address, cabled.host("h2").nics[0].address, 50_000)
    assert path_of(seen, flow, OvsHash()) == (PortRef("h1", 1), one, PortRef("leaf2", 1))
    assert far_end(cabled, {"ocs1": {there: back}}, one) == other
    assert len(with_circuits(cabled, {"ocs1": {there: back}}).links) == 2
    own = cabled.peer(PortRef("leaf1", 3)).port
    assert len(with_circuits(cabled, {"ocs1": duplex([(there, own)])}).links) == 2  # a leaf joined to itself
    with pytest.raises(TopologyError, match="used twice"):
        with_circuits(cabled, {"ocs1": {there: back, own: back}})


def test_a_circuit_has_the_delays_of_its_cables_together() -> None:
    cabled = leaf_spine(2, 1, 1, RATE, host_delay_s=1e-6, fabric_delay_s=2e-6, optical_switches=1)
    ends = [[cabled.peer(PortRef(*end)).port for end in (("leaf1", 2), ("leaf2", 2))]]
    seen = with_circuits(cabled, {"ocs1": duplex([(ends[0][0], ends[0][1])])})
    assert sorted((str(link.a), link.delay_s) for link in seen.links) == [
        ("h1:1", 1e-6),
        ("h2:1", 1e-6),
        ("leaf1:2", 4e-6),
    ]
    half = replace(cabled, links=tuple(replace(link, delay_s=None) for link in cabled.links))
    assert {link.delay_s for link in with_circuits(half, {"ocs1": duplex([(ends[0][0], ends[0][1])])}).links} == {None}


def test_a_dead_cable_is_a_dead_link_for_both_ends() -> None:
    plain = leaf_spine(2, 2, 1, RATE)
    cabled = leaf_spine(2, 2, 1, RATE, optical_switches=1)
    circuits = straight(cabled, plain)
    for end in (PortRef("leaf1", 2), PortRef("spine1", 1)):
        dead = links_with_circuits(cabled, circuits, [cabled.link_at(end)])
        assert dead == {plain.link_at(end)}
        assert forwarding(with_circuits(cabled, circuits), dead).groups == forwarding(plain, dead).groups
    host = cabled.link_at(PortRef("h1", 1))
    assert links_with_circuits(cabled, circuits, [host]) == {host}
    assert links_with_circuits(cabled, circuits, []) == frozenset()


def test_lit_returns_a_topology_without_optical_switches_unchanged() -> None:
    plain = leaf_spine(2, 2, 1, RATE)
    assert with_circuits(plain, {}) is plain


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.permutations(range(1, 7)))
def test_circuits_between_two_hosts_are_no_links_of_lit(order: list[int]) -> None:
    topology = direct_connect(6, 1, RATE)
    seen = with_circuits(topology, {"ocs1": duplex(zip(order[:3], order[3:], strict=True))})
    assert (seen.links, seen.switches) == ((), ())


def test_more_optical_switches_than_can_have_cables_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"optical_switches is 4, but must lie in 0..3: more would have no cable"):
        leaf_spine(2, 2, 1, RATE, optical_switches=4)
