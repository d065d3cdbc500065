# SPDX-License-Identifier: Apache-2.0
"""Forecasts: exactly the flows that repeat are forecast, and the hit rate is right."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.forecast import Announced, Expected, Forecast, phases
from sdn.forecast.phases import MAX_LAG, MOST_OF_SOURCE, TOLERANCE

PERIOD = st.floats(1e-3, 1e3)


def tell(forecast: Forecast, *starts: float, size: int = 100, job: str = "bert", repeat_s: float | None = None) -> None:
    for at_s in starts:
        forecast.observe(Announced(at_s, job, "10.0.0.1", "10.0.1.1", size, repeat_s))


def test_a_flow_is_not_forecast_before_it_repeats() -> None:
    forecast = Forecast()
    tell(forecast, 0.0, 1.0, 2.0)
    assert forecast.expected(2.5) == []
    assert forecast.hit_rate.rate is None
    assert forecast.hit_rate.unforeseen == 3


def test_a_period_is_learned_from_four_starts() -> None:
    forecast = Forecast()
    tell(forecast, 0.0, 1.0, 2.02, 2.99)
    (expected,) = forecast.expected(3.5)
    assert expected == Expected(3.99, "bert", "10.0.0.1", "10.0.1.1", 100, 1.0)
    assert forecast.expected(3.5, within_s=0.4) == []
    assert forecast.expected(3.5, within_s=0.5) == [expected]


def test_an_announced_period_is_used_at_once() -> None:
    forecast = Forecast()
    tell(forecast, 5.0, repeat_s=0.25)
    assert [(start.at_s, start.period_s) for start in forecast.expected(5.0)] == [(5.25, 0.25)]
    tell(forecast, 5.25, repeat_s=0.25)
    assert forecast.hit_rate.hits == 1


@settings(derandomize=True)
@given(st.data())
def test_repeating_flows_are_forecast_with_their_bytes(data: st.DataObject) -> None:
    """Up to four starts in a period, at any distances; some jitter. After four periods every start is a hit."""
    period_s = data.draw(PERIOD)
    cuts = data.draw(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=MAX_LAG))
    offsets = [period_s * part / sum(cuts) for part in itertools.accumulate(cuts)]
    sizes = data.draw(st.lists(st.integers(1, 10**12), min_size=len(cuts), max_size=len(cuts)))
    jitter = st.floats(-0.01, 0.01).map(lambda part: part * period_s * min(cuts) / sum(cuts))
    forecast = Forecast()
    for turn in range(12):
        learned = turn >= 4
        for offset_s, size in zip(offsets, sizes, strict=True):
            at_s = turn * period_s + offset_s + data.draw(jitter)
            before = forecast.hit_rate
            foreseen = [
                start for start in forecast.expected(at_s) if abs(start.at_s - at_s) <= TOLERANCE * start.period_s
            ]
            tell(forecast, at_s, size=size)
            if learned:
                assert forecast.hit_rate.hits == before.hits + 1
                assert foreseen
                if foreseen[0].period_s > 0.95 * period_s:  # several starts may look like one that comes more often
                    assert foreseen[0].bytes == size
    assert forecast.hit_rate.rate is not None


@settings(derandomize=True)
@given(st.lists(st.floats(0, 1e6), max_size=60), st.floats(0, 2e6))
def test_every_start_is_counted_once(times: list[float], now_s: float) -> None:
    forecast = Forecast()
    tell(forecast, *times)
    rate = forecast.hit_rate
    kept = [t for i, t in enumerate(times) if i == 0 or t > max(times[:i])]
    assert rate.hits + rate.misses + rate.unforeseen == len(kept)
    for start in forecast.expected(now_s):
        assert start.latest_s >= now_s
        assert start.period_s > 0
    assert forecast.expected(now_s) == forecast.expected(now_s)


def test_a_job_that_ends_is_one_miss_and_then_forgotten() -> None:
    forecast = Forecast()
    tell(forecast, 0.0, 1.0, 2.0, 3.0, 4.0)
    assert forecast.hit_rate.hits == 1
    assert forecast.expected(100.0) == forecast.expected(200.0) == []
    assert forecast.hit_rate.misses == 1
    tell(forecast, 300.0)
    assert forecast.hit_rate.misses == 1


@settings(derandomize=True)
@given(st.integers(1, 20), st.integers(1, 40))
def test_memory_is_bounded(most: int, flows: int) -> None:
    forecast = Forecast(most_flows=most)
    for number in range(flows):
        forecast.observe(Announced(float(number), "job", "10.0.0.1", f"10.0.1.{number}", 1))
    assert len(forecast) == min(most, flows)


def test_phases_are_flows_of_one_job_that_begin_together() -> None:
    def flow(at_s: float, job: str, dst: str) -> Expected:
        return Expected(at_s, job, "10.0.0.1", dst, 1, 1.0)

    first, second, later, other = flow(1.0, "a", "x"), flow(1.05, "a", "y"), flow(1.4, "a", "x"), flow(1.01, "b", "x")
    assert phases([later, other, second, first]) == [(first, second), (other,), (later,)]
    assert phases([]) == []


@settings(derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 10), st.sampled_from("ab"), st.floats(0.1, 5)), max_size=30))
def test_phases_partition_expected_flows(rows: list[tuple[float, str, float]]) -> None:
    expected = [Expected(at, job, "s", f"d{i}", 1, period) for i, (at, job, period) in enumerate(rows)]
    groups = phases(expected)
    assert sorted(itertools.chain(*groups)) == sorted(expected)
    assert all(len({start.job for start in group}) == 1 for group in groups)
    assert groups == sorted(groups)


def test_one_source_does_not_push_out_the_flows_of_others() -> None:
    forecast = Forecast(most_flows=MOST_OF_SOURCE + 2)
    forecast.observe(Announced(0.0, "bert", "10.0.0.2", "10.0.1.1", 1, 1e6))
    for number in range(2 * MOST_OF_SOURCE):
        forecast.observe(Announced(1.0 + number, f"job {number}", "10.0.0.1", "10.0.1.1", 1, 1e6))
        assert len(forecast) <= MOST_OF_SOURCE + 1
    kept = forecast.expected(1e5)
    assert kept[0].src == "10.0.0.2"
    assert kept[-1].job == f"job {2 * MOST_OF_SOURCE - 1}"
    for source in range(3, 6):
        forecast.observe(Announced(1e5 + source, "bert", f"10.0.0.{source}", "10.0.1.1", 1, 1e6))
    assert len(forecast) == MOST_OF_SOURCE + 2
    assert "10.0.0.2" not in {flow.src for flow in forecast.expected(1e5)}, "of all, the ones announced last are kept"
