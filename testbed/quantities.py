# SPDX-License-Identifier: Apache-2.0
"""Quantities in a spec: probabilities like "1 %", sizes like "40 KB", times like "50 us".

Plain numbers are in base units.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field

from netmodel.quantity_schema import DECIMAL, WHOLE, written
from netmodel.times import WRITTEN_SECONDS, parse_seconds

_WRITTEN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z%]+)")
_NO_SHARE = "not a probability: write it like '1 %' or 0.01"
_NO_SIZE = "not a size: write it like '4 MiB', '40 KB' or 40000 (bytes)"
_SIZES = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = rf"{WHOLE}\s*B|{DECIMAL}\s*({'|'.join(unit for unit in _SIZES if unit != 'B')})"


def _reader(units: Mapping[str, int | Decimal], kind: type[int] | type[float], said: str) -> Callable[[object], object]:
    """A validator that reads text of a number and one of `units`, and passes other types on."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        match = _WRITTEN.fullmatch(value.strip())
        if match is None or match["unit"] not in units:
            raise ValueError(f"{value!r} is {said}")
        quantity = Decimal(match["number"]) * units[match["unit"]]
        if kind is int and quantity != quantity.to_integral_value():
            raise ValueError(f"{value!r} is not a whole number of bytes")
        return kind(quantity)

    return read


Share = Annotated[
    float,
    BeforeValidator(
        _reader({"%": Decimal("0.01")}, float, _NO_SHARE),
        json_schema_input_type=written("number", r"0*(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)\s*%", _NO_SHARE, 0, 1),
    ),
    Field(ge=0, le=1),
]
"""A probability from 0 to 1."""

Bytes = Annotated[
    int,
    BeforeValidator(
        _reader(_SIZES, int, _NO_SIZE),
        json_schema_input_type=written("integer", _SIZE, _NO_SIZE, 0),
    ),
    Field(ge=0),
]
"""A size in bytes; KB, MB and GB are decimal, KiB, MiB and GiB powers of two."""

Seconds = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=WRITTEN_SECONDS), Field(ge=0)]
"""A time in seconds."""
