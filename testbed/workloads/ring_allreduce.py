# SPDX-License-Identifier: Apache-2.0
"""Ring all-reduce: every rank ends with the element-wise sum of all ranks' inputs.

The input is cut into n chunks. In n - 1 steps of reduce-scatter each rank passes a chunk to its right neighbour, which
adds its own; in n - 1 steps of all-gather the finished chunks go once more around. Every link of the ring carries
2 (n - 1) / n of the input. As in NCCL, each step's chunk is cut into slices, and a slice is passed on as soon as it has
arrived, so that links stay busy across steps.
"""

from typing import Literal

from testbed.workloads.base import Buffers, Elements, Transfer, Workload, cut


class RingAllreduce(Workload):
    """`kind: ring_allreduce`."""

    kind: Literal["ring_allreduce"] = "ring_allreduce"

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """2 (n - 1) steps; at step s rank r sends chunk (r - s) mod n to rank r + 1. `seed` plays no part."""
        chunks = [(chunk * self.elements // ranks, (chunk + 1) * self.elements // ranks) for chunk in range(ranks)]
        return tuple(
            Transfer(step, part, rank, (rank + 1) % ranks, start, start, count, combine=step < ranks - 1)
            for step in range(2 * (ranks - 1))
            for rank in range(ranks)
            for part, start, count in cut(*chunks[(rank - step) % ranks], self.slices)
        )

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array: the reduction is done in place."""
        data = self.data(rank, seed)
        return Buffers(data, data)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The sum of all ranks' inputs, the same on every rank."""
        total = self.data(0, seed)
        for other in range(1, ranks):
            total += self.data(other, seed)
        return total
