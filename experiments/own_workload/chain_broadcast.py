# SPDX-License-Identifier: Apache-2.0
"""A workload that paralet does not know: a broadcast down a chain. docs/extending.md explains its methods."""

from itertools import pairwise
from typing import Literal

import numpy as np

from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut


class ChainBroadcast(VerifiedWorkload):
    """Rank 0's data goes from rank to rank, slice by slice."""

    kind: Literal["chain_broadcast"] = "chain_broadcast"

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Each rank sends every slice to the next rank. `seed` is not used."""
        return tuple(
            Transfer(step, part, src, dst, start, start, count)
            for step, (src, dst) in enumerate(pairwise(range(ranks)))
            for part, start, count in cut(0, self.elements, self.slices)
        )

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """Rank 0 has its data, all others nothing."""
        data = self.data(0, seed) if rank == 0 else np.zeros_like(self.data(0, seed))
        return Buffers(data, data)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """Everybody has the data of rank 0."""
        return self.data(0, seed)
