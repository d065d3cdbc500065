# SPDX-License-Identifier: Apache-2.0
"""Pairwise all-to-all: rank r holds one block for every rank; at step s it sends one to rank (r + s) mod n.

Every step is a permutation, so that on a non-blocking fabric no two flows of a step need to meet.
"""

from typing import Literal

import numpy as np

from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut


class PairwiseAlltoall(VerifiedWorkload):
    """`kind: pairwise_alltoall`. `bytes` is a rank's whole input: n blocks of which n - 1 travel."""

    kind: Literal["pairwise_alltoall"] = "pairwise_alltoall"

    @property
    def sends_in_flight(self) -> int | None:
        """The sends of one step, so that the steps of the exchange do not overlap."""
        return self.slices

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """n - 1 steps. Block b of rank r's input lands as block r of rank b's output. `seed` is not used."""
        size = self._block_elements(ranks)
        return tuple(
            Transfer(step - 1, part, rank, peer, peer * size + start, rank * size + start, count)
            for step in range(1, ranks)
            for rank in range(ranks)
            for peer in [(rank + step) % ranks]
            for part, start, count in cut(0, size, self.slices)
        )

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The output already has the rank's own block, which needs no transfer."""
        size = self._block_elements(ranks)
        data = self.data(rank, seed)
        output = np.zeros_like(data)
        output[rank * size : (rank + 1) * size] = data[rank * size : (rank + 1) * size]
        return Buffers(data, output)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """Block s is the block of rank s for this rank."""
        size = self._block_elements(ranks)
        output = np.zeros_like(self.data(rank, seed))
        for source in range(ranks):
            block = self.data(source, seed)[rank * size : (rank + 1) * size]
            output[source * size : (source + 1) * size] = block
        return output

    def _block_elements(self, ranks: int) -> int:
        """Elements per block. All blocks are equal; a remainder at the end of the input is not sent."""
        return self.elements // ranks
