# SPDX-License-Identifier: Apache-2.0
"""Permutation: every rank sends its whole input to one partner and receives from one, all at once."""

from typing import Literal

import numpy as np
from pydantic import Field

from testbed.conflict import Conflict
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut


class Permutation(VerifiedWorkload):
    """`kind: permutation`.

    With `shift: k` rank r sends to rank (r + k) mod n. Without it the partners are a random permutation in which no
    rank is its own partner, drawn from the run's seed.
    """

    kind: Literal["permutation"] = "permutation"
    shift: int | None = Field(default=None, ge=1)

    def check_ranks(self, ranks: int) -> None:
        """As every workload, and no rank may be its own partner."""
        super().check_ranks(ranks)
        if self.shift is not None and self.shift % ranks == 0:
            raise Conflict(f"a shift by {self.shift} among {ranks} ranks makes every rank its own partner", "shift")

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """One step, in which every rank sends all that it holds to one other."""
        return tuple(
            Transfer(0, part, rank, partner, start, start, count)
            for rank, partner in enumerate(self.partners(ranks, seed))
            for part, start, count in cut(0, self.elements, self.slices)
        )

    def partners(self, ranks: int, seed: int) -> list[int]:
        """The rank that each rank sends to."""
        if self.shift is not None:
            return [(rank + self.shift) % ranks for rank in range(ranks)]
        # Rejection keeps every derangement equally likely; one in e draws is one.
        generator = np.random.default_rng(seed)
        identity = np.arange(ranks)
        while True:
            drawn = generator.permutation(ranks)
            if not np.any(drawn == identity):
                return [int(partner) for partner in drawn]

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The rank's data, and zeros where the partner's will arrive."""
        data = self.data(rank, seed)
        return Buffers(data, np.zeros_like(data))

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The data of the rank that sends here."""
        return self.data(self.partners(ranks, seed).index(rank), seed)
