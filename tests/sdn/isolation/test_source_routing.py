# SPDX-License-Identifier: Apache-2.0
"""Source routing: no two flows of a leaf-wise permutation share a link, and switches forward as predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import Flow, OvsHash, PortRef, Topology, clos, fat_tree, leaf_spine, path_of
from sdn.isolation.source_routing import SourceRouting, by_rank, host_ports, in_order, path, uplink_ports
from sdn.openflow.program import EMPTY, IngressMatch, Program, Route, ViaGroup, difference, programs
from sdn.openflow.steering import Steer
from tests.sdn import patterns
from tests.sdn.openflow.test_program import apply

RATE = 10**6


def most_loaded(topology: Topology, routing: SourceRouting, pairs: Iterable[tuple[int, int]]) -> int:
    """Flows on the most loaded link between switches; ranks are hosts in order."""
    hosts = topology.hosts
    return max(
        Counter(
            port for s, d in pairs for port in path(topology, routing, hosts[s].name, hosts[d].name)[1:-1]
        ).values(),
        default=1,
    )


@st.composite
def arbitrary(draw: st.DrawFn, sizes: Iterable[int] = (1, 2, 3, 4, 6)) -> tuple[Topology, SourceRouting]:
    """A leaf-spine with as many uplinks as hosts per leaf, and any one-to-one mapping on every leaf."""
    hosts = draw(st.sampled_from(list(sizes)))
    parallel = draw(st.sampled_from([k for k in (1, 2, 3) if hosts % k == 0]))
    topology = leaf_spine(draw(st.integers(1, 6)), hosts // parallel, hosts, RATE, parallel_links=parallel)
    uplinks = uplink_ports(topology)
    return topology, SourceRouting(
        {
            leaf: dict(zip(ports, draw(st.permutations(uplinks[leaf])), strict=True))
            for leaf, ports in host_ports(topology).items()
        }
    )


@settings(derandomize=True, max_examples=60, deadline=None)
@given(arbitrary(), st.data())
def test_lemma_5_1_holds_for_every_mapping_and_every_leaf_wise_permutation(
    made: tuple[Topology, SourceRouting], data: st.DataObject
) -> None:
    topology, routing = made
    leaves = len(host_ports(topology))
    hosts = len(topology.hosts) // leaves
    goal = data.draw(st.permutations(range(leaves)))
    pairs = []
    for leaf in range(leaves):
        order = data.draw(st.permutations(range(hosts)))
        pairs += [(leaf * hosts + i, goal[leaf] * hosts + order[i]) for i in range(hosts) if goal[leaf] != leaf]
    assert most_loaded(topology, routing, pairs) == 1


@settings(derandomize=True, max_examples=60, deadline=None)
@given(arbitrary(), st.data())
def test_rings_and_pipelines_share_no_link_whatever_the_mapping(
    made: tuple[Topology, SourceRouting], data: st.DataObject
) -> None:
    topology, routing = made
    ranks = len(topology.hosts)
    per_leaf = ranks // len(host_ports(topology))
    per_server = data.draw(st.sampled_from([t for t in range(1, per_leaf + 1) if per_leaf % t == 0]))
    steps = [*patterns.ring(ranks), *patterns.pipeline(ranks), *patterns.hierarchical_ring(ranks, per_server)]
    assert all(most_loaded(topology, routing, step) == 1 for step in steps)


@settings(derandomize=True, max_examples=20, deadline=None)
@given(arbitrary(sizes=(1, 2, 4, 8)))
def test_halving_doubling_shares_no_link_if_leaves_have_a_power_of_two(
    made: tuple[Topology, SourceRouting],
) -> None:
    topology, routing = made
    for ranks in range(2, len(topology.hosts) + 1):
        if ranks & (ranks - 1) == 0 or ranks % len(host_ports(topology)["leaf1"]) == 0:
            assert all(most_loaded(topology, routing, step) == 1 for step in patterns.halving_doubling(ranks))


@pytest.mark.parametrize("topology", [fat_tree(4, RATE), clos(2, 2, 4, 2, 4, RATE)], ids=lambda topology: topology.name)
def test_on_three_tiers_aggs_choose_cores_by_ingress_port_too(topology: Topology) -> None:
    """With a flow of every host in each step of a ring, an all-to-all and halving-doubling no two share a link."""
    routes, ranks = in_order(topology).routes(topology), len(topology.hosts)
    steps = [*patterns.ring(ranks), *patterns.pairwise_alltoall(ranks), *patterns.halving_doubling(ranks)]
    tiers: Counter[int] = Counter()
    for step in steps:
        crossed: Counter[PortRef] = Counter()
        for src, dst in step:
            ends = [topology.hosts[rank].nics[0].address for rank in (src, dst)]
            way = path_of(topology, Flow(*ends, 50_000 + src), OvsHash(), routes=routes)
            tiers[len(way)] += 1
            crossed.update(way)
        assert max(crossed.values(), default=1) == 1
    assert set(tiers) == {2, 4, 6}


def test_the_paper_leaves_out_when_halving_doubling_shares_no_link() -> None:
    """Section 5.3 takes any number of hosts per leaf for granted."""
    topology = leaf_spine(3, 3, 3, RATE)
    down = PortRef("spine2", 2)
    assert [path(topology, in_order(topology), *pair)[2] for pair in (("h2", "h4"), ("h8", "h6"))] == [down, down]


@pytest.mark.parametrize("hosts", range(1, 13))
def test_halving_doubling_by_rank_shares_no_link_for_any_number_of_hosts_per_leaf(hosts: int) -> None:
    spines = 1 << (hosts - 1).bit_length()
    topology = leaf_spine(1 + 40 // hosts, spines, hosts, RATE)
    routing = by_rank(topology)
    for ranks in (2, 4, 8, 16, 32):
        assert all(most_loaded(topology, routing, step) == 1 for step in patterns.halving_doubling(ranks))


def test_by_rank_needs_a_power_of_two_of_uplinks() -> None:
    with pytest.raises(ValueError, match=r"takes 4 uplinks on each leaf, .* its 3 hosts, and leaf1 has 3; take"):
        by_rank(leaf_spine(3, 3, 3, RATE))


def mapping_found(hosts: int, ranks: int, uplinks: int) -> list[int] | None:
    """By rank: an uplink, so that no link has two flows of a step of halving-doubling; None if no mapping has this.

    All mappings are tried, rank by rank: the next is always one that has the fewest uplinks left.
    """
    apart: list[set[int]] = [set() for _ in range(ranks)]
    for distance in [0, *(1 << bit for bit in range(ranks.bit_length() - 1))]:
        for one, other in permutations(range(ranks), 2):
            leaves = [(rank ^ distance) // hosts for rank in (one, other)]
            stays = distance > 0 and leaves[0] in (one // hosts, other // hosts)
            if leaves[0] == leaves[1] and not stays:
                apart[one].add(other)
    chosen: dict[int, int] = {}

    def complete() -> bool:
        taken = {rank: {chosen[near] for near in apart[rank] & chosen.keys()} for rank in {*range(ranks)} - {*chosen}}
        if not taken:
            return True
        rank = max(taken, key=lambda rank: (len(taken[rank]), len(apart[rank])))
        fresh = max(chosen.values(), default=-1) + 1  # uplinks that no rank has yet are alike: one of them is tried
        for uplink in range(min(fresh + 1, uplinks)):
            if uplink not in taken[rank]:
                chosen[rank] = uplink
                if complete():
                    return True
                del chosen[rank]
        return False

    return [chosen[rank] for rank in range(ranks)] if complete() else None


@pytest.mark.parametrize(
    ("hosts", "ranks", "least"),
    [(3, 8, 3), (3, 16, 4), (3, 32, 4), (5, 16, 5), (5, 32, 6), (6, 16, 6), (6, 32, 7), (7, 16, 7), (7, 32, 8)],
)
def test_the_fewest_uplinks_for_halving_doubling_are_those_of_the_page(hosts: int, ranks: int, least: int) -> None:
    assert least == hosts or mapping_found(hosts, ranks, least - 1) is None
    found = mapping_found(hosts, ranks, least)
    assert found is not None
    topology = leaf_spine(-(-ranks // hosts), least, hosts, RATE)
    spines, of_rank = uplink_ports(topology), iter(found)
    uplinks = {
        leaf: {port: spines[leaf][uplink] for port, uplink in zip(ports, of_rank, strict=False)}
        for leaf, ports in host_ports(topology).items()
    }
    assert all(most_loaded(topology, SourceRouting(uplinks), step) == 1 for step in patterns.halving_doubling(ranks))


@pytest.mark.parametrize("hosts", [3, 5, 6])
def test_by_rank_serves_rings_and_an_all_to_all_among_a_multiple_of_its_uplinks(hosts: int) -> None:
    spines = 1 << (hosts - 1).bit_length()
    topology = leaf_spine(8, spines, hosts, RATE)
    routing = by_rank(topology)
    for ranks in range(2, 8 * hosts + 1):
        steps = [*patterns.ring(ranks), *patterns.pipeline(ranks)]
        if ranks % spines == 0:
            steps += patterns.pairwise_alltoall(ranks)
        assert all(most_loaded(topology, routing, step) == 1 for step in steps)


def test_the_paper_leaves_out_that_an_all_to_all_fills_whole_leaves() -> None:
    """Eight ranks on three leaves of three hosts: four ranks on, h2 -> h6 and h8 -> h4 share spine2 -> leaf2."""
    topology = leaf_spine(3, 3, 3, RATE)
    routing = in_order(topology)
    assert {path(topology, routing, *pair)[2] for pair in (("h2", "h6"), ("h8", "h4"))} == {PortRef("spine2", 2)}
    assert most_loaded(topology, routing, patterns.pairwise_alltoall(8)[3]) == 2


@settings(derandomize=True, max_examples=40, deadline=None)
@given(arbitrary())
def test_constant_shifts_share_no_link_when_mappings_are_equal(
    made: tuple[Topology, SourceRouting],
) -> None:
    topology, routing = made
    alike = SourceRouting(dict.fromkeys(routing.uplinks, routing.uplinks["leaf1"]))
    ranks = len(topology.hosts)
    assert all(most_loaded(topology, alike, step) == 1 for step in patterns.pairwise_alltoall(ranks))


@pytest.mark.parametrize("ranks", [9, 11, 13, 22])
def test_halving_doubling_without_a_power_of_two(ranks: int) -> None:
    topology = leaf_spine(6, 4, 4, RATE)
    assert all(most_loaded(topology, in_order(topology), step) == 1 for step in patterns.halving_doubling(ranks))


def test_an_all_to_all_may_share_links_where_mappings_differ() -> None:
    """Section 5.3 takes f_m(i) = i for granted: at shift 1, leaves 1 and 2 each send one host's data to leaf 3."""
    topology = leaf_spine(3, 2, 2, RATE)
    twisted = SourceRouting({"leaf1": {1: 4, 2: 3}, "leaf2": {1: 3, 2: 4}, "leaf3": {1: 3, 2: 4}})
    steps = patterns.pairwise_alltoall(6)
    assert most_loaded(topology, in_order(topology), steps[2]) == 1
    assert most_loaded(topology, twisted, steps[2]) == 2


def test_double_binary_trees_stay_below_the_papers_bound() -> None:
    """2,048 GPUs: "the number of link contention will not exceed 3" (section 5.3). So it is in each of the two phases.

    Where the data are pipelined, so that both trees carry both phases at once, the two add up to more than 3.
    """
    topology = leaf_spine(64, 32, 32, RATE)
    routing = in_order(topology)
    (edges,) = patterns.double_binary_tree(2048)
    phases = edges[: len(edges) // 2], edges[len(edges) // 2 :]
    worst = [most_loaded(topology, routing, phase) for phase in phases]
    assert 1 < max(worst) <= 3
    assert 3 < most_loaded(topology, routing, edges) <= sum(worst)


def forwarded(topology: Topology, held: dict[str, Program], flow: Flow) -> list[PortRef] | None:
    """The path of a packet through switches with these programs; None if it is dropped."""
    way = [topology.port_of(flow.src)]
    while not topology.has_host((entry := topology.peer(way[-1])).node):
        program = held[entry.node]
        steers = [
            route for match, route in program.steers.items() if match.port == entry.port and flow.dst in match.network
        ]
        assert len(steers) <= 1
        if not steers and entry.port in program.closed:
            return None
        route = steers[0] if steers else program.routes.get(flow.dst)
        if route is None:
            return None
        target = route.target
        if isinstance(target, ViaGroup):
            group = program.groups[target.group_id]
            out = group.ports[int(OvsHash().select(flow.fields(), group.hash_seed, len(group.ports))[0])]
        else:
            out = target.port
        way.append(PortRef(entry.node, out))
    return way


@settings(derandomize=True, max_examples=40, deadline=None)
@given(arbitrary(), st.data())
def test_switches_forward_as_predicted_also_with_dead_links(
    made: tuple[Topology, SourceRouting], data: st.DataObject
) -> None:
    topology, routing = made
    between = [link for link in topology.links if not topology.has_host(link.a.node)]
    dead = frozenset(data.draw(st.lists(st.sampled_from(between), max_size=2, unique=True)))
    routes, held = routing.routes(topology, dead), programs(topology, dead, steering=routing)
    for src in topology.hosts:
        for dst in topology.hosts[:: max(1, len(topology.hosts) // 5)]:
            if src == dst or dst.nics[0].address not in routes.groups[topology.peer(PortRef(src.name, 1)).node]:
                continue
            flow = Flow(src.nics[0].address, dst.nics[0].address, 0xC123)
            way = path_of(topology, flow, OvsHash(), routes=routes)
            assert forwarded(topology, held, flow) == list(way)
            if not dead:
                assert way == path(topology, routing, src.name, dst.name)


def test_only_differences_from_the_routes_become_rules() -> None:
    topology = leaf_spine(2, 2, 2, RATE)
    held = programs(topology, steering=SourceRouting({"leaf1": {1: 4}}))
    assert [(match.port, str(match.network)) for match in held["leaf1"].steers] == [
        (1, "10.0.1.1/32"),
        (1, "10.0.1.2/32"),
    ]
    assert not held["leaf1"].closed
    assert not held["leaf2"].steers
    assert not held["spine1"].steers


def test_steering_is_added_and_removed_by_the_difference() -> None:
    topology = leaf_spine(2, 2, 2, RATE)
    plain, steered = programs(topology), programs(topology, steering=in_order(topology))
    for name in plain:
        for old, new in ((plain[name], steered[name]), (steered[name], plain[name]), (EMPTY, steered[name])):
            steps = difference(old, new)
            done = apply(old, steps)
            steers: dict[IngressMatch, Route] = {
                match: route for match, route in old.steers.items() if match not in steps.delete_steers
            }
            assert (done.routes, done.groups) == (new.routes, new.groups)
            assert steers | dict(steps.put_steers) == new.steers


def test_a_steering_request_survives_serialization() -> None:
    routing = in_order(leaf_spine(2, 2, 2, RATE))
    assert Steer.model_validate_json(Steer(steer=routing).model_dump_json()).steer == routing
    assert Steer.model_validate_json('{"steer": null}').steer is None


@pytest.mark.parametrize(
    ("uplinks", "sentence"),
    [
        ({"leaf9": {1: 3}}, "has no leaf 'leaf9'"),
        ({"leaf1": {3: 3}}, r"port 3 of leaf1 is not a host port; those are \[1, 2\]"),
        ({"leaf1": {1: 2}}, r"port 2 of leaf1 is not a spine port; those are \[3, 4\]"),
        ({"leaf1": {1: 3, 2: 3}}, "two host ports of leaf1 share a spine port"),
    ],
)
def test_an_invalid_mapping_is_refused_in_one_sentence(uplinks: dict[str, dict[int, int]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SourceRouting(uplinks).routes(leaf_spine(2, 2, 2, RATE))


def test_more_hosts_than_uplinks_are_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="leaf1 has 3 hosts and 2 uplinks"):
        in_order(leaf_spine(2, 2, 3, RATE))
