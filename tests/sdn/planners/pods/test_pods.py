# SPDX-License-Identifier: Apache-2.0
"""Planners for three tiers: the guarantee where it holds, and never a false proof elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import Topology, clos, equal_cost_paths, fat_tree, forwarding, in_planes, leaf_spine
from sdn.planners import UNREACHABLE, Commodities
from sdn.planners.pods import PodClos, PodPlan, annealing, ecmp, greedy, ilp, optimal, pod_cabling
from sdn.planners.pods.shares import aggs_by_shares
from tests.sdn.planners.pods.sample import (
    RATE,
    check_routes,
    congestion_by_hand,
    least_congestion,
    random_case,
)

Planner = Callable[[PodClos, Commodities], PodPlan]
EVERY: list[Planner] = [optimal, greedy, ecmp, annealing, ilp]


def permutation(nics: int, seed: int) -> Commodities:
    to = np.random.default_rng(seed).permutation(nics)
    src = np.flatnonzero(to != np.arange(nics))
    return Commodities.of(src, to[src])


@settings(derandomize=True, max_examples=60)
@given(data=st.data())
def test_full_bisection_and_equal_demands_reach_the_bound_of_the_leaves(data: st.DataObject) -> None:
    pods, leaves, aggs, nics, parallel, times = (data.draw(st.integers(1, most)) for most in (4, 3, 3, 3, 2, 2))
    cores = -(-leaves // times)
    fabric = PodClos.of(pods, leaves, aggs, cores, nics, RATE, RATE, times * RATE, parallel)
    nic = st.integers(0, fabric.nics - 1)
    pairs = [pair for pair in data.draw(st.lists(st.tuples(nic, nic), max_size=60)) if pair[0] != pair[1]]
    plan = optimal(fabric, Commodities.of([a for a, _ in pairs], [b for _, b in pairs], 3.0))
    check_routes(plan)
    assert plan.congestion == pytest.approx(congestion_by_hand(plan))
    leaf = [[int(fabric.nic_tor[nic]) for nic in pair] for pair in pairs]
    crossing = [pair for pair in leaf if pair[0] != pair[1]]
    busiest = max((max(Counter(end).values()) for end in zip(*crossing, strict=True)), default=0)
    assert plan.proved
    assert plan.congestion == pytest.approx(3 * -(-busiest // (aggs * parallel)) / RATE)


@pytest.mark.parametrize("k", [4, 8, 16, 64])
def test_a_permutation_of_a_fat_tree_shares_no_link(k: int) -> None:
    fabric = PodClos.of(k, k // 2, k // 2, k // 2, k // 2, RATE)
    plan = optimal(fabric, permutation(fabric.nics, k))
    assert plan.congestion * RATE == pytest.approx(1)
    assert plan.proved
    assert plan.rates.min() == pytest.approx(RATE)
    assert plan.fairness.minimum == pytest.approx(RATE)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_oversubscribed_cores_are_shared_evenly(cores: int) -> None:
    """Pods of 4 x 4 and fewer cores than leaves: the bound of the pods."""
    fabric = PodClos.of(8, 4, 4, cores, 4, RATE)
    for seed in range(5):
        asked = permutation(fabric.nics, seed)
        plan = optimal(fabric, asked)
        ends = [fabric.leaf_pod[fabric.nic_tor[nics]] for nics in (asked.src, asked.dst)]
        leaving = max(np.bincount(end[ends[0] != ends[1]]).max() for end in ends)
        assert plan.congestion * RATE == pytest.approx(-(-leaving // (4 * cores)))
        assert plan.proved


@pytest.mark.parametrize("block", range(4))
def test_no_proof_is_false_and_the_gap_is_told(block: int) -> None:
    """200 small cases with unequal demands, dead links and oversubscription, against an integer program."""
    found = 0
    for case in range(50):
        fabric, asked = random_case(np.random.default_rng([block, case]))
        plan, best = optimal(fabric, asked), least_congestion(fabric, asked)
        check_routes(plan)
        assert plan.congestion == pytest.approx(congestion_by_hand(plan))
        assert plan.bound <= best * (1 + 1e-6)
        assert plan.congestion >= best * (1 - 1e-6)
        if plan.proved:
            assert plan.congestion == pytest.approx(best, rel=1e-6)
        else:
            assert plan.gap == pytest.approx(plan.congestion / plan.bound - 1)
            assert plan.statement.startswith("within ")
        found += plan.congestion <= best * (1 + 1e-6)
    assert found >= 48


def test_the_integer_program_finds_the_optimum_where_others_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is spoilt, so that every answer is the program's own."""
    monkeypatch.setattr(sys.modules["sdn.planners.pods.ilp"], "optimal", ecmp)
    searched = 0
    for case in range(40):
        fabric, asked = random_case(np.random.default_rng([7, case]))
        plan, best = ilp(fabric, asked), least_congestion(fabric, asked)
        check_routes(plan)
        assert plan.planner == "ilp"
        assert plan.proved
        assert plan.congestion == pytest.approx(best, rel=1e-6)
        searched += ecmp(fabric, asked).congestion > best * (1 + 1e-6)
    assert searched >= 5


@pytest.mark.parametrize("planner", EVERY)
def test_every_plan_uses_live_links_and_never_beats_its_bound(planner: Planner) -> None:
    for case in range(40):
        fabric, asked = random_case(np.random.default_rng([99, case]))
        plan = planner(fabric, asked)
        check_routes(plan)
        assert plan.congestion == pytest.approx(congestion_by_hand(plan))
        assert plan.congestion >= plan.bound * (1 - 1e-9)
        assert (plan.rates[plan.agg == UNREACHABLE] == 0).all()


@pytest.mark.parametrize("planner", EVERY)
def test_no_commodities_and_commodities_within_a_leaf_need_no_link(planner: Planner) -> None:
    fabric = PodClos.of(2, 2, 2, 2, 2, RATE)
    for asked in (Commodities.of((), ()), Commodities.of([0], [1])):
        plan = planner(fabric, asked)
        assert (plan.congestion, plan.bound, plan.proved) == (0.0, 0.0, True)


def test_an_agg_without_cores_still_serves_its_pod() -> None:
    fabric = PodClos.of(2, 2, 2, 1, 2, RATE).without(core_links=[(0, 0, 0, 0)])
    plan = optimal(fabric, Commodities.of([0, 1, 0, 1], [2, 3, 4, 6]))
    assert plan.agg[2:].tolist() == [1, 1]
    assert plan.agg[:2].tolist() == [0, 0]
    assert plan.proved
    assert plan.congestion * RATE == pytest.approx(2)


def test_bad_fabrics_are_refused() -> None:
    good = PodClos.of(2, 2, 2, 1, 2, RATE)
    with pytest.raises(ValueError, match=r"the pod of a leaf lies outside 0\.\.1"):
        PodClos(good.low, np.array([0, 0, 1, 2], dtype=np.int32), good.core_rate_bps)
    with pytest.raises(ValueError, match="4 leaves have 3 pods"):
        PodClos(good.low, np.array([0, 0, 1], dtype=np.int32), good.core_rate_bps)
    with pytest.raises(ValueError, match="dimensions for pods, 2 aggs, cores and links"):
        PodClos(good.low, good.leaf_pod, good.core_rate_bps[:, :1])


# cabling


def spread(topology: Topology) -> list[tuple[str, str]]:
    names = [host.name for host in topology.hosts]
    return [
        (a, b)
        for n, a in enumerate(names)
        for b in (names[(n + 1) % len(names)], names[(n * 7 + 5) % len(names)])
        if a != b
    ]


@pytest.mark.parametrize(
    "topology",
    [
        fat_tree(4, 10**9),
        clos(3, 2, 3, 2, 2, 10**9, parallel_links=2, core_parallel_links=1),
        clos(2, 3, 1, 1, 1, 10**9),
    ],
)
@pytest.mark.parametrize("planner", EVERY)
def test_planned_paths_are_paths_of_the_topology(planner: Planner, topology: Topology) -> None:
    cables = pod_cabling(topology)
    pairs = spread(topology)
    plan = planner(cables.fabric, cables.commodities(pairs))
    for number, (src, dst) in enumerate(pairs):
        assert cables.path(plan, number) in equal_cost_paths(topology, src, dst)


def test_dead_links_of_every_tier_are_avoided() -> None:
    topology = fat_tree(4, 10**9)
    for link in topology.links:
        if topology.has_host(link.a.node):
            continue
        dead = frozenset([link])
        cables = pod_cabling(topology, dead)
        assert (
            cables.fabric.low.link_rate_bps.sum() == pod_cabling(topology).without(dead).fabric.low.link_rate_bps.sum()
        )
        pairs = spread(topology)
        plan = optimal(cables.fabric, cables.commodities(pairs))
        routes = forwarding(topology, dead)
        for number, (src, dst) in enumerate(pairs):
            assert cables.path(plan, number) in equal_cost_paths(topology, src, dst, routes=routes)


def test_planes_are_planned_by_the_nic() -> None:
    topology = in_planes(fat_tree(4, 10**9), 2)
    cables = pod_cabling(topology)
    for plane in range(2):
        pairs = spread(topology)
        plan = optimal(cables.fabric, cables.commodities(pairs, nic=plane))
        for number, (src, dst) in enumerate(pairs):
            path = cables.path(plan, number)
            assert path in equal_cost_paths(topology, src, dst, src_nic=plane, dst_nic=plane)
    across = Commodities.of([cables.nic("h1", 0)], [cables.nic("h16", 1)])
    assert optimal(cables.fabric, across).agg.tolist() == [UNREACHABLE]


def test_the_order_of_switches_in_a_topology_does_not_matter() -> None:
    """Aggs have the number of their group of cores, not their place in the pod."""
    topology = fat_tree(4, 10**9)
    cables = pod_cabling(topology)
    assert cables.aggs == (("agg1", "agg2"), ("agg3", "agg4"), ("agg5", "agg6"), ("agg7", "agg8"))
    assert cables.cores == (("core1", "core2"), ("core3", "core4"))


def test_other_topologies_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="'leaf-spine-2x2x2' is not a Clos of three tiers: no agg is linked to a core"):
        pod_cabling(leaf_spine(2, 2, 2, 10**9))


@pytest.mark.parametrize("seed", range(12))
def test_tight_oversubscribed_cores_are_planned_exactly_for_commodities_between_pods(seed: int) -> None:
    """Pods send and take as much as their links to cores carry, leaves as much as theirs, and no link has two."""
    rng = np.random.default_rng(seed)
    pods, leaves, aggs = (int(number) for number in rng.integers(2, 6, 3))
    fabric = PodClos.of(pods, leaves, aggs, int(rng.integers(1, leaves + 1)), aggs, RATE)
    pod, room = fabric.leaf_pod[fabric.nic_tor], aggs * fabric.cores
    to = rng.permutation(fabric.nics)
    sent, taken = Counter[int](), Counter[int]()
    pairs = []
    for src in rng.permutation(fabric.nics).tolist():
        begin, end = int(pod[src]), int(pod[to[src]])
        if begin != end and sent[begin] < room and taken[end] < room:
            sent[begin] += 1
            taken[end] += 1
            pairs.append((src, int(to[src])))
    plan = optimal(fabric, Commodities.of(*zip(*pairs, strict=True)))
    check_routes(plan)
    assert plan.proved
    assert congestion_by_hand(plan) == pytest.approx(1 / RATE)


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_aggs_are_equal_parts_of_leaves_and_pods(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fabric = PodClos.of(3, 3, 3, 1, 3, RATE, parallel=int(rng.integers(1, 3)))
    src = rng.integers(0, 9, 40).astype(np.int32)
    dst = ((src // 3 + rng.integers(1, 3, 40)) % 3 * 3 + rng.integers(0, 3, 40)).astype(np.int32)
    agg = aggs_by_shares(fabric, src, dst)
    assert agg is not None  # all go to other pods
    for leaves in (src, dst):
        for units in (leaves, fabric.leaf_pod[leaves]):
            for unit in set(units.tolist()):
                shares = np.bincount(agg[units == unit], minlength=3)
                assert shares.max() - shares.min() <= 1
