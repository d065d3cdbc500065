# SPDX-License-Identifier: Apache-2.0
"""A job of a simulated cluster as transfers: it computes, then runs the steps of its collective, several times.

It sends what `sim.cluster` models and reduces nothing: in each step every rank sends to one other, and a rank begins a
step when it has completed its part of the step before. No spec names it; `testbed.run.replay` does.
"""

from itertools import accumulate
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from testbed.conflict import Conflict
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut


class ClusterJob(VerifiedWorkload):
    """`bytes` is what a rank sends in all rounds. `compute_s` is the time, in seconds, that it computes in each."""

    kind: Literal["cluster_job"] = "cluster_job"
    rounds: int = Field(default=1, ge=1)
    compute_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    shares: list[float]
    """By step: its share of a round's bytes; their sum is 1."""
    destinations: list[list[int]]
    """By step and rank: the rank that it sends to. Each rank receives from one."""

    @model_validator(mode="after")
    def _steps_are_permutations(self) -> "ClusterJob":
        if len(self.shares) != len(self.destinations):
            raise Conflict(f"{len(self.shares)} shares for {len(self.destinations)} steps", "shares")
        for step, row in enumerate(self.destinations):
            if sorted(row) != list(range(len(row))):
                raise Conflict("each rank receives from exactly one rank", "destinations", step)
        return self

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Every step of every round sends the next piece of the input to the same place of the output."""
        bounds = self._bounds()
        return tuple(
            Transfer(step, part, rank, to, start, start, count)
            for step in range(len(bounds) - 1)
            for rank, to in enumerate(self.destinations[step % len(self.shares)])
            if to != rank
            for part, start, count in cut(bounds[step], bounds[step + 1], self.slices)
        )

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """Every step waits for the one before."""
        return tuple(range(self.rounds * len(self.shares)))

    def pauses(self, ranks: int) -> dict[int, float]:
        """Ranks compute before the first step of every round."""
        return {number * len(self.shares): self.compute_s for number in range(self.rounds)}

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The input of the rank, and an output of zeros."""
        data = self.data(rank, seed)
        return Buffers(data, np.zeros_like(data))

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """Each piece is that of the rank which sends it here; nothing where a rank would send to itself."""
        bounds = self._bounds()
        output = np.zeros(self.elements, dtype=self.dtype)
        for step in range(len(bounds) - 1):
            source = self.destinations[step % len(self.shares)].index(rank)
            if source != rank:
                piece = slice(bounds[step], bounds[step + 1])
                output[piece] = self.data(source, seed)[piece]
        return output

    def _bounds(self) -> list[int]:
        """The first element of each step's piece of the input, and the end."""
        ends = [0.0, *accumulate(self.shares)]
        within = [round(end / ends[-1] * self.elements / self.rounds) for end in ends[:-1]]
        return [number * self.elements // self.rounds + first for number in range(self.rounds) for first in within] + [
            self.elements
        ]
