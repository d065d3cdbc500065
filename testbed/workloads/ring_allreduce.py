# SPDX-License-Identifier: Apache-2.0
"""Ring all-reduce: every rank ends with the element-wise sum of all ranks' inputs.

The input is cut into n chunks. In n - 1 steps of reduce-scatter each rank passes a chunk to its right neighbour, which
adds its own; in n - 1 steps of all-gather the finished chunks go around again. Every link of the ring carries
2 (n - 1) / n of the input. As in NCCL, each step's chunk is cut into slices, and a slice is passed on as soon as it has
arrived, so that links stay busy across steps.

The input may be shared out among several rings, in which rank r passes on to rank r + stride (TopoOpt's permutations).
"""

from collections.abc import Sequence
from math import gcd
from typing import Literal

from pydantic import Field

from testbed.conflict import Conflict
from testbed.workloads.base import Transfer, VerifiedWorkload, cut


def check_strides(strides: Sequence[int], ranks: int) -> None:
    """Raises Conflict when a stride does not visit all ranks, or comes twice."""
    for index, stride in enumerate(strides):
        if not 1 <= stride < max(ranks, 2) or gcd(stride, ranks) != 1:
            raise Conflict(f"+{stride} is not a ring of {ranks} ranks: take one below and coprime", "strides", index)
        if stride in strides[:index]:
            raise Conflict(f"+{stride} is there twice", "strides", index)


class RingAllreduce(VerifiedWorkload):
    """`kind: ring_allreduce`. `strides`: one ring for each, all at once, with an equal share of the input."""

    kind: Literal["ring_allreduce"] = "ring_allreduce"
    strides: list[int] = Field(default=[1], min_length=1)

    @property
    def rings(self) -> list[int]:
        """The strides."""
        return sorted(self.strides)

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict also when a stride does not visit all ranks, or comes twice."""
        super().check_ranks(ranks)
        check_strides(self.strides, ranks)

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """2 (n - 1) steps; at step s a ring's r-th rank sends chunk (r - s) mod n to the next. `seed` is not used."""
        pieces = len(self.strides) * ranks
        bounds = [piece * self.elements // pieces for piece in range(pieces + 1)]
        return tuple(
            Transfer(step, part, rank, (rank + stride) % ranks, start, start, count, combine=step < ranks - 1)
            for step in range(2 * (ranks - 1))
            for ring, stride in enumerate(self.strides)
            for place in range(ranks)
            for rank in [place * stride % ranks]
            for chunk in [ring * ranks + (place - step) % ranks]
            for part, start, count in cut(bounds[chunk], bounds[chunk + 1], self.slices)
        )
