# SPDX-License-Identifier: Apache-2.0
"""The units in which reports write numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.report.scales import Scale, digits, of_rates, of_sizes, of_times, said


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00033554, "336 us"), (2.36, "2.36 s"), (12345.6, "12,346 s"), (0.0, "0 s"), (1e-9, "1 ns"), (0.01, "10 ms")],
)
def test_a_time_is_said_in_the_unit_that_fits_it(seconds: float, text: str) -> None:
    assert said(seconds) == text


def test_one_unit_fits_the_largest_of_a_row() -> None:
    assert of_times([0.0003, 0.0017]) == Scale("ms", 1e-3)
    assert of_rates([5.1e13, 1e9]).unit == "Tbit/s"
    assert of_sizes([34_000_000, 12]).unit == "MB"
    assert [scales([]).one for scales in (of_times, of_rates, of_sizes)] == [1.0, 1.0, 1.0]


def test_numbers_of_a_column_have_their_trailing_zeros() -> None:
    assert [digits(value) for value in (6.81, 7.295, 0.4, 12345.6)] == ["6.810", "7.295", "0.4000", "12,346"]


@given(st.floats(1e-8, 1e15), st.integers(1, 6))
def test_digits_keep_the_number_and_all_whole_digits(value: float, significant: int) -> None:
    text = digits(value, significant)
    assert "e" not in text
    apart = abs(float(text.replace(",", "")) - value)
    assert apart <= min(0.5, 0.5 * 10.0 ** (1 - significant) * value) * (1 + 1e-9) or apart <= 1e-15 * value
