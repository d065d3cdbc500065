# SPDX-License-Identifier: Apache-2.0
"""The exact planner where it must be exact, compared with greedy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdn.planners import UNREACHABLE, Clos, Commodities, Plan, greedy, ilp, optimal, restricted
from sdn.planners.grouping import groups
from tests.sdn.planners.sample import RATE, check_routes, commodities, fabrics, least_congestion

Pairs = list[tuple[int, int]]


def flows_per_link(plan: Plan) -> np.ndarray:
    """[up or down, ToR, link]: how many commodities of demand 1."""
    return plan.loads.reshape(2, plan.fabric.tors, -1).astype(int)


@pytest.mark.parametrize("planner", [optimal, ilp])
@settings(derandomize=True)
@given(data=st.data())
def test_every_tor_has_its_own_optimum(planner: Callable[[Clos, Commodities], Plan], data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=5, spines=5, nics=4))
    dead = data.draw(st.sets(st.integers(0, fabric.spines - 1), max_size=fabric.spines - 1))
    fabric = fabric.without(spines=dead)
    plan = planner(fabric, data.draw(commodities(fabric, most=60)))
    check_routes(plan)
    assert plan.proved
    for links in flows_per_link(plan).reshape(-1, fabric.spines * fabric.parallel):
        usable = (fabric.spines - len(dead)) * fabric.parallel
        assert links.max() <= -(-links.sum() // usable)
        assert links.sum() < usable or links.max() - np.sort(links)[-usable] <= 1


@pytest.fixture(params=["chains and shares", "shares alone"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Chains find nearly every optimum, so what stands behind them is tested without them too."""
    if request.param == "shares alone":
        monkeypatch.setattr(restricted._Problem, "by_chains", lambda self: None)
    return str(request.param)


fixture_serves_all_examples = [HealthCheck.function_scoped_fixture]


@settings(derandomize=True, max_examples=60, suppress_health_check=fixture_serves_all_examples)
@given(data=st.data())
def test_one_uneven_spine_is_exact(means: str, data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=3))
    tor, link = st.integers(0, fabric.tors - 1), st.integers(0, fabric.parallel - 1)
    dead = data.draw(st.lists(st.tuples(tor, link), max_size=5))
    fabric = fabric.without(links=[(t, 0, k) for t, k in dead])
    asked = data.draw(commodities(fabric, most=8, crossing=True))
    plan = optimal(fabric, asked)
    check_routes(plan)
    if UNREACHABLE not in plan.spine:
        assert plan.proved
        assert plan.congestion == pytest.approx(least_congestion(fabric, asked))


@settings(derandomize=True, max_examples=60, suppress_health_check=fixture_serves_all_examples)
@given(data=st.data())
def test_one_tor_that_lacks_links_is_exact(means: str, data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=5, spines=4, nics=4))
    spine, link = st.integers(0, fabric.spines - 1), st.integers(0, fabric.parallel - 1)
    dead = data.draw(st.lists(st.tuples(spine, link), max_size=6))
    fabric = fabric.without(links=[(0, s, k) for s, k in dead])
    plan = optimal(fabric, data.draw(commodities(fabric, most=50)))
    check_routes(plan)
    assert plan.proved


@pytest.mark.parametrize("seed", range(3))
def test_many_dead_links_in_a_full_fabric(means: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fabric = Clos.of(16, 8, 8, RATE, parallel=2)
    fabric = fabric.without(links=[tuple(rng.integers(0, fabric.link_rate_bps.shape)) for _ in range(12)])  # type: ignore[misc]
    to = rng.permutation(fabric.nics)
    moving = to != np.arange(fabric.nics)
    asked = Commodities.of(np.flatnonzero(moving), to[moving])
    plan = optimal(fabric, asked)
    check_routes(plan)
    assert plan.proved


def test_the_flow_is_needed_where_chains_alone_fail() -> None:
    # Each ToR sends one commodity to every other and each is without one spine: whatever chains do, the plan must say
    # what it is worth, and the integer program agrees.
    fabric = Clos.of(4, 3, 3, RATE).without(links=[(t, t % 3, 0) for t in range(4)])
    every = [(a, k) for a in range(4) for k in range(3)]
    asked = Commodities.of([3 * a + k for a, k in every], [3 * ((a + k + 1) % 4) for a, k in every])
    plan, exact = optimal(fabric, asked), ilp(fabric, asked)
    assert exact.proved
    assert plan.bound <= exact.congestion * (1 + 1e-9) <= plan.congestion * (1 + 2e-9)
    assert plan.gap >= plan.congestion / exact.congestion - 1 - 1e-9


@settings(derandomize=True, max_examples=40)
@given(st.data())
def test_layers_keep_weighted_plans_within_twice_the_bound(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=4, nics=4))
    asked = data.draw(commodities(fabric, most=60, demands=(1.0, 2.0, 5.0, 5.5)))
    plan = optimal(fabric, asked)
    check_routes(plan)
    assert plan.congestion <= 2 * plan.bound * (1 + 1e-9)


@settings(derandomize=True)
@given(st.data())
def test_greedy_is_at_most_twice_the_optimum(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=5, spines=4, nics=4))
    asked = data.draw(commodities(fabric, most=60))
    order = np.array(data.draw(st.permutations(range(len(asked)))), dtype=np.int32)
    plan = greedy(fabric, asked, order=order)
    check_routes(plan)
    best = optimal(fabric, asked)
    assert plan.congestion <= 2 * best.congestion * (1 + 1e-9)
    assert plan.fairness.minimum >= best.fairness.minimum / 2 * (1 - 1e-9)


def test_greedy_can_be_twice_the_optimum() -> None:
    # Four commodities over two spines. The last one finds the first spine taken at its source and the second at its
    # destination: the case that makes theorem 2 of Cohen et al. tight.
    fabric = Clos.of(4, 2, 2, RATE)
    asked = Commodities.of([4, 5, 0, 1], [0, 2, 6, 3])
    plan, best = greedy(fabric, asked), optimal(fabric, asked)
    assert best.congestion * RATE == pytest.approx(1)
    assert plan.congestion == pytest.approx(2 * best.congestion)
    assert plan.fairness.minimum == pytest.approx(best.fairness.minimum / 2)


@pytest.mark.parametrize("planner", [greedy, optimal])
def test_threads_change_nothing(planner: object) -> None:
    # Six components: each pair of ToRs keeps to itself.
    fabric = Clos.of(12, 3, 8, RATE)
    rng = np.random.default_rng(0)
    src = rng.integers(0, fabric.nics, 500)
    dst = (src // 16 * 16) + rng.integers(0, 16, 500)
    asked = Commodities.of(src[src != dst], dst[src != dst])
    plans = [planner(fabric, asked, threads=threads) for threads in (1, 2, 5)]  # type: ignore[operator]
    for plan in plans[1:]:
        assert plan.spine.tolist() == plans[0].spine.tolist()


@settings(derandomize=True, max_examples=50)
@given(st.data())
def test_components_share_no_tor(data: st.DataObject) -> None:
    from sdn import _native

    pairs = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
    src, dst = (np.array([pair[i] for pair in pairs], dtype=np.int32) for i in (0, 1))
    label = _native.components(6, src, dst)
    assert ((label < 0) == (src == dst)).all()
    members = [group for group in groups(label) if label[group[0]] >= 0]
    for group in members:
        reached = {int(group[0])}
        while True:
            more = {
                int(i) for i in np.flatnonzero(src != dst) if any(src[i] == src[j] or dst[i] == dst[j] for j in reached)
            }
            if more <= reached:
                break
            reached |= more
        assert reached == set(group.tolist())


def ring(n: int) -> Pairs:
    return [(i, (i + 1) % n) for i in range(n)]


PATTERNS = {
    "ring": [ring],
    "halving and doubling": [lambda n, k=k: [(i, i ^ (1 << k)) for i in range(n)] for k in range(5)],
    "pairwise all-to-all": [lambda n, k=k: [(i, (i + k) % n) for i in range(n)] for k in range(1, 32)],
    "pipeline": [lambda n: [(i, i + 4) for i in range(n - 4)]],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_collectives_of_a_full_fabric_meet_no_contention(pattern: str) -> None:
    # Lemma 5.1 of vClos for any placement: an optimal plan needs no leaf-wise pattern.
    fabric = Clos.of(8, 4, 4, RATE)
    place = np.random.default_rng(4).permutation(fabric.nics)
    for step in PATTERNS[pattern]:
        pairs = np.array(step(fabric.nics))
        plan = optimal(fabric, Commodities.of(place[pairs[:, 0]], place[pairs[:, 1]]))
        assert plan.proved
        assert plan.rates == pytest.approx(np.full(len(pairs), RATE))


@given(st.data())
def test_commodities_early_in_order_get_separate_links(data: st.DataObject) -> None:
    # One ToR sends to many: with n commodities on S links, 2 (n - S) must share, and those are the last ones.
    links = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(1, 2 * links))
    fabric = Clos.of(n + 1, links, n, RATE)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int32)
    plan = optimal(fabric, Commodities.of(range(n), [n * (i + 1) for i in range(n)]), order=order)
    assert plan.proved
    alone = min(n, 2 * links - n)
    assert plan.rates[order].tolist() == [RATE] * alone + [RATE / 2] * (n - alone)
