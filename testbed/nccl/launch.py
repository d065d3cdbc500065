# SPDX-License-Identifier: Apache-2.0
"""Memory of an operation, the call of NCCL that carries it out, and the check of what it has left."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.errors import TestbedError
from testbed.nccl.collectives import POISON, Operation
from testbed.nccl.cuda import Cuda
from testbed.nccl.elements import REDUCTIONS, wrong_elements
from testbed.nccl.libnccl import Communicator, Transfer

_GUARD_BYTES = 256
"""Size of the guard behind a buffer, which must keep its poison."""

_NAP_S = 500e-6
"""Interval between polls of the streams. On the CPU device a thread that polls takes the core that kernels need. Events
time the operations, so the interval does not affect results."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    wrong: int
    """Wrong elements of the result, and of the guard behind it."""
    sentence: str = ""
    """One sentence about the first wrong element."""


class Arena:
    """Memory of the device that grows as needed and is used again by the next operation."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._bytes = 0
        self.address = 0

    def hold(self, size: int) -> int:
        """The address of at least `size` bytes. What was there is lost when it has to grow."""
        if size > self._bytes:
            self.free()
            self.address, self._bytes = self._cuda.malloc(size), size
        return self.address

    def free(self) -> None:
        """Give the memory back."""
        if self.address:
            self._cuda.free(self.address)
        self.address, self._bytes = 0, 0


class Buffers:
    """The buffers of one rank for one operation after the other, in place or not."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._arenas = (Arena(cuda), Arena(cuda))
        self._operation: Operation | None = None
        self._rank = 0
        self._in_place = False
        self._data = self._expected = b""
        self.send = self.recv = 0
        """Addresses for NCCL."""

    def prepare(self, operation: Operation, rank: int, *, in_place: bool) -> None:
        """Provide the memory, the data and the expected result, unless they are those of the last call."""
        if (operation, rank, in_place) == (self._operation, self._rank, self._in_place):
            return
        self._operation, self._rank, self._in_place = operation, rank, in_place
        self._data = operation.sent(rank)
        first, second = self._arenas
        if in_place:
            self._expected = operation.expected_in_place(rank)
            base, offset = second.hold(operation.size + _GUARD_BYTES), rank * operation.share * operation.element.width
            shared = operation.kind.placement
            self.send = base + offset if shared == "share of recv" else base
            self.recv = base + offset if shared == "share of send" else base
        else:
            self._expected = operation.expected(rank)
            self.send = first.hold(max(1, len(self._data)))
            self.recv = second.hold(len(self._expected) + _GUARD_BYTES)
            self._cuda.write(self.send, self._data)

    def reset(self) -> None:
        """Fill the receive buffer and its guard with poison, and write the data anew where they are in it."""
        operation, base = self._prepared(), self._arenas[1].address
        size = operation.size if self._in_place else len(self._expected)
        self._cuda.write(base, bytes([POISON]) * (size + _GUARD_BYTES))
        if self._in_place:
            self._cuda.write(self.send, self._data)

    def enqueue(self, communicator: Communicator, stream: int) -> None:
        """Start the operation."""
        enqueue(self._prepared(), communicator, self._rank, self.send, self.recv, stream)

    def verdict(self) -> Verdict:
        """Compare the result with the expected data, and the guard with its poison."""
        operation, width = self._prepared(), self._prepared().element.width
        got = self._cuda.read(self.recv, len(self._expected))
        wrong = wrong_elements(got, self._expected, width)
        size = operation.size if self._in_place else len(self._expected)
        guard = self._cuda.read(self._arenas[1].address + size, _GUARD_BYTES)
        beyond = wrong_elements(guard, bytes([POISON]) * _GUARD_BYTES, width)
        sentence = ""
        if wrong:
            at = slice(wrong[0] * width, (wrong[0] + 1) * width)
            element = operation.element
            sentence = (
                f"{operation} gave a wrong result: element {wrong[0]:,} of {len(got) // width:,} is "
                f"{element.decode(bytes(got[at])):g}, but must be {element.decode(self._expected[at]):g}"
            )
        elif beyond:
            sentence = f"{operation} wrote past the end of its result, {beyond[0] * width} bytes after it"
        return Verdict(len(wrong) + len(beyond), sentence)

    def free(self) -> None:
        """Give the memory back."""
        for arena in self._arenas:
            arena.free()
        self._operation = None

    def _prepared(self) -> Operation:
        if self._operation is None:
            raise TestbedError("buffers were used before they were prepared")
        return self._operation


def enqueue(operation: Operation, communicator: Communicator, rank: int, send: int, recv: int, stream: int) -> None:
    """Enqueue an operation of a rank on a stream."""
    kind, count, ranks = operation.kind, operation.count, operation.ranks
    element, redop = operation.element.number, REDUCTIONS.get(operation.redop, 0)
    match kind.name:
        case "all_reduce":
            communicator.all_reduce(send, recv, count, element, redop, stream)
        case "all_gather":
            communicator.all_gather(send, recv, count, element, stream)
        case "reduce_scatter":
            communicator.reduce_scatter(send, recv, count, element, redop, stream)
        case "broadcast":
            communicator.broadcast(send, recv, count, element, operation.root, stream)
        case "reduce":
            communicator.reduce(send, recv, count, element, redop, operation.root, stream)
        case "all_to_all":
            step = count * operation.element.width
            communicator.exchange(
                [Transfer(send + peer * step, count, peer) for peer in range(ranks)],
                [Transfer(recv + peer * step, count, peer) for peer in range(ranks)],
                element,
                stream,
            )
        case "send_recv":
            sends, receives = Transfer(send, count, (rank + 1) % ranks), Transfer(recv, count, (rank - 1) % ranks)
            communicator.exchange([sends], [receives], element, stream)
        case other:
            raise TestbedError(f"there is no collective {other!r}")


def wait(
    cuda: Cuda, streams: Sequence[int], communicators: Sequence[Communicator], timeout_s: float = math.inf
) -> None:
    """Wait until the streams are idle. Raises TestbedError when NCCL or CUDA report an error, or after `timeout_s`."""
    begin = time.monotonic()
    while not all(cuda.is_idle(stream) for stream in streams):
        waited_s = time.monotonic() - begin
        if waited_s > timeout_s:
            raise TestbedError(f"NCCL's operations did not finish within {timeout_s:g} s")
        for communicator in communicators:
            communicator.check()
        time.sleep(_NAP_S)
    for communicator in communicators:
        communicator.check()
