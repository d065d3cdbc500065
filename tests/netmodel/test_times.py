# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel.times import format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("written", "time_s"),
    [("50 us", 50e-6), ("1.5us", 1.5e-6), ("2 ms", 2e-3), (" 7 ns ", 7e-9), ("3 µs", 3e-6), ("0 s", 0.0), (0.25, 0.25)],
)
def test_times_are_parsed_from_common_notations(written: object, time_s: float) -> None:
    assert parse_seconds(written) == time_s


@pytest.mark.parametrize("written", ["", "5", "us", "-1 us", "1e-6 s", "5 min", "٣ us", "1. s"])
def test_what_is_no_time_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write it like '50 us', '2 ms' or"):
        parse_seconds(written)


@pytest.mark.parametrize(
    ("time_s", "written"),
    [(0.0, "0 s"), (1.5e-6, "1.5 us"), (0.1, "100 ms"), (120.0, "120 s"), (1e-10, "0.1 ns"), (600e-9, "600 ns")],
)
def test_times_are_written_with_the_largest_unit_that_fits(time_s: float, written: str) -> None:
    assert format_seconds(time_s) == written


@given(st.floats(0, 1e6))
def test_a_time_that_is_written_is_read_as_it_was(time_s: float) -> None:
    assert parse_seconds(format_seconds(time_s)) == time_s
