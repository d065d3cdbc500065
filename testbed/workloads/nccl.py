# SPDX-License-Identifier: Apache-2.0
"""Collectives of NCCL: by NCCL itself, and all-reduces that `paralet-nccl-driver` runs as NCCL's proxy would.

The schedules here say what a fabric is asked for, and what the pairs are whose paths are predicted. Those of the driver
are exact, message by message; NCCL cuts messages as it likes, in the same ring.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sdn.topoopt import double_binary_tree
from testbed.conflict import Conflict
from testbed.workloads.base import Buffers, Elements, Transfer, VerifiedWorkload, cut
from testbed.workloads.ring_allreduce import check_strides

STEPS = 8
"""Messages in flight on each connection: NCCL_STEPS."""


class NcclAllreduce(VerifiedWorkload):
    """Base class of both algorithms: in-place sums of floats."""

    RANK: ClassVar[str | None] = "nccl driver"
    ONE_NIC: ClassVar[bool] = True

    dtype: Literal["float32"] = "float32"

    @property
    @abstractmethod
    def collective(self) -> str:
        """The collective's name in the driver's options."""

    @abstractmethod
    def slice_elements(self, ranks: int) -> int:
        """Largest number of elements in a message."""

    @property
    def processes(self) -> "Sequence[tuple[int, NcclAllreduce]]":
        """What the processes of a rank do, each with a device of its own: the stride of their ring, and their part."""
        return ((1, self),)


class NcclRingAllreduce(NcclAllreduce):
    """`kind: nccl_ring_allreduce`. `slices` is how many messages a chunk, 1/n of the data, is cut into.

    A chunk of more messages than a connection has in flight could not be passed on while it is still arriving, so the
    data then go around in several rounds.

    With several `strides` the input is shared out among as many rings, as in `ring_allreduce`. Each ring has a process
    and a NIC of its own, which direct-connect fabrics have.
    """

    kind: Literal["nccl_ring_allreduce"] = "nccl_ring_allreduce"
    strides: list[int] = Field(default=[1], min_length=1)

    @property
    def rings(self) -> list[int]:
        """The strides."""
        return sorted(self.strides)

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict also for impossible strides, and for less than one element for each rank and ring."""
        super().check_ranks(ranks)
        check_strides(self.strides, ranks)
        if self.elements < ranks * len(self.strides):
            raise Conflict(f"{self.bytes} bytes are less than one element for each rank in each ring", "bytes")

    @property
    def processes(self) -> "Sequence[tuple[int, NcclRingAllreduce]]":
        """The strides, and an all-reduce of a part of the input with the stride 1 for each."""
        bounds = _pieces(0, self.elements, len(self.strides))
        return [
            (stride, self.model_copy(update={"bytes": (end - start) * self.item_bytes, "strides": [1]}))
            for stride, (start, end) in zip(self.strides, bounds, strict=True)
        ]

    @property
    def collective(self) -> str:
        """The collective's name in the driver's options."""
        return "ring"

    def slice_elements(self, ranks: int) -> int:
        """The largest chunk has `slices` messages."""
        return _ratio_up(_ratio_up(self.elements, ranks), self.slices)

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """2 (n - 1) steps a round; at step s a ring's r-th rank sends chunk (r - s) mod n of the round. `seed` is not
        used."""
        found: list[Transfer] = []
        first = 0
        for stride, part in self.processes:
            found += part._in_order(ranks, stride, first)
            first += part.elements
        return tuple(sorted(found, key=lambda transfer: transfer.step))

    def _in_order(self, ranks: int, stride: int, first: int) -> Iterator[Transfer]:
        """One ring over all elements, which are those from `first` on of the whole input."""
        size = self.slice_elements(ranks)
        rounds = _pieces(first, first + self.elements, _ratio_up(self.elements, ranks * size * STEPS))
        steps = 2 * (ranks - 1)
        for number, (begin, end) in enumerate(rounds):
            chunks = _pieces(begin, end, ranks)
            for step in range(steps):
                for place in range(ranks):
                    for part, start, count in _messages(*chunks[(place - step) % ranks], size):
                        yield Transfer(
                            step=number * steps + step,
                            part=part,
                            src=place * stride % ranks,
                            dst=(place + 1) * stride % ranks,
                            source=start,
                            target=start,
                            count=count,
                            combine=step < ranks - 1,
                        )


class NcclTreeAllreduce(NcclAllreduce):
    """`kind: nccl_tree_allreduce`: half of the data on each of two binary trees, in `slices` messages each."""

    kind: Literal["nccl_tree_allreduce"] = "nccl_tree_allreduce"

    @property
    def collective(self) -> str:
        """The collective's name in the driver's options."""
        return "tree"

    def slice_elements(self, ranks: int) -> int:
        """The larger half has `slices` messages."""
        return _ratio_up(_ratio_up(self.elements, 2), self.slices)

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """Sums go up, a level a step, then totals go down. `seed` is not used."""
        transfers = [
            Transfer(step, part, src, dst, start, start, count, combine)
            for parents, (first, last) in zip(double_binary_tree(ranks), _pieces(0, self.elements, 2), strict=True)
            for src, dst, step, combine in _tree_edges(parents)
            for part, start, count in _messages(first, last, self.slice_elements(ranks))
        ]
        return tuple(sorted(transfers, key=lambda transfer: transfer.step))


class NcclCollective(VerifiedWorkload):
    """`kind: nccl`: every rank is a process with the real NCCL, in a ring (NCCL_ALGO=Ring).

    `bytes` is the size of each rank's input; `iterations` operations follow one another. `version` names an installed
    release of NCCL; without it the newest is taken. `slices` is for simulated fabrics only: NCCL cuts messages itself.

    With several `strides` the input of an all-reduce is shared out among as many rings, on direct-connect fabrics. NCCL
    puts ranks of several machines into one ring only, so each ring is a communicator with a process and a NIC of its
    own on every host.
    """

    RANK: ClassVar[str | None] = "nccl"
    LACKING: ClassVar[frozenset[str]] = frozenset({"softroce"})
    ONE_NIC: ClassVar[bool] = True
    SAME_NIC: ClassVar[bool] = True
    SOCKETS: ClassVar[bool] = True

    kind: Literal["nccl"] = "nccl"
    dtype: Literal["float32"] = "float32"
    collective: Literal["all_reduce", "all_gather", "reduce_scatter"] = "all_reduce"
    iterations: int = Field(default=1, ge=1, le=1000)
    version: str | None = Field(default=None, pattern=r"^\d+\.\d+\.\d+$")
    strides: list[int] = Field(default=[1], min_length=1)

    def check_installed(self) -> None:
        """Raises InputError where `make nccl` has not installed the release."""
        from testbed.nccl import devices  # only a run with real packets needs it

        devices.find("cpu", self.version, None)

    @property
    def rings(self) -> list[int] | None:
        """The strides of an all-reduce."""
        return sorted(self.strides) if self.collective == "all_reduce" else None

    @property
    def processes(self) -> "Sequence[tuple[int, NcclCollective]]":
        """The strides, and a collective of a part of the input with the stride 1 for each."""
        return [
            (stride, self.model_copy(update={"bytes": (end - start) * self.item_bytes, "strides": [1]}))
            for stride, (start, end) in zip(self.strides, self._bounds, strict=True)
        ]

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        return _pieces(0, self.elements, len(self.strides))

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict when the workload is not possible with `ranks` ranks."""
        super().check_ranks(ranks)
        check_strides(self.strides, ranks)
        if self.strides != [1] and self.collective != "all_reduce":
            raise Conflict(f"{self.collective} has one ring, +1; leave it out", "strides")
        if self.elements < ranks * len(self.strides):
            raise Conflict(f"{self.bytes} bytes are less than one element for each rank in each ring", "bytes")
        if self.collective == "reduce_scatter" and self.elements % ranks:
            raise Conflict(f"{self.bytes} bytes are not a whole number of elements for each of {ranks} ranks", "bytes")

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """The rings of one operation, `iterations` times. `seed` is not used."""
        found: list[Transfer] = []
        for stride, (begin, end) in zip(self.strides, self._bounds, strict=True):
            found += self._in_order(ranks, stride, begin, end * (ranks if self.collective == "all_gather" else 1))
        return tuple(sorted(found, key=lambda transfer: transfer.step))

    def _in_order(self, ranks: int, stride: int, begin: int, end: int) -> Iterator[Transfer]:
        """The ring "+stride", in which the rank at place p is p * stride, over elements [begin, end)."""
        once = self._ring(ranks)
        steps = 2 * (ranks - 1) if self.collective == "all_reduce" else ranks - 1
        chunks = _pieces(begin, end, ranks)
        for number in range(self.iterations):
            for step, place, chunk, combine in once:
                src, dst = place * stride % ranks, (place + 1) * stride % ranks
                for part, start, count in cut(*chunks[chunk], self.slices):
                    yield Transfer(number * steps + step, part, src, dst, start, start, count, combine=combine)

    def _ring(self, ranks: int) -> list[tuple[int, int, int, bool]]:
        """Step, sending place, chunk and whether the receiver adds it, for every message of a ring."""
        reducing = ranks - 1 if self.collective != "all_gather" else 0
        gathering = ranks - 1 if self.collective != "reduce_scatter" else 0
        # After the reducing steps rank r has chunk r + ahead.
        ahead = 0 if self.collective == "reduce_scatter" else 1 if reducing else 0
        messages = [
            (step, rank, (rank - 1 + ahead - step) % ranks, True) for step in range(reducing) for rank in range(ranks)
        ]
        return messages + [
            (reducing + step, rank, (rank + ahead - step) % ranks, False)
            for step in range(gathering)
            for rank in range(ranks)
        ]

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """One array: the ring works in place. NCCL itself has two."""
        if self.collective != "all_gather":
            return super().buffers(rank, ranks, seed)
        whole = np.zeros(ranks * self.elements, dtype=self.dtype)
        whole[rank * self.elements : (rank + 1) * self.elements] = self.data(rank, seed)
        return Buffers(whole, whole)

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The rank's `result` of one operation."""
        if self.collective == "all_gather":
            return np.concatenate([self.data(peer, seed) for peer in range(ranks)])
        return super().expected(rank, ranks, seed)

    def result(self, rank: int, ranks: int) -> slice:
        """After a reduce-scatter the rank's share, otherwise all."""
        share = self.elements // ranks
        return slice(rank * share, (rank + 1) * share) if self.collective == "reduce_scatter" else slice(None)


def _tree_edges(parents: Sequence[int | None]) -> Iterator[tuple[int, int, int, bool]]:
    """Source, destination, step and whether to add, for every edge up and then down."""
    heights = [0] * len(parents)
    depths = []
    for rank in range(len(parents)):
        path = [rank]
        while (parent := parents[path[-1]]) is not None:
            path.append(parent)
        for height, ancestor in enumerate(path):
            heights[ancestor] = max(heights[ancestor], height)
        depths.append(len(path) - 1)
    for rank, parent in enumerate(parents):
        if parent is not None:
            yield rank, parent, heights[rank], True
            yield parent, rank, max(heights) + depths[parent], False


def _messages(start: int, stop: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Equal parts of at most `most` elements."""
    return cut(start, stop, _ratio_up(stop - start, most))


def _pieces(start: int, stop: int, parts: int) -> list[tuple[int, int]]:
    """[start, stop) in `parts` equal parts, of which some may be empty."""
    length = stop - start
    return [(start + i * length // parts, start + (i + 1) * length // parts) for i in range(parts)]


def _ratio_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
