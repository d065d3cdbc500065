# SPDX-License-Identifier: Apache-2.0
"""The unit in which a row of numbers is read best: 0.000336 s is 336 us, 5e13 bit/s are 50 Tbit/s."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit by its name, and how many of the base unit it is."""

    unit: str
    one: float

    def of(self, value: float) -> float:
        """A value in base units, in this unit."""
        return value / self.one


_TIMES = (Scale("s", 1.0), Scale("ms", 1e-3), Scale("us", 1e-6), Scale("ns", 1e-9))
_RATES = (Scale("Tbit/s", 1e12), Scale("Gbit/s", 1e9), Scale("Mbit/s", 1e6), Scale("kbit/s", 1e3), Scale("bit/s", 1.0))
_SIZES = (Scale("TB", 1e12), Scale("GB", 1e9), Scale("MB", 1e6), Scale("kB", 1e3), Scale("B", 1.0))


def of_times(seconds: Iterable[float]) -> Scale:
    """The unit of these times, so that the longest is at least one of it."""
    return _fitting(_TIMES, seconds)


def of_rates(bits_per_second: Iterable[float]) -> Scale:
    """The unit of these rates, so that the largest is at least one of it."""
    return _fitting(_RATES, bits_per_second)


def of_sizes(sizes: Iterable[float]) -> Scale:
    """The unit of these sizes in bytes, so that the largest is at least one of it."""
    return _fitting(_SIZES, sizes)


def said(seconds: float) -> str:
    """A time with up to three significant digits and its unit: 0.00033554 -> "336 us"."""
    scale = of_times([seconds])
    number = digits(scale.of(seconds), 3)
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {scale.unit}"


def digits(value: float, significant: int = 4) -> str:
    """A number with as many significant digits, and no exponent: whole digits are never cut off."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, significant - 1 - magnitude)}f}"


def _fitting(scales: tuple[Scale, ...], values: Iterable[float]) -> Scale:
    largest = max((abs(value) for value in values), default=0.0)
    if not largest:
        return next(scale for scale in scales if scale.one == 1.0)
    return next((scale for scale in scales if largest >= scale.one), scales[-1])
