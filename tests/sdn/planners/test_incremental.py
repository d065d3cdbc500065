# SPDX-License-Identifier: Apache-2.0
"""Plans kept up while commodities arrive and depart: as good as from scratch, with few and reported reroutes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.planners import LOCAL, Clos, Commodities, Incremental, Plan, Route, optimal, repair
from tests.sdn.planners.sample import RATE, check_routes, commodities, fabrics


class Listener:
    """The state of a listener that has received every change."""

    def __init__(self, live: Incremental) -> None:
        self.live = live
        self.routes = {number: live.route(number) for number in live.numbers()}

    def arrived(self, route: Route, moved: tuple[Route, ...]) -> None:
        assert route.commodity not in self.routes
        self._moved(moved)
        self.routes[route.commodity] = route

    def departed(self, number: int, moved: tuple[Route, ...]) -> None:
        del self.routes[number]
        self._moved(moved)

    def _moved(self, moved: tuple[Route, ...]) -> None:
        assert len({route.commodity for route in moved}) == len(moved)
        for route in moved:
            assert route.commodity in self.routes
            self.routes[route.commodity] = route

    def check(self) -> Plan:
        plan = self.live.plan()
        check_routes(plan)
        for i, number in enumerate(self.live.numbers()):
            route = Route(number, int(plan.spine[i]), int(plan.up[i]), int(plan.down[i]))
            assert route == self.routes[number] == self.live.route(number)
        assert len(self.routes) == len(self.live)
        return plan


def churn(
    data: st.DataObject, live: Incremental, demands: tuple[float, ...], reroutes: int | None, steps: int = 25
) -> None:
    """Arrivals and departures, after each of which everything is as it should be."""
    listener = Listener(live)
    exact = live.fabric.uniform_links is not None and len(demands) == 1
    for _ in range(steps):
        numbers = live.numbers()
        if numbers and data.draw(st.integers(0, 2)) == 0:
            number = data.draw(st.sampled_from(numbers))
            moved = live.depart(number)
            listener.departed(number, moved)
        else:
            src = data.draw(st.integers(0, live.fabric.nics - 1))
            dst = (src + data.draw(st.integers(1, live.fabric.nics - 1))) % live.fabric.nics
            route, moved = live.arrive(src, dst, data.draw(st.sampled_from(demands)))
            listener.arrived(route, moved)
        assert reroutes is None or len(moved) <= reroutes
        plan = listener.check()
        if exact and reroutes is None:
            assert plan.proved
            assert plan.congestion == pytest.approx(optimal(plan.fabric, plan.commodities).congestion)
        assert plan.bound <= plan.congestion * (1 + 1e-9)


@settings(derandomize=True, max_examples=40)
@given(st.data())
def test_whole_fabrics_stay_optimal(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=3, nics=4))
    churn(data, Incremental(fabric, data.draw(commodities(fabric, most=20))), (1.0,), None)


@settings(derandomize=True, max_examples=40)
@given(st.data())
def test_reroutes_stay_within_their_bound(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=3, nics=4))
    reroutes = data.draw(st.integers(0, 2))
    live = Incremental(fabric, data.draw(commodities(fabric, most=20)), max_reroutes=reroutes)
    churn(data, live, (1.0,), reroutes)


@settings(derandomize=True, max_examples=40)
@given(st.data())
def test_dead_links_rates_and_demands(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(dead_links=3, rates=data.draw(st.sampled_from([(RATE,), (RATE, RATE / 2)]))))
    demands = data.draw(st.sampled_from([(1.0,), (1.0, 2.0)]))
    reroutes = data.draw(st.sampled_from([None, 0, 3]))
    live = Incremental(fabric, data.draw(commodities(fabric, demands=demands)), max_reroutes=reroutes)
    churn(data, live, demands, reroutes, steps=15)


def test_an_arrival_in_a_full_fabric_moves_fewer_than_there_are_tors() -> None:
    # Paull's bound. Two commodities swap destinations, which leaves the fabric full, with chains as the only way.
    fabric = Clos.of(16, 8, 8, RATE)
    rng = np.random.default_rng(7)
    to = rng.permutation(fabric.nics)
    live = Incremental(fabric)
    numbers = [live.arrive(i, int(to[i]))[0].commodity if to[i] != i else None for i in range(fabric.nics)]
    most = 0
    for _ in range(300):
        a, b = rng.choice(fabric.nics, 2, replace=False)
        if to[b] == a or to[a] == b or to[a] == a or to[b] == b:
            continue
        for i in (a, b):
            number = numbers[i]
            assert number is not None
            assert live.depart(number) == ()
        to[a], to[b] = to[b], to[a]
        for i in (a, b):
            route, moved = live.arrive(int(i), int(to[i]))
            numbers[i] = route.commodity
            assert len(moved) < fabric.tors
            most = max(most, len(moved))
    plan = live.plan()
    assert plan.proved
    assert plan.congestion * RATE == pytest.approx(1)
    assert most > 1


def test_too_low_a_limit_shows_in_the_gap_and_is_corrected_later() -> None:
    # Spine 0 is taken at the source, spine 1 at the destination: without a reroute two must share.
    fabric = Clos.of(4, 2, 2, RATE)
    start = optimal(fabric, Commodities.of([], []))
    live = Incremental.of(start, max_reroutes=0)
    for src, dst in ((4, 0), (5, 2), (0, 6)):
        live.arrive(src, dst)
    assert live.plan().proved
    assert live.arrive(1, 3)[1] == ()
    assert live.plan().gap == pytest.approx(1)
    freed = Incremental.of(live.plan())
    freed.depart(0)
    assert freed.plan().proved


@settings(derandomize=True, max_examples=40)
@given(st.data())
def test_repair_keeps_working_routes(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=3, nics=4))
    asked = data.draw(commodities(fabric, most=30, demands=data.draw(st.sampled_from([(1.0,), (1.0, 3.0)]))))
    before = optimal(fabric, asked)
    shape = fabric.link_rate_bps.shape
    dead = data.draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), max_size=3))
    failed = fabric.without(links=dead)
    after = repair(before, failed)
    check_routes(after)
    assert after.congestion <= optimal(failed, asked).congestion * (1 + 1e-9)
    careful = repair(before, failed, max_reroutes=0)
    check_routes(careful)
    live = failed.link_rate_bps > 0
    src, dst = fabric.nic_tor[asked.src], fabric.nic_tor[asked.dst]
    kept = (before.spine < 0) | (live[src, before.spine, before.up] & live[dst, before.spine, before.down])
    for column in ("spine", "up", "down"):
        assert (getattr(careful, column)[kept] == getattr(before, column)[kept]).all()
    restored = repair(after, fabric)
    check_routes(restored)
    assert restored.congestion <= before.congestion * (1 + 1e-9)


@settings(derandomize=True, max_examples=25)
@given(st.data())
def test_refit_returns_all_changed_routes(data: st.DataObject) -> None:
    fabric = data.draw(fabrics(tors=4, spines=3, nics=4))
    live = Incremental(fabric, data.draw(commodities(fabric, most=20)))
    listener = Listener(live)
    gone = live.numbers()[:1]
    for number in gone:
        listener.departed(number, live.depart(number))
    shape = fabric.link_rate_bps.shape
    link = st.tuples(*(st.integers(0, n - 1) for n in shape))
    for dead in data.draw(st.lists(st.lists(link, max_size=3), max_size=3)):
        for route in live.refit(fabric.without(links=dead)):
            assert listener.routes[route.commodity] != route
            listener.routes[route.commodity] = route
        listener.check()
    if fabric.nics > 1:
        listener.arrived(*live.arrive(0, fabric.nics - 1))
    listener.check()


def test_mistakes_are_refused() -> None:
    fabric = Clos.of(2, 2, 2, RATE)
    live = Incremental(fabric)
    assert live.arrive(0, 1)[0] == Route(0, LOCAL, -1, -1)
    for wrong in ((0, 4), (-1, 0), (1, 1)):
        with pytest.raises(ValueError, match=r"two different NICs of 0\.\.3"):
            live.arrive(*wrong)
    with pytest.raises(ValueError, match="demand 0 is not above 0"):
        live.arrive(0, 2, 0)
    live.depart(0)
    with pytest.raises(KeyError, match="no commodity 0"):
        live.depart(0)
    assert 0 not in live
    assert live.arrive(0, 1)[0] == Route(1, LOCAL, -1, -1)
    with pytest.raises(ValueError, match="same fabric with other links dead"):
        repair(live.plan(), Clos.of(3, 2, 2, RATE))
