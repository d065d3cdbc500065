# SPDX-License-Identifier: Apache-2.0
"""Properties of all planners, checked against the optimum of brute force on small fabrics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.path_service.planning import live_plan
from sdn.planners import (
    LOCAL,
    PLANNERS,
    UNREACHABLE,
    Clos,
    Commodities,
    Plan,
    congestion_bound,
    greedy,
    optimal,
)
from sdn.planners.model import links_of
from sdn.planners.rates import max_min_rates_reference
from tests.sdn.planners.sample import RATE, check_routes, commodities, congestion_by_hand, fabrics, least_congestion

KINDS = {
    "whole": ({}, (1.0,)),
    "dead links": ({"dead_links": 4}, (1.0,)),
    "rates": ({"rates": (RATE, RATE / 2)}, (1.0,)),
    "rates and dead links": ({"rates": (RATE, RATE / 4), "dead_links": 3}, (3.0,)),
    "demands": ({}, (1.0, 2.0, 3.5)),
    "everything": ({"rates": (RATE, RATE / 2), "dead_links": 3}, (1.0, 2.0)),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_the_path_service_keeps_the_plan_of_every_planner(name: str) -> None:
    plan = live_plan(name, Clos.of(2, 2, 2, 1.0))
    route, _ = plan.arrive(0, 2)
    assert (plan.numbers(), len(plan.plan().spine)) == ([route.commodity], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLANNERS)
@settings(derandomize=True, max_examples=25)
@given(data=st.data())
def test_plans_are_routes_and_their_bounds_hold(name: str, kind: str, data: st.DataObject) -> None:
    options, demands = KINDS[kind]
    fabric = data.draw(fabrics(**options))
    asked = data.draw(commodities(fabric, most=7, demands=demands))
    plan = PLANNERS[name](fabric, asked)
    check_routes(plan)
    assert plan.congestion == pytest.approx(congestion_by_hand(plan))
    best = least_congestion(fabric, asked)
    assert plan.bound <= best * (1 + 1e-9)
    assert plan.congestion >= best * (1 - 1e-9)
    if plan.proved:
        assert plan.congestion == pytest.approx(best)
    else:
        assert plan.gap > 0
        assert plan.congestion == pytest.approx(plan.bound * (1 + plan.gap))
    if name == "ilp":
        assert plan.congestion == pytest.approx(best)
    rates = plan.rates
    assert rates == pytest.approx(max_min_rates_reference(*links_of(plan), asked.demand) * (plan.spine != UNREACHABLE))
    if plan.congestion and UNREACHABLE not in plan.spine:
        # The slowest is as slow as the worst link, of the fabric or of the NICs.
        nics = max(
            (np.bincount(at, asked.demand, minlength=fabric.nics) / fabric.nic_rate_bps).max()
            for at in (asked.src, asked.dst)
        )
        assert plan.fairness.minimum == pytest.approx(1 / max(plan.congestion, nics))


@pytest.mark.parametrize("name", PLANNERS)
def test_nothing_to_plan(name: str) -> None:
    fabric = Clos.of(2, 2, 2, RATE)
    for asked in (Commodities.of([], []), Commodities.of([0], [1])):
        plan = PLANNERS[name](fabric, asked)
        check_routes(plan)
        assert plan.proved
        assert plan.congestion == 0
        assert plan.rates.tolist() == [RATE] * len(asked)


@pytest.mark.parametrize("name", PLANNERS)
def test_equal_arguments_give_equal_plans(name: str) -> None:
    fabric = Clos.of(5, 3, 4, RATE, parallel=2).without(links=[(0, 1, 0), (3, 2, 1)])
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, fabric.nics, (2, 60))
    asked = Commodities.of(src[src != dst], dst[src != dst], rng.integers(1, 4, (src != dst).sum()))
    one, other = (PLANNERS[name](fabric, asked) for _ in range(2))
    for column in ("spine", "up", "down"):
        assert getattr(one, column).tolist() == getattr(other, column).tolist()


@pytest.mark.parametrize("name", ["ecmp", "annealing"])
def test_seeds_make_a_difference(name: str) -> None:
    fabric = Clos.of(4, 4, 4, RATE)
    ring = np.random.default_rng(0).permutation(16)
    asked = Commodities.of(ring, np.roll(ring, 1))
    plans = {tuple(PLANNERS[name].plan(fabric, asked, seed=seed).spine.tolist()) for seed in range(5)}  # type: ignore[call-arg]
    assert len(plans) > 1


def test_ecmp_keeps_the_path_of_a_commodity_when_others_come_or_go() -> None:
    fabric = Clos.of(16, 8, 8, RATE, parallel=2)
    ring = np.random.default_rng(0).permutation(fabric.nics)
    together = PLANNERS["ecmp"](fabric, Commodities.of(ring, np.roll(ring, 1)))
    alone = PLANNERS["ecmp"](fabric, Commodities.of(ring[40:70], np.roll(ring, 1)[40:70]))
    for column in ("spine", "up", "down"):
        assert getattr(alone, column).tolist() == getattr(together, column)[40:70].tolist()


def test_ecmp_uses_all_links_evenly_also_between_two_nics() -> None:
    fabric = Clos.of(2, 4, 1, RATE, parallel=2)
    plan = PLANNERS["ecmp"](fabric, Commodities.of([0] * 8000, [1] * 8000))
    assert plan.loads[0, 0] == pytest.approx(1000, rel=0.15)
    assert plan.loads[1, 1] == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("dead", [[], [(0, 1, 0)]], ids=["uniform", "uneven"])
@pytest.mark.parametrize("demand", [1.0, [1.0, 2.0, 3.0]], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("order", "why"),
    [
        ([0, 1], "order is not as long as the commodities"),
        ([0, 1, 1], "order must hold each commodity once"),
        ([0, 1, 3], "order must hold each commodity once"),
        ([-1, 0, 1], "order must hold each commodity once"),
    ],
    ids=str,
)
@pytest.mark.parametrize("planner", [greedy, optimal])
def test_an_order_that_is_no_permutation_is_refused(
    planner: Callable[..., Plan],
    order: list[int],
    why: str,
    demand: float | list[float],
    dead: list[tuple[int, int, int]],
) -> None:
    fabric = Clos.of(3, 2, 2, RATE).without(links=dead)
    asked = Commodities.of([0, 2, 4], [2, 4, 0], demand)
    with pytest.raises(ValueError, match=why):
        planner(fabric, asked, order=np.array(order, dtype=np.int32))


@pytest.mark.parametrize("name", PLANNERS)
def test_a_plan_says_when_no_spine_joins_any_pair(name: str) -> None:
    fabric = Clos.of(2, 2, 2, RATE).without(links=[(0, 0, 0), (1, 1, 0)])
    plan = PLANNERS[name](fabric, Commodities.of([0, 0], [2, 1]))
    assert plan.spine.tolist() == [UNREACHABLE, LOCAL]
    assert plan.statement == "optimal: no live spine joins the ToRs of any commodity that needs one"


@settings(derandomize=True, max_examples=60)
@given(st.data())
def test_bounds_hold_for_components_of_different_demands(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=2))
    asked = data.draw(commodities(fabric, most=7, demands=(1.0, 4.0)))
    bound = congestion_bound(fabric, asked)
    assert bound.congestion <= least_congestion(fabric, asked) * (1 + 1e-9)
    assert bound.why


def test_bad_commodities_are_refused() -> None:
    fabric = Clos.of(2, 2, 2, RATE)
    for planner in PLANNERS.values():
        with pytest.raises(ValueError, match=r"destination NIC of a commodity lies outside 0\.\.3"):
            planner(fabric, Commodities.of([0], [4]))
        with pytest.raises(ValueError, match="joins NIC 1 to itself"):
            planner(fabric, Commodities.of([0, 1], [2, 1]))
