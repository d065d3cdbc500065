# SPDX-License-Identifier: Apache-2.0
"""Recursive halving and doubling: an all-reduce in 2 log2(n) steps (R. Thakur, R. Rabenseifner and W. Gropp, 2005).

Ranks whose numbers differ in one bit, the lowest first, exchange halves of what they still have and add them up, until
each holds 1 / n of the sum; then the parts go back the same way. A rank sends 2 (n - 1) / n of its input, as in a ring.

If n is not a power of two, 2^k being the next below, each rank i from 2^k on first gives all it holds to rank i - 2^k,
and takes the sum from it in the end. On leaves of equal size, all ranks of a leaf then have their partners on one other
leaf (X. Han et al., "Isolated Scheduling for Distributed Training Tasks in GPU Clusters", 2023, section 5.3).
"""

from collections.abc import Iterator
from typing import Literal

from testbed.workloads.base import Transfer, VerifiedWorkload, cut


class HalvingDoublingAllreduce(VerifiedWorkload):
    """`kind: halving_doubling_allreduce`. In place; `slices` is into how many parts each exchange is cut."""

    kind: Literal["halving_doubling_allreduce"] = "halving_doubling_allreduce"

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Fold extra ranks in, halve, double, send the sum back to extra ranks. `seed` is not used."""
        return tuple(
            Transfer(step, part, src, dst, start, start, count, combine)
            for step, src, dst, first, last, combine in _exchanges(ranks, self.elements)
            for part, start, count in cut(first, last, self.slices)
        )


def _exchanges(ranks: int, elements: int) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Step, source, destination, first and last element, whether to add; steps ascending."""
    levels = ranks.bit_length() - 1
    size = 1 << levels
    extra = ranks - size
    held = [(0, size)] * size  # by rank below `size`, in parts of the sum
    step = 0
    if extra:
        for rank in range(extra):
            yield step, size + rank, rank, 0, elements, True
        step += 1
    for level in range(levels):
        kept = [_half(*held[rank], upper=bool(rank >> level & 1)) for rank in range(size)]
        for rank in range(size):
            other = rank ^ 1 << level
            yield step, rank, other, *_elements(kept[other], size, elements), True
        held = kept
        step += 1
    for level in reversed(range(levels)):
        for rank in range(size):
            yield step, rank, rank ^ 1 << level, *_elements(held[rank], size, elements), False
        held = [
            (min(mine[0], held[rank ^ 1 << level][0]), max(mine[1], held[rank ^ 1 << level][1]))
            for rank, mine in enumerate(held)
        ]
        step += 1
    for rank in range(extra):
        yield step, rank, size + rank, 0, elements, False


def _half(first: int, last: int, *, upper: bool) -> tuple[int, int]:
    middle = (first + last) // 2
    return (middle, last) if upper else (first, middle)


def _elements(parts: tuple[int, int], size: int, elements: int) -> tuple[int, int]:
    return parts[0] * elements // size, parts[1] * elements // size
