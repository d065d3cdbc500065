# SPDX-License-Identifier: Apache-2.0
"""The input and the expected output of each collective, and its bandwidth from its time. Pure: no device, no NCCL.

Sizes, counts and bandwidths are those of nccl-tests (its doc/PERFORMANCE.md). `size` is that of the larger of a rank's
two buffers; `count` is the number of elements that NCCL's function is called with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from testbed.nccl.elements import COPY, ElementType, reduced, sent

ROOT = 0
"""The root of broadcast and reduce."""

POISON = 0xA5
"""Value of every byte of a receive buffer before an operation. No result has such an element."""

Placement = Literal["same", "share of recv", "share of send"]
"""The buffers of an operation in place: the same buffer, or one is the rank's share of the other."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective. `elements` is the number of elements of the larger of a rank's two buffers."""

    name: str
    bus_factor: Callable[[int], float]
    """A function of the number of ranks: bus bandwidth / algorithm bandwidth."""
    reduces: bool
    rooted: bool
    counts_shares: bool
    """NCCL's function is called with 1/ranks of `elements`."""
    placement: Placement | None
    """None: the operation is not possible in place."""
    expected: Callable[["Operation", int], bytes]
    """A function of an operation and a rank: the bytes of that rank's receive buffer at the end, out of place."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective of `ranks` ranks with all that decides its result."""

    kind: Collective
    element: ElementType
    redop: str
    """A key of REDUCTIONS, or COPY."""
    ranks: int
    elements: int
    """The elements of the larger of a rank's two buffers: a multiple of `ranks`."""

    @property
    def size(self) -> int:
        """Bytes of the larger of a rank's two buffers."""
        return self.elements * self.element.width

    @property
    def share(self) -> int:
        """Elements of one rank's share."""
        return self.elements // self.ranks

    @property
    def count(self) -> int:
        """Elements that NCCL's function is called with; for the sends of an all-to-all, of each."""
        return self.share if self.kind.counts_shares else self.elements

    @property
    def root(self) -> int:
        """The root, or -1, as nccl-tests prints it."""
        return ROOT if self.kind.rooted else -1

    def sent(self, rank: int) -> bytes:
        """The bytes of a rank's send buffer."""
        shared = self.kind.placement == "share of recv"
        return self.data(rank, self.share if shared else self.elements)

    def data(self, rank: int, count: int, first: int = 0) -> bytes:
        """`count` elements of the data of `rank`, from element `first` on."""
        return sent(self.element, self.redop, self.ranks, rank, count, first)

    def expected(self, rank: int) -> bytes:
        """The bytes of a rank's receive buffer when all is done, out of place."""
        return self.kind.expected(self, rank)

    def expected_in_place(self, rank: int) -> bytes:
        """The same in place: a rank that gets no result keeps its data."""
        keeps = self.kind.rooted and self.kind.reduces and rank != ROOT
        return self.sent(rank) if keeps else self.expected(rank)

    def bandwidths(self, seconds: float) -> tuple[float, float]:
        """Algorithm and bus bandwidth of one operation in `seconds`, in bytes per second."""
        algorithm = self.size / seconds
        return algorithm, algorithm * self.kind.bus_factor(self.ranks)

    def __str__(self) -> str:
        reduction = "" if self.redop == COPY else f", {self.redop}"
        return f"{self.kind.name} of {self.size:,} bytes ({self.element.name}{reduction})"


def fit(size: int, ranks: int, element: ElementType) -> int:
    """The least number of bytes, `size` or more, that is a whole number of elements for each rank."""
    step = element.width * ranks
    return -(-size // step) * step


def _reduced(operation: Operation, first: int, count: int) -> bytes:
    return reduced(operation.element, operation.redop, operation.ranks, count, first)


def _all_reduce(operation: Operation, rank: int) -> bytes:
    return _reduced(operation, 0, operation.elements)


def _all_gather(operation: Operation, rank: int) -> bytes:
    return b"".join(operation.data(peer, operation.share) for peer in range(operation.ranks))


def _reduce_scatter(operation: Operation, rank: int) -> bytes:
    return _reduced(operation, rank * operation.share, operation.share)


def _broadcast(operation: Operation, rank: int) -> bytes:
    return operation.data(ROOT, operation.elements)


def _reduce(operation: Operation, rank: int) -> bytes:
    return _all_reduce(operation, rank) if rank == ROOT else bytes([POISON]) * operation.size


def _all_to_all(operation: Operation, rank: int) -> bytes:
    share = operation.share
    return b"".join(operation.data(peer, share, rank * share) for peer in range(operation.ranks))


def _send_recv(operation: Operation, rank: int) -> bytes:
    return operation.data((rank - 1) % operation.ranks, operation.elements)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(ranks: int) -> float:
    return 1.0


def _twice_the_others(ranks: int) -> float:
    return 2 * _others(ranks)


COLLECTIVES = {
    each.name: each
    for each in (
        Collective("all_reduce", _twice_the_others, True, False, False, "same", _all_reduce),
        Collective("all_gather", _others, False, False, True, "share of recv", _all_gather),
        Collective("reduce_scatter", _others, True, False, True, "share of send", _reduce_scatter),
        Collective("broadcast", _one, False, True, False, "same", _broadcast),
        Collective("reduce", _one, True, True, False, "same", _reduce),
        Collective("all_to_all", _others, False, False, True, None, _all_to_all),
        Collective("send_recv", _one, False, False, False, None, _send_recv),
    )
}
