# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a collective: all its connections send at the same time."""

from itertools import count
from typing import Literal

import numpy as np

from sdn.topoopt import double_binary_tree
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut


class Snapshot(VerifiedWorkload):
    """`kind: snapshot`: every rank sends its whole input over each of its connections at once, without dependencies.

    ParaLet's simulations (section 6) use this traffic. With `collective: ring` a rank has a connection to the next
    rank. With `tree` it has one to the parent and to each child in both of NCCL's trees, because sums go up while
    totals come down. With `alltoall` it has one to every other rank.
    """

    kind: Literal["snapshot"] = "snapshot"
    collective: Literal["ring", "tree", "alltoall"] = "ring"

    def connections(self, ranks: int) -> list[tuple[int, int]]:
        """(sender, receiver) of every connection."""
        if self.collective == "ring":
            return [(rank, (rank + 1) % ranks) for rank in range(ranks)]
        if self.collective == "alltoall":
            return [(rank, (rank + step) % ranks) for rank in range(ranks) for step in range(1, ranks)]
        up = [
            (rank, parent)
            for parents in double_binary_tree(ranks)
            for rank, parent in enumerate(parents)
            if parent is not None
        ]
        return up + [(parent, rank) for rank, parent in up]

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """One step. The data of a receiver's k-th connection goes to the k-th place of its output."""
        places = [count() for _ in range(ranks)]
        return tuple(
            Transfer(0, part, src, dst, start, place * self.elements + start, length)
            for src, dst in self.connections(ranks)
            for place in [next(places[dst])]
            for part, start, length in cut(0, self.elements, self.slices)
        )

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The rank's data, and zeros where its senders' data will arrive."""
        data = self.data(rank, seed)
        return Buffers(data, np.zeros(len(self._senders(rank, ranks)) * data.size, dtype=data.dtype))

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The data of all senders, one after the other."""
        return np.concatenate([self.data(src, seed) for src in self._senders(rank, ranks)])

    def _senders(self, rank: int, ranks: int) -> list[int]:
        return [src for src, dst in self.connections(ranks) if dst == rank]
