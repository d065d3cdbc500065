# SPDX-License-Identifier: Apache-2.0
"""The integer program solved by spine bisection, beside edge colouring and brute force, and without branching."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdn.planners import Clos, Commodities, ilp, optimal, spine_bisection
from tests.sdn.planners.sample import RATE, check_routes, commodities, fabrics, least_congestion

for_all_examples = settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def linear_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No branch and bound, neither at first nor because a linear program's answer was not whole."""
    solved = spine_bisection._solved

    def linear(*arguments: Any) -> Any:
        *_, integer, _, _ = arguments
        assert not integer
        return solved(*arguments)

    monkeypatch.setattr(spine_bisection, "_solved", linear)


@for_all_examples
@given(data=st.data())
def test_equal_spines_need_linear_programs_only(linear_only: None, data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=8, spines=9, parallel=3, nics=6))
    fabric = fabric.without(spines=data.draw(st.sets(st.integers(0, fabric.spines - 1), max_size=fabric.spines - 1)))
    asked = data.draw(commodities(fabric, most=100))
    plan = ilp(fabric, asked)
    check_routes(plan)
    assert plan.proved
    assert plan.congestion == optimal(fabric, asked).congestion


@for_all_examples
@given(data=st.data())
def test_spines_that_differ_only_from_each_other_need_linear_programs_only(
    linear_only: None, data: st.DataObject
) -> None:
    fabric = data.draw(fabrics(tors=3, nics=4))
    rate_bps = fabric.link_rate_bps[0]
    rates = data.draw(
        st.lists(st.sampled_from([0, RATE / 3, RATE / 2, RATE]), min_size=rate_bps.size, max_size=rate_bps.size)
    )
    each = np.broadcast_to(np.reshape(rates, rate_bps.shape), fabric.link_rate_bps.shape)
    fabric = Clos(fabric.nic_tor, fabric.nic_rate_bps, each)
    asked = data.draw(commodities(fabric, most=7))
    plan = ilp(fabric, asked)
    check_routes(plan)
    assert plan.proved
    assert plan.congestion == pytest.approx(least_congestion(fabric, asked))


def test_a_permutation_of_many(linear_only: None) -> None:
    fabric = Clos.of(24, 20, 40, RATE, parallel=2)
    to = np.random.default_rng(5).permutation(fabric.nics)
    moving = to != np.arange(fabric.nics)
    plan = ilp(fabric, Commodities.of(np.flatnonzero(moving), to[moving]))
    check_routes(plan)
    assert plan.proved
    assert plan.congestion * RATE == pytest.approx(1)


def full_with_dead_links(seed: int) -> tuple[Clos, Commodities]:
    """As many commodities at each ToR as it has links left: nothing may be dealt out wrongly."""
    rng = np.random.default_rng(seed)
    fabric = Clos.of(16, 8, 16, RATE, parallel=2)
    fabric = fabric.without(links=[tuple(rng.integers(0, fabric.link_rate_bps.shape)) for _ in range(9)])  # type: ignore[misc]
    src = np.flatnonzero(np.arange(16) < (fabric.link_rate_bps > 0).sum(axis=(1, 2))[:, None])
    dst = rng.permutation(src)
    return fabric, Commodities.of(src, dst).take(src != dst)


@pytest.mark.parametrize("seed", range(3))
def test_dead_links_make_classes_of_spines(seed: int) -> None:
    fabric, asked = full_with_dead_links(seed)
    plan = ilp(fabric, asked)
    check_routes(plan)
    assert plan.proved
    assert plan.congestion * RATE == pytest.approx(1)


def test_non_integer_solutions_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = spine_bisection._solved

    def unlucky(*arguments: Any) -> Any:
        *_, integer, _, _ = arguments
        possible, x = solved(*arguments)
        return possible, x if integer else None

    monkeypatch.setattr(spine_bisection, "_solved", unlucky)
    fabric = Clos.of(6, 5, 5, RATE)
    plan = ilp(fabric, Commodities.of(np.arange(30), (np.arange(30) * 7 + 5) % 30))
    check_routes(plan)
    assert plan.proved


def test_without_time_the_plan_is_valid_and_its_bound_holds() -> None:
    fabric, asked = full_with_dead_links(0)
    plan = ilp(fabric, asked, time_limit_s=0.0)
    check_routes(plan)
    assert plan.bound * RATE == pytest.approx(1)
    assert plan.congestion >= plan.bound * (1 - 1e-9)
