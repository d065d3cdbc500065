# SPDX-License-Identifier: Apache-2.0
"""Recursive halving and doubling: an all-reduce in 2 log2(n) steps (R. Thakur, R. Rabenseifner and W. Gropp, 2005).

Ranks whose numbers differ in one bit, the lowest first, exchange halves of what they still have and add them up, until
each holds 1 / n of the sum; then the parts go back the same way. A rank sends 2 (n - 1) / n of its input, as in a ring.

Where n is no power of two, 2^k being the next below, each of the first n - 2^k even ranks first gives all it holds to
the odd rank after it, and takes the sum from it in the end.
"""

from collections.abc import Iterator
from typing import Literal

from testbed.workloads.base import Buffers, Elements, Transfer, Workload, cut


class HalvingDoublingAllreduce(Workload):
    """`kind: halving_doubling_allreduce`. In place; `slices` is into how many parts each exchange is cut."""

    kind: Literal["halving_doubling_allreduce"] = "halving_doubling_allreduce"

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Fold extra ranks in, halve, double, send the sum back to extra ranks. `seed` is not used."""
        return tuple(
            Transfer(step, part, src, dst, start, start, count, combine)
            for step, src, dst, first, last, combine in _exchanges(ranks, self.elements)
            for part, start, count in cut(first, last, self.slices)
        )

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array: the reduction is done in place."""
        data = self.data(rank, seed)
        return Buffers(data, data)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The sum of all ranks' inputs, the same on every rank."""
        return self.total(ranks, seed)


def _exchanges(ranks: int, elements: int) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Step, source, destination, first and last element, whether to add; steps ascending."""
    levels = ranks.bit_length() - 1
    size = 1 << levels
    extra = ranks - size
    members = [*range(1, 2 * extra, 2), *range(2 * extra, ranks)]
    held = [(0, size)] * size  # by member, in parts of the sum
    step = 0
    if extra:
        for odd in members[:extra]:
            yield step, odd - 1, odd, 0, elements, True
        step += 1
    for level in range(levels):
        kept = [_half(*held[member], upper=bool(member >> level & 1)) for member in range(size)]
        for member, own in enumerate(members):
            other = member ^ 1 << level
            yield step, own, members[other], *_elements(kept[other], size, elements), True
        held = kept
        step += 1
    for level in reversed(range(levels)):
        for member, own in enumerate(members):
            yield step, own, members[member ^ 1 << level], *_elements(held[member], size, elements), False
        held = [
            (min(mine[0], held[member ^ 1 << level][0]), max(mine[1], held[member ^ 1 << level][1]))
            for member, mine in enumerate(held)
        ]
        step += 1
    for odd in members[:extra]:
        yield step, odd, odd - 1, 0, elements, False


def _half(first: int, last: int, *, upper: bool) -> tuple[int, int]:
    middle = (first + last) // 2
    return (middle, last) if upper else (first, middle)


def _elements(parts: tuple[int, int], size: int, elements: int) -> tuple[int, int]:
    return parts[0] * elements // size, parts[1] * elements // size
