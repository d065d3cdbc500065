# SPDX-License-Identifier: Apache-2.0
"""What each collective takes and must give, and how its time becomes a bandwidth. Pure: no GPU, no NCCL.

Sizes and bus bandwidth are those of nccl-tests (its doc/PERFORMANCE.md). Elements are float32 with small whole values:
sums are exact in whatever order they are made, and every byte of a result is known.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

ELEMENT_BYTES = 4
"""float32, as in nccl-tests."""

_PERIOD = 65_521
"""Elements after which a rank's data repeats: a prime, so data shifted by any power of two is noticed."""

_VALUES = 1_021
"""Values lie in 1.._VALUES; 16,000 ranks' sums stay below 2**24 and so exact."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective. `elements` below is always nccl-tests' size: of the larger of a rank's two buffers."""

    name: str
    bus_factor: Callable[[int], float]
    """Of the number of ranks: bus bandwidth / algorithm bandwidth."""
    send_is_share: bool
    """A rank sends only 1/ranks of `elements`."""
    recv_is_share: bool
    """A rank receives only 1/ranks of `elements`."""
    expected: Callable[[int, int, int], bytes]
    """Of (rank, ranks, elements): the bytes of that rank's receive buffer when all is done."""

    def send_elements(self, ranks: int, elements: int) -> int:
        """Length of a rank's send buffer."""
        return elements // ranks if self.send_is_share else elements

    def recv_elements(self, ranks: int, elements: int) -> int:
        """Length of a rank's receive buffer."""
        return elements // ranks if self.recv_is_share else elements

    def bus_bytes_per_s(self, ranks: int, size: int, seconds: float) -> float:
        """Bytes per second that the busiest link must have carried, for one operation on `size` bytes."""
        return size / seconds * self.bus_factor(ranks)


def sent(rank: int, elements: int, first: int = 0) -> bytes:
    """The data that `rank` sends, from element `first` on."""
    return _tiled(_block(rank), first, elements)


def fit(size: int, ranks: int) -> int:
    """The least number of bytes, `size` or more, that is a whole number of elements for each rank."""
    step = ELEMENT_BYTES * ranks
    return -(-size // step) * step


def first_difference(got: bytes | bytearray, expected: bytes) -> int | None:
    """Index of the first byte that differs; None when all are equal. Lengths must be equal."""
    if len(got) != len(expected):
        raise ValueError(f"{len(got)} and {len(expected)} bytes cannot be compared")
    if got == expected:
        return None
    low, high = 0, len(got)  # the first difference is in low..high-1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if got[low:middle] != expected[low:middle] else (middle, high)
    return low


@lru_cache(maxsize=64)
def _block(rank: int) -> bytes:
    return array("f", ((index * (2 * rank + 3) + 17 * rank) % _VALUES + 1 for index in range(_PERIOD))).tobytes()


@lru_cache(maxsize=4)
def _sum_block(ranks: int) -> bytes:
    columns = zip(*(memoryview(_block(rank)).cast("f") for rank in range(ranks)), strict=True)
    return array("f", (sum(column) for column in columns)).tobytes()


def _tiled(block: bytes, first: int, elements: int) -> bytes:
    """Elements `first` to `first + elements` of a block that repeats for ever."""
    start = first % _PERIOD * ELEMENT_BYTES
    turned = block[start:] + block[:start]
    whole, rest = divmod(elements * ELEMENT_BYTES, len(turned))
    return b"".join([turned] * whole + [turned[:rest]])


def _all_reduce(rank: int, ranks: int, elements: int) -> bytes:
    return _tiled(_sum_block(ranks), 0, elements)


def _all_gather(rank: int, ranks: int, elements: int) -> bytes:
    return b"".join(sent(peer, elements // ranks) for peer in range(ranks))


def _reduce_scatter(rank: int, ranks: int, elements: int) -> bytes:
    share = elements // ranks
    return _tiled(_sum_block(ranks), rank * share, share)


def _all_to_all(rank: int, ranks: int, elements: int) -> bytes:
    share = elements // ranks
    return b"".join(sent(peer, share, first=rank * share) for peer in range(ranks))


def _send_recv(rank: int, ranks: int, elements: int) -> bytes:
    return sent((rank - 1) % ranks, elements)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


COLLECTIVES = {
    each.name: each
    for each in (
        Collective("all_reduce", lambda ranks: 2 * _others(ranks), False, False, _all_reduce),
        Collective("all_gather", _others, True, False, _all_gather),
        Collective("reduce_scatter", _others, False, True, _reduce_scatter),
        Collective("all_to_all", _others, False, False, _all_to_all),
        Collective("send_recv", lambda ranks: 1.0, False, False, _send_recv),
    )
}
