# SPDX-License-Identifier: Apache-2.0
"""Rates in text: "20 Mbit/s", "100G", 1000000 (bit/s)."""

import re
from decimal import Decimal
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from netmodel.quantity_schema import DECIMAL, WHOLE, written
from netmodel.topology import RATE_BPS_MAX

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SAID = "not a rate: write it like '20 Mbit/s', '100G' or 1000000 (bit/s)"
_ABOVE_ZERO = rf"(?=[0.]*[1-9])({WHOLE}\s*|{DECIMAL}\s*[kKMGT])(bit/s|bps|bit)?"
_RATE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<prefix>[kKMGT]?)(?:bit/s|bps|bit)?")


def parse_rate(value: object) -> int:
    """A rate in bit/s from an int (bit/s) or a string: a number, an optional prefix k, M, G or T, an optional "bit/s".

    Prefixes are decimal (1 k = 1000). Raises ValueError, whose text says how to write a rate, for anything else: a rate
    that is not a whole number of bits per second, not positive, above 1 Pbit/s, or given in bytes.
    """
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        exact = Decimal(match["number"]) * _PREFIXES[match["prefix"]]
        rate = int(exact)
        if rate != exact:
            raise ValueError(f"rate {value!r} is not a whole number of bits per second")
    elif isinstance(value, int) and not isinstance(value, bool):
        rate = value
    else:
        raise ValueError(f"{value!r} is {_SAID}")
    if not 1 <= rate <= RATE_BPS_MAX:
        raise ValueError(f"rate {value!r} must lie between 1 bit/s and {format_rate(RATE_BPS_MAX)}")
    return rate


def format_rate(rate_bps: int) -> str:
    """A rate as `parse_rate` reads it, exact: 20000000 -> "20 Mbit/s", 1500 -> "1500 bit/s"."""
    for prefix in ("T", "G", "M", "k"):
        if rate_bps and rate_bps % _PREFIXES[prefix] == 0:
            return f"{rate_bps // _PREFIXES[prefix]} {prefix}bit/s"
    return f"{rate_bps} bit/s"


RateBps: TypeAlias = Annotated[
    int,
    BeforeValidator(
        parse_rate,
        json_schema_input_type=written("integer", _ABOVE_ZERO, _SAID, 1, RATE_BPS_MAX),
    ),
]
"""A pydantic field in bit/s that accepts what `parse_rate` accepts."""
