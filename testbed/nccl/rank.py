# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.rank`: one rank of NCCL, a process that shares a GPU.

It reads commands from standard input and writes answers to standard output, one JSON object per line. A command names
an operation with its arguments, {"op": "measure", ...}; the operations are methods of `Rank`. An answer is the result
of the operation, or {"failed": SENTENCE}, after which the process ends. Logs go to standard error.
"""

import base64
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from testbed.errors import TestbedError
from testbed.nccl.collectives import COLLECTIVES, ELEMENT_BYTES, Collective, first_difference, sent
from testbed.nccl.cuda import Cuda
from testbed.nccl.libnccl import Communicator, Nccl, Transfer

_POISON = 0xA5
"""Value of every byte of a receive buffer before a measurement; no result has such an element."""

_GUARD_BYTES = 256
"""Size of the guard behind a receive buffer, which must keep its poison."""

_EAGER_S = 2e-3
"""How long to poll without sleeping, so that short operations are measured exactly."""

_NAP_S = 50e-6

_PR_SET_PDEATHSIG = 1


class Rank:
    """A rank: its GPU, its communicator and its two buffers."""

    def __init__(self, cuda: Cuda, nccl: Nccl, device: int) -> None:
        self._cuda = cuda
        self._nccl = nccl
        cuda.set_device(device)
        self._stream = cuda.stream()
        self._start, self._end = cuda.event(), cuda.event()
        self._rank = 0
        self._ranks = 1
        self._communicator: Communicator | None = None
        self._send, self._send_bytes = 0, 0
        self._recv, self._recv_bytes = 0, 0
        self._prepared: tuple[str, int] | None = None
        self._expected = b""

    def unique_id(self) -> dict[str, Any]:
        """The identifier that all ranks need to join. Only for rank 0."""
        return {"unique_id": base64.b64encode(self._nccl.unique_id()).decode()}

    def join(self, unique_id: str, rank: int, ranks: int) -> dict[str, Any]:
        """Join the communicator as `rank` of `ranks`."""
        self._rank, self._ranks = rank, ranks
        self._communicator = self._nccl.join(base64.b64decode(unique_id), rank, ranks)
        return {}

    def measure(self, collective: str, size: int, iterations: int) -> dict[str, Any]:
        """Run a collective once, then time `iterations` of it, and compare the result with the expected data.

        Returns {"seconds": mean time of one operation}. Raises TestbedError when a byte is wrong.
        """
        kind, elements = COLLECTIVES[collective], size // ELEMENT_BYTES
        if self._prepared != (collective, size):
            self._prepare(kind, elements)
            self._prepared = (collective, size)
        cuda, stream = self._cuda, self._stream
        self._enqueue(kind, elements)  # sets up connections; all ranks finish it at about the same time
        cuda.fill(self._recv, _POISON, len(self._expected) + _GUARD_BYTES, stream)
        self._wait()
        cuda.record(self._start, stream)
        for _ in range(iterations):
            self._enqueue(kind, elements)
        cuda.record(self._end, stream)
        self._wait()
        self._compare(f"{collective} of {size:,} bytes")
        return {"seconds": cuda.elapsed_s(self._start, self._end) / iterations}

    def leave(self) -> dict[str, Any]:
        """Leave the communicator and free all resources."""
        if self._communicator is not None:
            self._communicator.destroy()
            self._communicator = None
        for address in (self._send, self._recv):
            if address:
                self._cuda.free(address)
        for event in (self._start, self._end):
            self._cuda.destroy_event(event)
        self._cuda.destroy_stream(self._stream)
        return {}

    def _prepare(self, kind: Collective, elements: int) -> None:
        """Provide large enough buffers, the data to send and the expected data."""
        data = sent(self._rank, kind.send_elements(self._ranks, elements))
        self._expected = kind.expected(self._rank, self._ranks, elements)
        self._send, self._send_bytes = self._grown(self._send, self._send_bytes, len(data))
        self._recv, self._recv_bytes = self._grown(self._recv, self._recv_bytes, len(self._expected) + _GUARD_BYTES)
        self._cuda.write(self._send, data)

    def _grown(self, address: int, have: int, need: int) -> tuple[int, int]:
        if have >= need:
            return address, have
        if address:
            self._cuda.free(address)
        return self._cuda.malloc(need), need

    def _enqueue(self, kind: Collective, elements: int) -> None:
        """Enqueue one operation on the stream."""
        communicator, send, recv, ranks = self._joined(), self._send, self._recv, self._ranks
        share = elements // ranks
        match kind.name:
            case "all_reduce":
                communicator.all_reduce(send, recv, elements, self._stream)
            case "all_gather":
                communicator.all_gather(send, recv, share, self._stream)
            case "reduce_scatter":
                communicator.reduce_scatter(send, recv, share, self._stream)
            case "all_to_all":
                step = share * ELEMENT_BYTES
                communicator.exchange(
                    [Transfer(send + peer * step, share, peer) for peer in range(ranks)],
                    [Transfer(recv + peer * step, share, peer) for peer in range(ranks)],
                    self._stream,
                )
            case "send_recv":
                after, before = (self._rank + 1) % ranks, (self._rank - 1) % ranks
                communicator.exchange(
                    [Transfer(send, elements, after)], [Transfer(recv, elements, before)], self._stream
                )
            case other:
                raise TestbedError(f"there is no collective {other!r}")

    def _wait(self) -> None:
        """Wait until the stream is idle. Raises TestbedError when NCCL or CUDA report an error."""
        eager_until = time.monotonic() + _EAGER_S
        while not self._cuda.is_idle(self._stream):
            if time.monotonic() > eager_until:
                self._joined().check()
                time.sleep(_NAP_S)
        self._joined().check()

    def _compare(self, what: str) -> None:
        size = len(self._expected)
        got = self._cuda.read(self._recv, size)
        wrong = first_difference(got, self._expected)
        if wrong is not None:
            index = wrong // ELEMENT_BYTES
            raise TestbedError(
                f"{what} gave a wrong result: element {index:,} of {size // ELEMENT_BYTES:,} is "
                f"{_element(got, index):g}, but must be {_element(self._expected, index):g}"
            )
        guard = self._cuda.read(self._recv + size, _GUARD_BYTES)
        beyond = first_difference(guard, bytes([_POISON]) * _GUARD_BYTES)
        if beyond is not None:
            raise TestbedError(f"{what} wrote past the end of its result, {beyond} bytes after it")

    def _joined(self) -> Communicator:
        if self._communicator is None:
            raise TestbedError("an operation came before the rank had joined the communicator")
        return self._communicator


def _element(data: bytes | bytearray, index: int) -> float:
    return array("f", data[index * ELEMENT_BYTES : (index + 1) * ELEMENT_BYTES])[0]


def serve(commands: IO[str], answers: IO[str], rank: Rank) -> int:
    """Execute commands until the input ends or one fails. Returns the exit status."""
    operations: dict[str, Callable[..., dict[str, Any]]] = {
        "unique_id": rank.unique_id,
        "join": rank.join,
        "measure": rank.measure,
        "leave": rank.leave,
    }
    for line in commands:
        command = json.loads(line)
        print(json.dumps(operations[command.pop("op")](**command)), file=answers, flush=True)
    return 0


def main() -> int:
    """Entry point; arguments: paths of libnccl and libcudart, number of the GPU."""
    # A rank that waits inside NCCL does not notice the end of its input, and must not outlive the runner.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NCCL prints to standard output, which is for answers
    nccl, cudart, device = sys.argv[1:]
    try:
        return serve(sys.stdin, answers, Rank(Cuda(Path(cudart)), Nccl(Path(nccl)), int(device)))
    except Exception as error:  # the runner reports every error in one sentence
        traceback.print_exc()
        print(json.dumps({"failed": f"{error}" or type(error).__name__}), file=answers, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
