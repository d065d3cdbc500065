# SPDX-License-Identifier: Apache-2.0
"""Times in text: "50 us", "2 ms", 0.002 (s)."""

import re
from decimal import Decimal
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from netmodel.quantity_schema import DECIMAL, written
from netmodel.topology import DELAY_S_MAX

_UNITS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9")}
_SAID = "not a time: write it like '50 us', '2 ms' or 0.002 (s)"
_TIME = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[mnuµ]?s)")


def parse_seconds(value: object) -> object:
    """Seconds from text of a number and a unit; what is no text is returned as it is, for a validator behind this one.

    Raises ValueError, whose text says how to write a time.
    """
    if not isinstance(value, str):
        return value
    match = _TIME.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is {_SAID}")
    return float(Decimal(match["number"]) * _UNITS[match["unit"]])


WRITTEN_SECONDS = written("number", rf"{DECIMAL}\s*[mnuµ]?s", _SAID, 0)
"""What `parse_seconds` reads, as the type of a JSON Schema."""


def format_seconds(time_s: float) -> str:
    """A time of 0 or more as `parse_seconds` reads it, exact: 1.5e-06 -> "1.5 us"."""
    exact = Decimal(repr(time_s))
    unit = next((unit for unit in ("s", "ms", "us") if exact >= _UNITS[unit]), "ns" if exact else "s")
    # "f": never an exponent.
    number = f"{exact / _UNITS[unit]:f}"
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


DelayS: TypeAlias = Annotated[
    float, BeforeValidator(parse_seconds, json_schema_input_type=WRITTEN_SECONDS), Field(ge=0, le=DELAY_S_MAX)
]
"""A pydantic field with the delay of a link in seconds, as `parse_seconds` reads it."""
