# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.rank`: one rank of NCCL, a process on a GPU or on the CPU device.

It reads commands from standard input and writes answers to standard output, one JSON object per line. A command names
an operation with its arguments, {"op": "measure", ...}; the operations are methods of `Rank` and `Scenario`. An answer
is the result of the operation, or {"failed": SENTENCE, "peer_lost": BOOLEAN}, after which the process ends.
Logs go to standard error.
"""

import base64
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

from testbed.errors import PeerLostError, TestbedError
from testbed.nccl.collectives import COLLECTIVES, Operation
from testbed.nccl.cuda import Cuda
from testbed.nccl.devices import Libraries
from testbed.nccl.elements import TYPES
from testbed.nccl.launch import Buffers, wait
from testbed.nccl.libnccl import Communicator, Nccl

_PR_SET_PDEATHSIG = 1

Operations = Mapping[str, Callable[..., dict[str, Any]]]
"""By name: what a command may ask for. Arguments and result are JSON."""


class Rank:
    """A rank that measures: its device, its communicator and its buffers."""

    def __init__(self, cuda: Cuda, nccl: Nccl, device: int) -> None:
        self._cuda = cuda
        self._nccl = nccl
        cuda.set_device(device)
        self._stream = cuda.stream()
        self._events: list[int] = []
        self._rank = 0
        self._ranks = 1
        self._communicator: Communicator | None = None
        self._buffers = Buffers(cuda)

    @property
    def operations(self) -> Operations:
        """The operations that a rank of this process starts."""
        return {
            "unique_id": self.unique_id,
            "join": self.join,
            "measure": self.measure,
            "warm_up": self.warm_up,
            "prepare": self.prepare,
            "run_at": self.run_at,
            "leave": self.leave,
        }

    def unique_id(self) -> dict[str, Any]:
        """The identifier that all ranks need to join. Only for rank 0."""
        return {"unique_id": base64.b64encode(self._nccl.unique_id()).decode()}

    def join(self, unique_id: str, rank: int, ranks: int) -> dict[str, Any]:
        """Join the communicator as `rank` of `ranks`."""
        self._rank, self._ranks = rank, ranks
        self._communicator = self._nccl.join(base64.b64decode(unique_id), rank, ranks)
        return {}

    def measure(
        self, collective: str, size: int, element: str, redop: str, in_place: bool, iterations: int
    ) -> dict[str, Any]:
        """Run a collective once, then time `iterations` of it, and compare the result with the expected data.

        In place every operation changes the data of the next, so one more is made for the comparison. Returns
        {"seconds": of each operation, "wrong": wrong elements, "sentence": what the first of them is}.
        """
        operation = Operation(COLLECTIVES[collective], TYPES[element], redop, self._ranks, size // TYPES[element].width)
        communicator, cuda, stream, buffers = self._joined(), self._cuda, self._stream, self._buffers
        while len(self._events) <= iterations:
            self._events.append(cuda.event())
        buffers.prepare(operation, self._rank, in_place=in_place)
        buffers.reset()
        buffers.enqueue(communicator, stream)  # sets up connections; all ranks finish it at about the same time
        wait(cuda, [stream], [communicator])
        if not in_place:
            buffers.reset()
        cuda.record(self._events[0], stream)
        for event in self._events[1 : iterations + 1]:
            buffers.enqueue(communicator, stream)
            cuda.record(event, stream)
        wait(cuda, [stream], [communicator])
        if in_place:
            buffers.reset()
            buffers.enqueue(communicator, stream)
            wait(cuda, [stream], [communicator])
        verdict = buffers.verdict()
        seconds = [cuda.elapsed_s(*self._events[index : index + 2]) for index in range(iterations)]
        return {"seconds": seconds, "wrong": verdict.wrong, "sentence": verdict.sentence}

    def warm_up(self, collective: str, size: int, element: str, redop: str, timeout_s: float) -> dict[str, Any]:
        """Run a collective once, out of place: NCCL and the network set up their connections."""
        self.prepare(collective, size, element, redop)
        self._buffers.enqueue(self._joined(), self._stream)
        wait(self._cuda, [self._stream], [self._joined()], timeout_s)
        return {}

    def prepare(self, collective: str, size: int, element: str, redop: str) -> dict[str, Any]:
        """Provide memory and data for `run_at`: with many bytes that takes longer than its start can be put off."""
        kind = TYPES[element]
        operation = Operation(COLLECTIVES[collective], kind, redop, self._ranks, size // kind.width)
        self._buffers.prepare(operation, self._rank, in_place=False)
        self._buffers.reset()
        return {}

    def run_at(self, at_s: float, iterations: int, timeout_s: float) -> dict[str, Any]:
        """Run `iterations` of the prepared collective, out of place, from `at_s` of the monotonic clock on.

        Returns {"finished_s": end, of the same clock, "wrong": wrong elements, "sentence": what the first of them is}.
        """
        time.sleep(max(0.0, at_s - time.monotonic()))
        for _ in range(iterations):
            self._buffers.enqueue(self._joined(), self._stream)
        wait(self._cuda, [self._stream], [self._joined()], timeout_s)
        finished_s = time.monotonic()
        verdict = self._buffers.verdict()
        return {"finished_s": finished_s, "wrong": verdict.wrong, "sentence": verdict.sentence}

    def leave(self) -> dict[str, Any]:
        """Leave the communicator and free all resources."""
        if self._communicator is not None:
            self._communicator.destroy()
            self._communicator = None
        self._buffers.free()
        for event in self._events:
            self._cuda.destroy_event(event)
        self._events.clear()
        self._cuda.destroy_stream(self._stream)
        return {}

    def _joined(self) -> Communicator:
        if self._communicator is None:
            raise TestbedError("an operation came before the rank had joined the communicator")
        return self._communicator


def serve(commands: IO[str], answers: IO[str], operations: Operations) -> int:
    """Execute commands until the input ends or one fails. Returns the exit status."""
    for line in commands:
        command = json.loads(line)
        print(json.dumps(operations[command.pop("op")](**command)), file=answers, flush=True)
    return 0


def run(operations: Callable[[], Operations]) -> int:
    """Serve the operations until the end of the input. Reports every error in one sentence."""
    # A rank that waits inside NCCL does not notice the end of its input, and must not outlive the runner.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NCCL prints to standard output, which is for answers
    try:
        return serve(sys.stdin, answers, operations())
    except Exception as error:
        traceback.print_exc()
        failed = {"failed": f"{error}" or type(error).__name__, "peer_lost": isinstance(error, PeerLostError)}
        print(json.dumps(failed), file=answers, flush=True)
        return 1


def main() -> int:
    """Entry point; arguments: the libraries (`Libraries.words`), number of the GPU."""
    *words, device = sys.argv[1:]

    def operations() -> Operations:
        return Rank(*Libraries.of_words(words).load(), int(device)).operations

    return run(operations)


if __name__ == "__main__":
    sys.exit(main())
