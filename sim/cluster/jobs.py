# SPDX-License-Identifier: Apache-2.0
"""Jobs of a trace, and the traffic patterns of their collectives."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Pattern = Literal["ring", "hierarchical_ring", "halving_doubling", "pairwise_alltoall"]

PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job. It computes, then runs its collective; `communication` is the collective's share of `run_s`."""

    name: str
    arrival_s: float
    gpus: int
    run_s: float
    """Seconds that the job runs on a network without contention."""
    communication: float = 0.0
    pattern: Pattern = "ring"
    deadline_s: float | None = None
    """When the job should have ended, for queue `edf`."""

    def __post_init__(self) -> None:
        """Raises ValueError for values that no job can have."""
        if not self.arrival_s >= 0 or not 0 < self.run_s < float("inf"):
            raise ValueError(
                f"job {self.name!r} arrives at {self.arrival_s} s and runs for {self.run_s} s; arrivals are 0 or "
                "later, and durations positive"
            )
        if not 0 <= self.communication <= 1:
            raise ValueError(f"job {self.name!r} communicates for {self.communication} of its time; give 0 to 1")
        if self.gpus < 1:
            raise ValueError(f"job {self.name!r} asks for {self.gpus} GPUs; it must ask for at least 1")


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a collective. All flows of a step run at the same time; equal steps are one."""

    shares: NDArray[np.float64]
    """By step: its share of the collective's time without contention; their sum is 1. Shape (K,)."""
    destinations: NDArray[np.intp]
    """By step and rank: the rank that it sends to. Each rank receives from one. Shape (K, ranks)."""


def steps_of(pattern: Pattern, ranks: int, ranks_per_server: int) -> Steps:
    """The steps of a collective among `ranks` ranks, as in section 4.2 of the vClos paper.

    - `ring`: each rank sends to the next.
    - `hierarchical_ring`: each rank sends to the same rank of the next server; a ring where servers are not full.
    - `halving_doubling`: ranks exchange over distances of 1, 2, 4, ... (section 5.3): half of the data at distance 1,
      1 / (2 d) of it at distance d, and the same back. A ring where the number of ranks is not a power of two.
    - `pairwise_alltoall`: in step t, rank i sends to rank i + t.
    """
    own = np.arange(ranks)
    distances = 1 << np.arange(ranks.bit_length() - 1)
    if ranks == 1:
        return Steps(np.ones(1), own[np.newaxis])
    if pattern == "halving_doubling" and ranks == 2 * distances[-1]:
        return Steps(distances[::-1] / (ranks - 1), own ^ distances[:, np.newaxis])
    if pattern == "pairwise_alltoall":
        offsets = np.arange(1, ranks)
        return Steps(np.full(ranks - 1, 1 / (ranks - 1)), (own + offsets[:, np.newaxis]) % ranks)
    whole = pattern == "hierarchical_ring" and ranks > ranks_per_server and ranks % ranks_per_server == 0
    return Steps(np.ones(1), (own + (ranks_per_server if whole else 1))[np.newaxis] % ranks)
