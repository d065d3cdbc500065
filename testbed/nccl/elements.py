# SPDX-License-Identifier: Apache-2.0
"""Element types, reductions, and the data that ranks send. Pure: no device, no NCCL, no packages.

Data are small whole numbers that every type holds exactly, chosen so that every partial result of a reduction is exact
too, in whatever order it is made. Every byte of a result is therefore known.
"""

import random
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

PERIOD = 65_521
"""Elements after which a rank's data repeat: a prime, so data shifted by any power of two are noticed."""

_LARGEST = 127
"""Largest magnitude of a value, where the type and the reduction allow it."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type of NCCL's elements."""

    name: str
    number: int
    """The value of ncclDataType_t."""
    width: int
    """Bytes of an element."""
    exact: int
    """Every whole number up to this magnitude is exact."""
    code: str
    """The format of one element in module struct; "" for bfloat16, the upper half of a float32 (code "f")."""

    @property
    def is_float(self) -> bool:
        """Whether it is a floating point type."""
        return self.code in ("f", "e", "")

    def encode(self, values: Sequence[int]) -> bytes:
        """The elements of whole numbers up to `exact`."""
        if self.code == "":
            wide = array("f", values).tobytes()
            halves = bytearray(len(wide) // 2)
            halves[0::2], halves[1::2] = wide[2::4], wide[3::4]
            return bytes(halves)
        return struct.pack(f"<{len(values)}{self.code}", *values)

    def decode(self, element: bytes) -> float:
        """The value of one element."""
        if self.code == "":
            return float(struct.unpack("<f", b"\0\0" + element)[0])
        return float(struct.unpack(f"<{self.code}", element)[0])

    def rounded(self, value: float) -> float:
        """The nearest value of a floating point type, ties to even."""
        if self.code:
            return float(struct.unpack(f"<{self.code}", struct.pack(f"<{self.code}", value))[0])
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])


TYPES = {
    each.name: each
    for each in (
        ElementType("float32", 7, 4, 2**24, "f"),
        ElementType("float16", 6, 2, 2**11, "e"),
        ElementType("bfloat16", 9, 2, 2**8, ""),
        ElementType("int32", 2, 4, 2**31 - 1, "i"),
        ElementType("int64", 4, 8, 2**63 - 1, "q"),
    )
}

REDUCTIONS = {"sum": 0, "max": 2, "min": 3, "avg": 4}
"""Numbers of ncclRedOp_t."""

COPY = "none"
"""The reduction of a collective that reduces nothing, as nccl-tests names it."""


def values(element: ElementType, redop: str, ranks: int) -> Sequence[int]:
    """The values of a rank's data: up to 256 whole numbers, of which every partial result among `ranks` is exact.

    For floating point types NCCL's average multiplies by 1/ranks before it adds (src/enqueue.cc, hostToDevRedOp). Its
    values are the multiples of `ranks` of which that product is exact after rounding.
    """
    if redop == "sum":
        largest = min(_LARGEST, element.exact // ranks)
        return range(-largest, largest + 1)
    if redop == "avg":
        if not element.is_float:
            return range(_LARGEST + 1)
        share = element.rounded(TYPES["float32"].rounded(1 / ranks))
        largest = min(_LARGEST, element.exact // ranks)
        return [ranks * each for each in range(largest + 1) if element.rounded(ranks * each * share) == each]
    return range(-_LARGEST - 1, _LARGEST + 1)


def sent(element: ElementType, redop: str, ranks: int, rank: int, count: int, first: int = 0) -> bytes:
    """The elements that `rank` sends, `count` from element `first` on."""
    return tiled(_encoded(element, redop, ranks, rank), element.width, first, count)


def reduced(element: ElementType, redop: str, ranks: int, count: int, first: int = 0) -> bytes:
    """The reduction of all ranks' data, `count` elements from element `first` on."""
    return tiled(_reduced_block(element, redop, ranks), element.width, first, count)


def tiled(block: bytes, width: int, first: int, count: int) -> bytes:
    """Elements `first` to `first + count` of a block that repeats for ever; an element has `width` bytes."""
    start = first * width % len(block)
    turned = block[start:] + block[:start]
    whole, rest = divmod(count * width, len(turned))
    return b"".join([turned] * whole + [turned[:rest]])


def wrong_elements(got: bytes | bytearray, expected: bytes, width: int) -> list[int]:
    """Indices of the elements of `width` bytes that differ. Lengths must be equal."""
    if len(got) != len(expected):
        raise ValueError(f"{len(got)} and {len(expected)} bytes cannot be compared")
    if got == expected:
        return []
    wrong = []
    piece = 4096 * width
    for start in range(0, len(got), piece):
        ours, theirs = got[start : start + piece], expected[start : start + piece]
        if ours != theirs:
            wrong += [
                (start + at) // width
                for at in range(0, len(ours), width)
                if ours[at : at + width] != theirs[at : at + width]
            ]
    return wrong


@lru_cache(maxsize=64)
def _numbers(element: ElementType, redop: str, ranks: int, rank: int) -> list[int]:
    allowed = values(element, redop, ranks)
    return [allowed[byte % len(allowed)] for byte in random.Random(rank).randbytes(PERIOD)]


@lru_cache(maxsize=64)
def _encoded(element: ElementType, redop: str, ranks: int, rank: int) -> bytes:
    return element.encode(_numbers(element, redop, ranks, rank))


@lru_cache(maxsize=8)
def _reduced_block(element: ElementType, redop: str, ranks: int) -> bytes:
    reductions: dict[str, Callable[[tuple[int, ...]], int]] = {
        "sum": sum,
        "max": max,
        "min": min,
        "avg": lambda column: sum(column) // ranks,
    }
    columns = zip(*(_numbers(element, redop, ranks, rank) for rank in range(ranks)), strict=True)
    return element.encode([reductions[redop](column) for column in columns])
