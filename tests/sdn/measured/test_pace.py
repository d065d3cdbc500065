# SPDX-License-Identifier: Apache-2.0
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdn.measured.pace import Pace, Schedule

PACE = Pace(router_per_s=100, host_router_per_s=1, host_router_burst=2, host_per_s=1_000)


def sent(
    schedule: Schedule[str, tuple[int, int]], until_s: float, step_s: float = 0.01
) -> dict[tuple[int, int], float]:
    """The items by the time at which they were due."""
    times: dict[tuple[int, int], float] = {}
    for step in range(round(until_s / step_s)):
        for item in schedule.due(step * step_s):
            assert item not in times
            times[item] = step * step_s
    return times


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8))
def test_routers_and_hosts_get_no_more_than_their_pace(hosts: int, routers: int, probes: int) -> None:
    schedule: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for host in range(hosts):
        for number in range(30):
            schedule.add(0.0, "cores", routers, host, (host, number), probes)
    times = sent(schedule, 3.0, 0.05)
    for begin_s in (0.0, 0.5, 1.0, 2.0):
        own = Counter(host for (host, _), at_s in times.items() if begin_s <= at_s < begin_s + 1)
        assert all(count * probes <= routers * (1 + 2) + probes for count in own.values())
        assert own.total() * probes <= routers * 100 * 1.1 + probes
    assert len(schedule) == hosts * 30 - len(times)
    left = schedule.due(1e6)
    assert {(host, number) for host, number in left}.isdisjoint(times)


def test_the_pace_is_kept_up() -> None:
    """A long queue is sent at the full rate, of routers or of a host."""
    schedule: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for host in range(100):
        for number in range(30):
            schedule.add(0.0, "cores", 4, host, (host, number), 1)
    assert len(sent(schedule, 4.0)) == pytest.approx(4 * 4 * 100, rel=0.1)
    alone: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for number in range(100):
        alone.add(0.0, "cores", 4, 7, (7, number), 1)
    assert len(sent(alone, 10.0)) == pytest.approx(4 * 2 + 10 * 4, rel=0.1)


def test_hosts_take_turns_and_their_items_are_in_order() -> None:
    schedule: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for host in (1, 2):
        for number in range(40):
            schedule.add(0.0, "spines", 2, host, (host, number), 1)
    times = list(sent(schedule, 20.0))
    assert [number for host, number in times if host == 1] == list(range(len(times) // 2))
    later = [host for host, _ in times[8:]]
    assert abs(later.count(1) - later.count(2)) <= 2


def test_what_is_urgent_goes_first_and_counts() -> None:
    schedule: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for number in range(20):
        schedule.add(0.0, "spines", 2, 1, (1, number), 1)
    assert len(schedule.due(0.0)) == 4  # two routers, a burst of two each
    for number in range(100, 102):
        schedule.add(0.1, "spines", 2, 1, (1, number), 1, urgent=True)
    times = sent(schedule, 5.0)
    order = sorted(times, key=lambda item: times[item])
    assert order[:2] == [(1, 100), (1, 101)]
    assert len(times) == pytest.approx(2 * 5, abs=2)


def test_sets_of_routers_do_not_hold_each_other_up() -> None:
    schedule: Schedule[str, tuple[int, int]] = Schedule(PACE)
    for number in range(1_000):
        schedule.add(0.0, "cores", 1, number, (number, 0), 1)
    schedule.add(0.0, "aggs", 1, 5, (5, 1), 1)
    assert (5, 1) in schedule.due(0.0)


def test_an_item_that_nobody_wants_any_more_takes_no_turn() -> None:
    schedule: Schedule[str, str] = Schedule(Pace(host_router_per_s=1.0, host_router_burst=1.0))
    for item in ("gone", "too", "wanted"):
        schedule.add(0.0, "core1", 1, 7, item, 1)
    assert schedule.due(0.0, lambda item: item == "wanted") == ["wanted"]
    assert len(schedule) == 0
