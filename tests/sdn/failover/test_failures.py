# SPDX-License-Identifier: Apache-2.0
"""Plans for every single failure: complete, valid, as good as planning from scratch, and ready in time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.failover import Failure, Precomputed, failures, plan_after
from sdn.planners import UNREACHABLE, Clos, Commodities, Plan, links, optimal, pods
from sdn.planners.links import AnyPlan
from sdn.planners.pods import PodClos, PodPlan
from tests.sdn.planners.pods import sample as pod_sample
from tests.sdn.planners.sample import check_routes, commodities, fabrics


@settings(derandomize=True, max_examples=60)
@given(st.data())
def test_after_every_failure_all_reachable_commodities_use_live_links(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=3, spines=3, nics=4))
    plan = optimal(fabric, data.draw(commodities(fabric, most=12)))
    for failure in failures(fabric, plan):
        after = plan_after(plan, failure)
        assert isinstance(after, Plan)
        check_routes(after)  # live links only, unreachable only where no spine joins the two
        assert after.fabric.link_rate_bps.sum() < fabric.link_rate_bps.sum()
        afresh = optimal(after.fabric, plan.commodities)
        assert after.congestion <= afresh.congestion * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_after_every_failure_on_three_tiers_paths_are_live_and_nearly_as_good_as_planned_afresh(seed: int) -> None:
    fabric, asked = pod_sample.random_case(np.random.default_rng(seed))
    plan = pods.optimal(fabric, asked)
    for failure in failures(fabric, plan):
        after = plan_after(plan, failure)
        assert isinstance(after, PodPlan)
        pod_sample.check_routes(after)
        assert (links.rates(fabric) > 0).sum() - (links.rates(after.fabric) > 0).sum() == len(failure)
        # A repair keeps routes and tries fewer moves, so it may end at another local optimum.
        assert after.congestion <= 1.5 * pods.optimal(after.fabric, asked).congestion


@settings(derandomize=True, max_examples=60)
@given(st.data())
def test_every_failure_is_listed_once_the_most_loaded_first(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=3, spines=3, nics=4))
    plan = optimal(fabric, data.draw(commodities(fabric, most=12)))
    listed = failures(fabric, plan)
    live = np.flatnonzero(fabric.link_rate_bps.ravel()).tolist()
    spines = np.split(np.arange(fabric.link_rate_bps.size).reshape(fabric.link_rate_bps.shape), fabric.spines, axis=1)
    whole = [frozenset(set(links.ravel().tolist()) & set(live)) for links in spines]
    assert set(listed) == {frozenset((link,)) for link in live} | {links for links in whole if links}
    assert len(set(listed)) == len(listed)
    assert set(failures(fabric)) == set(listed)
    through = plan.loads.sum(axis=0).ravel()
    hurt = [through[list(failure)].sum() for failure in listed]
    assert hurt == sorted(hurt, reverse=True)


def test_the_failures_of_three_tiers_are_links_aggs_and_cores() -> None:
    fabric = PodClos.of(2, 2, 2, 2, 1, 1e9)
    sizes = sorted(map(len, failures(fabric)))
    assert sizes == [1] * (8 + 8) + [2] * 4 + [4] * 4  # links; cores, of two pods; aggs, of two leaves and cores


def test_only_commodities_on_a_dead_link_move_if_there_is_room() -> None:
    fabric = Clos.of(tors=4, spines=4, nics_per_tor=2, nic_rate_bps=1e9)
    plan = optimal(fabric, Commodities.of([0, 1, 2, 3], [2, 3, 4, 5]))
    after = plan_after(plan, frozenset(links.on_way(fabric, 0, 2, links.ways(plan)[0])[:1]))
    moved = [i for i, (was, way) in enumerate(zip(links.ways(plan), links.ways(after), strict=True)) if was != way]
    assert 0 in moved
    assert len(moved) <= 2
    assert after.proved


def test_all_commodities_leave_a_failed_spine() -> None:
    fabric = Clos.of(tors=2, spines=2, nics_per_tor=2, nic_rate_bps=1e9)
    plan = optimal(fabric, Commodities.of([0, 1], [2, 3]))
    first, second = map(frozenset, links.of_switches(fabric))
    assert {way[0] for way in links.ways(plan_after(plan, first))} == {1}
    lost = plan_after(plan_after(plan, first), second)
    assert {way[0] for way in links.ways(lost)} == {UNREACHABLE}


def test_a_failure_of_an_unknown_link_is_refused() -> None:
    plan = optimal(Clos.of(2, 2, 2, 1e9), Commodities.of([0], [2]))
    with pytest.raises(IndexError):
        plan_after(plan, frozenset((99,)))


class Maker:
    """Answers with the plan's version and the case, and remembers what it was asked."""

    def __init__(self) -> None:
        self.version = 0
        self.asked: list[str] = []

    def cases(self) -> list[str]:
        return ["worst", "bad", "mild"]

    def make(self, case: str) -> tuple[int, str]:
        self.asked.append(case)
        return self.version, case


def test_answers_are_computed_one_per_step_in_order() -> None:
    maker = Maker()
    ready: Precomputed[str, tuple[int, str]] = Precomputed(maker.cases, maker.make)
    assert maker.asked == []
    assert not ready.done
    assert ready.for_failure("worst") is None
    assert [ready.step() for _ in range(5)] == [True, True, True, False, False]
    assert ready.done
    assert maker.asked == ["worst", "bad", "mild"]
    assert ready.for_failure("bad") == (0, "bad")
    assert ready.for_failure("unheard of") is None


@settings(derandomize=True)
@given(st.lists(st.sampled_from(["step", "restart"]), max_size=40))
def test_no_answer_survives_a_restart(calls: list[str]) -> None:
    maker = Maker()
    ready: Precomputed[str, tuple[int, str]] = Precomputed(maker.cases, maker.make)
    since = 0
    for call in calls:
        if call == "step":
            since += ready.step()
        else:
            maker.version += 1
            ready.restart()
            since = 0
        answers = [ready.for_failure(case) for case in maker.cases()]
        assert answers == [(maker.version, case) if i < since else None for i, case in enumerate(maker.cases())]
        assert len(ready) == since
        assert ready.done == (since == 3)


def test_plans_can_be_precomputed() -> None:
    fabric = Clos.of(tors=3, spines=2, nics_per_tor=2, nic_rate_bps=1e9)
    plan = optimal(fabric, Commodities.of([0, 2, 4], [2, 4, 0]))
    ready: Precomputed[Failure, AnyPlan] = Precomputed(
        lambda: failures(fabric, plan), lambda case: plan_after(plan, case)
    )
    while ready.step():
        pass
    assert len(ready) == 2 + 6
    for case in failures(fabric):
        prepared = ready.for_failure(case)
        assert prepared is not None
        assert links.ways(prepared) == links.ways(plan_after(plan, case))
