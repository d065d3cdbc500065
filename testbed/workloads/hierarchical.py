# SPDX-License-Identifier: Apache-2.0
"""Hierarchical all-gather, reduce-scatter and all-reduce (Rail-only, section III-B and Equation 1).

They consist of rings over rails and rings within HB domains, so no traffic between domains changes rails.

The data D is cut into x y shards. Shard g y + d belongs to GPU g of domain d, so the shards of a rail are adjacent.
The all-gather first passes shards of D / (x y) around every rail, then pieces of D / x, each of which holds all shards
of a rail, around every domain. The reduce-scatter runs in the opposite order. The all-reduce is the reduce-scatter
followed by the all-gather.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

import numpy as np

from testbed.workloads.base import Buffers, Elements, Transfer, cut
from testbed.workloads.grid import GridWorkload

_Piece = tuple[int, int]
_Ring = tuple[Sequence[int], Sequence[_Piece]]
"""Ranks in the order of the ring, and the piece that belongs to each."""


class _Hierarchical(GridWorkload):
    """A phase is a round of parallel rings. Each ring gathers its members' pieces or scatters their sums."""

    @abstractmethod
    def _rounds(self, ranks: int) -> list[tuple[bool, list[_Ring]]]:
        """For each phase, whether its rings compute sums, and the rings. Rings have two members or more."""

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """The rounds one after the other. `seed` is not used."""
        starts = [0, *self._phase_starts(ranks)]
        return tuple(
            replace(transfer, step=first + transfer.step)
            for first, (combine, rings) in zip(starts, self._rounds(ranks), strict=True)
            for transfer in sorted(
                (transfer for ring in rings for transfer in _around(ring, combine, self.slices)),
                key=lambda transfer: transfer.step,
            )
        )

    def phase_starts(self, ranks: int) -> tuple[int, ...]:
        """The first step of each round after the first; empty without `separate_phases`."""
        return tuple(self._phase_starts(ranks)) if self.separate_phases else ()

    def _phase_starts(self, ranks: int) -> list[int]:
        return list(accumulate(len(rings[0][0]) - 1 for _, rings in self._rounds(ranks)))[:-1]

    def _shard(self, rank: int, ranks: int) -> slice:
        """The elements that belong to a rank."""
        grid = self.grid(ranks)
        domain, gpu = grid.place(rank)
        return slice(*self._piece(gpu * grid.y + domain, 1, ranks))

    def _piece(self, first: int, shards: int, ranks: int) -> _Piece:
        return first * self.elements // ranks, (first + shards) * self.elements // ranks

    def _rails(self, ranks: int) -> list[_Ring]:
        grid = self.grid(ranks)
        return [
            (
                [grid.rank(domain, gpu) for domain in range(grid.y)],
                [self._piece(gpu * grid.y + domain, 1, ranks) for domain in range(grid.y)],
            )
            for gpu in range(grid.x)
        ]

    def _domains(self, ranks: int) -> list[_Ring]:
        grid = self.grid(ranks)
        rails = [self._piece(gpu * grid.y, grid.y, ranks) for gpu in range(grid.x)]
        return [([grid.rank(domain, gpu) for gpu in range(grid.x)], rails) for domain in range(grid.y)]


class HierarchicalAllgather(_Hierarchical):
    """`kind: hierarchical_allgather`. `bytes` is the size of the result on every rank; a rank contributes a shard."""

    kind: Literal["hierarchical_allgather"] = "hierarchical_allgather"

    def _rounds(self, ranks: int) -> list[tuple[bool, list[_Ring]]]:
        return _of_several([(False, self._rails(ranks)), (False, self._domains(ranks))])

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array with the rank's own shard, and zeros elsewhere."""
        shard = self._shard(rank, ranks)
        gathered = np.zeros_like(self.data(rank, seed))
        gathered[shard] = self.data(rank, seed)[shard]
        return Buffers(gathered, gathered)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The shards of all ranks, in the order of ranks."""
        gathered = np.zeros_like(self.data(rank, seed))
        for source in range(ranks):
            shard = self._shard(source, ranks)
            gathered[shard] = self.data(source, seed)[shard]
        return gathered


class HierarchicalReduceScatter(_Hierarchical):
    """`kind: hierarchical_reduce_scatter`. `bytes` is each rank's input; it ends with its shard of the sum."""

    kind: Literal["hierarchical_reduce_scatter"] = "hierarchical_reduce_scatter"

    def _rounds(self, ranks: int) -> list[tuple[bool, list[_Ring]]]:
        return _of_several([(True, self._domains(ranks)), (True, self._rails(ranks))])

    def result(self, rank: int, ranks: int) -> slice:
        """The rank's shard. The rest of the array holds partial sums."""
        return self._shard(rank, ranks)


class HierarchicalAllreduce(_Hierarchical):
    """`kind: hierarchical_allreduce`: the reduce-scatter, then the all-gather, in place."""

    kind: Literal["hierarchical_allreduce"] = "hierarchical_allreduce"

    def _rounds(self, ranks: int) -> list[tuple[bool, list[_Ring]]]:
        rails, domains = self._rails(ranks), self._domains(ranks)
        return _of_several([(True, domains), (True, rails), (False, rails), (False, domains)])


def _of_several(rounds: list[tuple[bool, list[_Ring]]]) -> list[tuple[bool, list[_Ring]]]:
    """The rounds without those whose rings have one member, which has nothing to send."""
    return [(combine, rings) for combine, rings in rounds if len(rings[0][0]) > 1]


def _around(ring: _Ring, combine: bool, slices: int) -> Iterator[Transfer]:
    """The n - 1 steps of a ring, after which each member has all pieces, or with `combine` the sum of its own piece."""
    members, pieces = ring
    for step in range(len(members) - 1):
        for index, rank in enumerate(members):
            # A sum must end at its owner, so it starts at the member after it.
            piece = pieces[(index - step - combine) % len(members)]
            right = members[(index + 1) % len(members)]
            for part, start, count in cut(*piece, slices):
                yield Transfer(step, part, rank, right, start, start, count, combine)
