# SPDX-License-Identifier: Apache-2.0
"""Plans on three tiers that are kept up: always live paths, optimal with full bisection, and few moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners import UNREACHABLE, Commodities
from sdn.planners.pods import IncrementalPods, PodClos, optimal
from tests.sdn.planners.pods.sample import RATE, check_routes


@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data())
def test_every_change_keeps_the_optimum_of_full_bisection(data: st.DataObject) -> None:
    fabric = PodClos.of(3, 2, 2, 2, 2, RATE)
    live = IncrementalPods(fabric)
    known = {}
    nic = st.integers(0, fabric.nics - 1)
    for _ in range(data.draw(st.integers(1, 25))):
        if known and data.draw(st.integers(0, 2)) == 0:
            number = data.draw(st.sampled_from(sorted(known)))
            del known[number]
            changed = live.depart(number)
        else:
            src, dst = data.draw(nic), data.draw(nic)
            if src == dst:
                continue
            route, changed = live.arrive(src, dst)
            known[route.commodity] = route
        known |= {route.commodity: route for route in changed}
        assert known == {number: live.route(number) for number in live.numbers()}  # every change was told
        plan = live.plan()
        check_routes(plan)
        assert plan.proved


def test_an_arrival_moves_a_bounded_chain() -> None:
    """A fat-tree of 8 ports, full but for two hosts: one chain of leaves, and one of pods for each commodity moved."""
    fabric = PodClos.of(8, 4, 4, 4, 4, RATE)
    to = np.roll(np.random.default_rng(4).permutation(fabric.nics), 1)
    keep = np.flatnonzero(to != np.arange(fabric.nics))
    live = IncrementalPods(fabric, Commodities.of(keep, to[keep]))
    rng = np.random.default_rng(5)
    numbers = {number: (int(keep[at]), int(to[keep[at]])) for at, number in enumerate(live.numbers())}
    for _ in range(30):
        one, other = rng.choice(sorted(numbers), 2, replace=False).tolist()
        ends = numbers.pop(one), numbers.pop(other)
        for number in (one, other):
            live.depart(number)
        for src, dst in ((ends[0][0], ends[1][1]), (ends[1][0], ends[0][1])):
            if src == dst:
                continue
            route, moved = live.arrive(src, dst)
            assert len(moved) < fabric.low.tors * fabric.pods
            numbers[route.commodity] = src, dst
        assert live.plan().proved


@pytest.mark.parametrize("seed", range(6))
def test_dead_links_move_what_they_carried(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fabric = PodClos.of(3, 2, 2, 2, 2, RATE)
    src = np.arange(fabric.nics)
    live = IncrementalPods(fabric, Commodities.of(src, np.roll(src, -4)))
    for _ in range(6):
        dead_low = [tuple(map(int, at)) for at in np.argwhere(rng.random(fabric.low.link_rate_bps.shape) < 0.15)]
        dead_high = [tuple(map(int, at)) for at in np.argwhere(rng.random(fabric.core_rate_bps.shape) < 0.25)]
        before = {number: live.route(number) for number in live.numbers()}
        changed = live.refit(fabric.without(dead_low, dead_high))
        after = {number: live.route(number) for number in live.numbers()}
        assert {route.commodity for route in changed} == {n for n in before if before[n] != after[n]}
        plan = live.plan()
        check_routes(plan)
        assert plan.congestion <= 2 * optimal(plan.fabric, plan.commodities).congestion
    live.refit(fabric)
    assert UNREACHABLE not in live.plan().agg


def test_an_unknown_commodity_cannot_depart() -> None:
    with pytest.raises(KeyError, match="there is no commodity 3"):
        IncrementalPods(PodClos.of(2, 1, 1, 1, 1, RATE)).depart(3)
