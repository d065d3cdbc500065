# SPDX-License-Identifier: Apache-2.0
"""Rules on masked source ports: switches with these rules forward as predicted."""

from __future__ import annotations

import collections
from dataclasses import replace
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from netmodel import (
    ENTROPY_PORTS,
    Flow,
    OvsHash,
    Topology,
    equal_cost_paths,
    fat_tree,
    forwarding,
    leaf_spine,
    path_of,
    paths_of_ports,
    ports_for_path,
)
from sdn.openflow.program import EMPTY, Program, difference, programs
from sdn.openflow.source_rules import MOST_WAYS, SourceMatch, SourcePortRules, ecmp_hash_of, source_rules
from tests.sdn.openflow.test_program import apply


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[Topology, frozenset[object]]:
    """A small leaf-spine with up to two links between switches dead."""
    topology = leaf_spine(
        draw(st.integers(2, 4)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 3)),
        10**6,
        parallel_links=draw(st.integers(1, 3)),
    )
    switches = {switch.name for switch in topology.switches}
    between = [link for link in topology.links if {link.a.node, link.b.node} <= switches]
    return topology, frozenset(draw(st.lists(st.sampled_from(between), max_size=2, unique=True)))


def matching(rules: dict[SourceMatch, int], flow: Flow) -> list[int]:
    """The ports of all rules of a switch that match a packet."""
    return [
        port for rule, port in rules.items() if flow.dst in rule.network and flow.src_port & rule.mask == rule.src_port
    ]


@settings(derandomize=True, max_examples=60)
@given(fabrics(), st.lists(st.sampled_from(ENTROPY_PORTS), min_size=1, max_size=10))
def test_exactly_one_rule_matches_and_it_is_the_predicted_one(
    made: tuple[Topology, frozenset[object]], ports: list[int]
) -> None:
    topology, dead = made
    routes = forwarding(topology, dead)  # type: ignore[arg-type]
    rules = source_rules(topology, routes)
    chooser = SourcePortRules.of(topology)
    for switch in topology.switches:
        for address, members in routes.groups[switch.name].items():
            for port in ports:
                flow = Flow(IPv4Address("10.9.9.9"), address, port)
                found = matching(rules[switch.name], flow)
                if len(members) == 1:
                    assert found == []
                    continue
                (member,) = chooser.select(flow.fields(), switch.hash_seed, len(members))
                assert found == [members[member]]


@settings(derandomize=True, max_examples=30)
@given(fabrics())
def test_every_live_path_has_ports_and_they_lead_there(made: tuple[Topology, frozenset[object]]) -> None:
    topology, dead = made
    routes = forwarding(topology, dead)  # type: ignore[arg-type]
    chooser = SourcePortRules.of(topology)
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    try:
        paths = equal_cost_paths(topology, src, dst, routes=routes)
    except ValueError:
        reject()  # cut off
    for path in paths:
        ports = ports_for_path(topology, src, dst, path, chooser, routes=routes)
        assert len(ports) >= 1
        flow = Flow(topology.host(src).nics[0].address, topology.host(dst).nics[0].address, int(ports[0]))
        assert path_of(topology, flow, chooser, routes=routes) == path


@pytest.mark.parametrize(("spines", "parallel"), [(4, 1), (3, 1), (5, 2), (2, 3)])
def test_random_ports_are_spread_nearly_evenly(spines: int, parallel: int) -> None:
    topology = leaf_spine(2, spines, 1, 10**6, parallel_links=parallel)
    _, index = paths_of_ports(topology, "h1", "h2", SourcePortRules.of(topology))
    first = collections.Counter(index.tolist())
    assert len(first) == spines * parallel * parallel
    assert max(first.values()) <= 1.6 * min(first.values())


def test_rules_of_a_leaf_are_few() -> None:
    topology = leaf_spine(4, 4, 4, 10**6)
    rules = source_rules(topology, forwarding(topology))
    assert len(rules["leaf1"]) == 4 * 9  # three blocks .1 to .4, each 1 + 2 + 1 addresses
    assert rules["spine1"] == {}


@settings(derandomize=True, max_examples=30)
@given(st.data())
def test_programs_with_rules_change_by_their_difference(data: st.DataObject) -> None:
    topology, dead = data.draw(fabrics())
    whole, cut = programs(topology, pinning="rules"), programs(topology, dead, "rules")  # type: ignore[arg-type]
    for name in whole:
        for old, new in ((whole[name], cut[name]), (cut[name], whole[name]), (EMPTY, cut[name])):
            steps = difference(old, new)
            groups_done = apply(old, steps)
            pins = {match: port for match, port in old.pins.items() if match not in steps.delete_pins}
            assert replace(groups_done, arp=new.arp, pins=pins | dict(steps.put_pins)) == new
            assert bool(steps) == (replace(old, arp={}) != replace(new, arp={}))


def test_without_rules_programs_are_as_they_were() -> None:
    topology = leaf_spine(2, 2, 1, 10**6)
    assert all(not program.pins for program in programs(topology).values())
    assert Program({}, {}, {}) == EMPTY


def test_pinning_determines_the_predictor() -> None:
    topology = leaf_spine(2, 2, 1, 10**6)
    assert ecmp_hash_of(topology, "hash") == OvsHash()
    assert ecmp_hash_of(topology, "rules") == SourcePortRules.of(topology)


def test_a_seed_that_leaf_and_spine_share_is_refused() -> None:
    topology = leaf_spine(2, 2, 1, 10**6)
    same = tuple(replace(switch, hash_seed=7) for switch in topology.switches)
    with pytest.raises(ValueError, match="hash seed 7 of switch 'spine1' is also that of a switch of another role"):
        SourcePortRules.of(replace(topology, switches=same))


def test_three_tiers_are_refused() -> None:
    with pytest.raises(ValueError, match="switch 'agg1' has the role 'agg'; use pinning hash"):
        source_rules(fat_tree(4, 10**9), forwarding(fat_tree(4, 10**9)))


def test_more_ways_than_the_bits_distinguish_are_refused() -> None:
    chooser = SourcePortRules({1: 0})
    fields = Flow(IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"), 50_000).fields()
    assert np.array_equal(chooser.select(fields, 1, MOST_WAYS), [50_000 % MOST_WAYS])
    with pytest.raises(ValueError, match="not 129"):
        chooser.select(fields, 1, MOST_WAYS + 1)
