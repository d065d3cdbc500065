# SPDX-License-Identifier: Apache-2.0
"""A rank of test_communicators.py: `python communicators.py SCENARIO RANK RANKS NCCL FOLDER`.

Ranks exchange identifiers of communicators through files in FOLDER. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hostlib import stats
from testbed.cli.operations_input import operations_of
from testbed.live.nccl_operations import OperationState, states
from testbed.nccl.cpu_device import attach

FLOAT32, SUM = 7, 0
IN_PROGRESS = 7
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
NOT_READY = 600
NON_BLOCKING = 1

WAIT_S = 60.0

pointer = ctypes.c_void_p


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_char * 128),)


class Rank:
    """NCCL and the CPU device in this process."""

    def __init__(self, rank: int, ranks: int, library: Path, folder: Path) -> None:
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.cuda: Any = ctypes.CDLL(str(attach(library)))
        self.nccl: Any = ctypes.CDLL(str(library))
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = (pointer, ctypes.c_int, UniqueId, ctypes.c_int)
        self.rounds = 0

    def check(self, result: int) -> None:
        """Raises RuntimeError unless a call of NCCL succeeded."""
        if result not in (0, IN_PROGRESS):
            raise RuntimeError(self.nccl.ncclGetErrorString(result).decode())

    def join(self) -> pointer:
        """A new communicator of all ranks."""
        file = self.folder / f"id-{self.rounds}"
        self.rounds += 1
        unique = UniqueId()
        if self.rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
            new = file.with_suffix(".new")
            new.write_bytes(bytes(unique))
            new.rename(file)
        else:
            self.await_(file.exists)
            unique = UniqueId.from_buffer_copy(file.read_bytes())
        communicator = pointer()
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(communicator), self.ranks, unique, self.rank))
        return communicator

    def stream(self) -> pointer:
        """A new stream, independent of others."""
        handle = pointer()
        assert self.cuda.cudaStreamCreateWithFlags(ctypes.byref(handle), NON_BLOCKING) == 0
        return handle

    def buffer(self, values: array[float]) -> pointer:
        """Memory of the device that holds `values`."""
        address = pointer()
        size = ctypes.c_size_t(4 * len(values))
        assert self.cuda.cudaMalloc(ctypes.byref(address), size) == 0
        assert self.cuda.cudaMemcpy(address, pointer(values.buffer_info()[0]), size, HOST_TO_DEVICE) == 0
        return address

    def queue(self, communicator: pointer, buffer: pointer, elements: int, stream: pointer) -> int:
        """Queue an all-reduce in place. Returns NCCL's result."""
        count = ctypes.c_size_t(elements)
        result: int = self.nccl.ncclAllReduce(buffer, buffer, count, FLOAT32, SUM, communicator, stream)
        return result

    def start(self, communicator: pointer, buffer: pointer, elements: int, stream: pointer) -> None:
        """Queue an all-reduce in place, which must succeed."""
        self.check(self.queue(communicator, buffer, elements, stream))

    def result(self, buffer: pointer, elements: int, stream: pointer) -> array[float]:
        """What the buffer holds when the stream is done. Frees the buffer."""
        assert self.cuda.cudaStreamSynchronize(stream) == 0
        values = array("f", bytes(4 * elements))
        size = ctypes.c_size_t(4 * elements)
        assert self.cuda.cudaMemcpy(pointer(values.buffer_info()[0]), buffer, size, DEVICE_TO_HOST) == 0
        assert self.cuda.cudaFree(buffer) == 0
        return values

    def sums(self, communicator: pointer, ranks: int, elements: int = 5000) -> bool:
        """Whether an all-reduce gives the right result: element i of each rank is i % 97."""
        stream = self.stream()
        buffer = self.buffer(pattern(elements))
        self.start(communicator, buffer, elements, stream)
        right = self.result(buffer, elements, stream) == array("f", (ranks * value for value in pattern(elements)))
        assert self.cuda.cudaStreamDestroy(stream) == 0
        return right

    def meet(self) -> None:
        """Wait until all ranks have come here.

        A rank's part of a collective can be over while its proxy still sends the last data. A rank that then aborts or
        ends leaves the others without them.
        """
        (self.folder / f"met-{self.rank}").touch()
        self.await_(lambda: all((self.folder / f"met-{rank}").exists() for rank in range(self.ranks)))

    def await_(self, true: Any) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.005)

    # Scenarios

    def many(self, communicators: int = 100) -> dict[str, Any]:
        """Communicators in turn; what they leave behind."""
        right, usage = [], []
        for _ in range(communicators):
            communicator = self.join()
            right.append(self.sums(communicator, self.ranks, 100))
            self.check(self.nccl.ncclCommDestroy(communicator))
            usage.append(used())
        return {"right": all(right), "usage": usage}

    def dead_paths(self, rounds: int = 20, elements: int = 1_000_000) -> dict[str, Any]:
        """All-reduces while paths die (PARALET_FAULTS); a lane leaves its path."""
        communicator = self.join()
        right = [self.sums(communicator, self.ranks, elements) for _ in range(rounds)]
        self.await_(lambda: any(lane.moves for lane in lanes()))  # counters are published from time to time
        right.append(self.sums(communicator, self.ranks))  # until here the peers keep their queue pairs
        self.check(self.nccl.ncclCommDestroy(communicator))
        return {"right": all(right)}

    def split(self) -> dict[str, Any]:
        """Two halves of a communicator, and all three at once."""
        whole, half = self.join(), pointer()
        color = self.rank * 2 // self.ranks
        self.check(self.nccl.ncclCommSplit(whole, color, self.rank, ctypes.byref(half), None))
        size, elements = ctypes.c_int(), 100_000
        self.check(self.nccl.ncclCommCount(half, ctypes.byref(size)))
        streams = [self.stream(), self.stream()]
        buffers = [self.buffer(pattern(elements)) for _ in streams]
        self.check(self.nccl.ncclGroupStart())
        for communicator, buffer, stream in zip((whole, half), buffers, streams, strict=True):
            self.start(communicator, buffer, elements, stream)
        self.check(self.nccl.ncclGroupEnd())
        results = [self.result(*pair) for pair in zip(buffers, (elements, elements), streams, strict=True)]
        right = [
            values == array("f", (ranks * value for value in pattern(elements)))
            for values, ranks in zip(results, (self.ranks, size.value), strict=True)
        ]
        for communicator in (half, whole):
            self.check(self.nccl.ncclCommDestroy(communicator))
        return {"half": size.value, "right": all(right)}

    def streams(self, rounds: int = 20) -> dict[str, Any]:
        """Three communicators, each with a stream of its own, all busy at the same time; ranks start them in turn."""
        communicators = [self.join() for _ in range(3)]
        streams, elements = [self.stream() for _ in communicators], 50_000
        buffers = [self.buffer(array("f", [1.0]) * elements) for _ in communicators]
        for number in range(rounds):
            for offset in range(3):
                i = (self.rank + number + offset) % 3
                self.start(communicators[i], buffers[i], elements, streams[i])
            if number % 4 == 3:  # keeps sums within what float32 holds exactly
                for buffer, stream in zip(buffers, streams, strict=True):
                    assert self.cuda.cudaStreamSynchronize(stream) == 0
                    size = ctypes.c_size_t(4 * elements)
                    ones = array("f", [1.0]) * elements
                    assert self.cuda.cudaMemcpy(buffer, pointer(ones.buffer_info()[0]), size, HOST_TO_DEVICE) == 0
        last = rounds % 4
        results = [self.result(buffer, elements, stream) for buffer, stream in zip(buffers, streams, strict=True)]
        right = [values == array("f", [float(self.ranks**last)]) * elements for values in results]
        for communicator in communicators:
            self.check(self.nccl.ncclCommDestroy(communicator))
        return {"right": all(right)}

    def abort(self) -> dict[str, Any]:
        """Rank 0 waits for the others in a collective that they never start; it aborts, and all go on."""
        communicator, stream = self.join(), self.stream()
        right = self.sums(communicator, self.ranks)
        self.meet()
        pending = False
        if self.rank == 0:
            buffer = self.buffer(pattern(1_000_000))
            self.start(communicator, buffer, 1_000_000, stream)
            time.sleep(0.2)
            pending = self.cuda.cudaStreamQuery(stream) == NOT_READY
        self.check(self.nccl.ncclCommAbort(communicator))
        if self.rank == 0:
            assert self.cuda.cudaStreamSynchronize(stream) == 0
            assert self.cuda.cudaFree(buffer) == 0
        again = self.join()
        right = right and self.sums(again, self.ranks)
        self.check(self.nccl.ncclCommDestroy(again))
        return {"pending": pending, "right": right}

    def longer_send(self, sent: int = 4_000_000, received: int = 1_000_000) -> dict[str, Any]:
        """Rank 0 sends more elements than rank 1 receives; then both abort."""
        communicator, stream = self.join(), self.stream()
        right = self.sums(communicator, self.ranks)
        sends = self.rank == 0
        elements = sent if sends else received
        buffer = self.buffer(pattern(elements) if sends else array("f", bytes(4 * elements)))
        call = self.nccl.ncclSend if sends else self.nccl.ncclRecv
        self.check(call(buffer, ctypes.c_size_t(elements), FLOAT32, 1 - self.rank, communicator, stream))
        if not sends:
            right = right and self.result(buffer, elements, stream) == pattern(elements)
            (self.folder / "received").touch()
        self.await_((self.folder / "received").exists)
        time.sleep(0.2)
        pending = self.cuda.cudaStreamQuery(stream) == NOT_READY
        error = ctypes.c_int()
        self.check(self.nccl.ncclCommGetAsyncError(communicator, ctypes.byref(error)))
        self.meet()
        self.check(self.nccl.ncclCommAbort(communicator))
        return {"pending": pending, "error": error.value, "right": right}

    def killed(self) -> dict[str, Any]:
        """The last rank dies in a collective; the others learn of it, abort, and go on without it."""
        communicator, stream = self.join(), self.stream()
        right = self.sums(communicator, self.ranks)
        self.meet()
        buffer = self.buffer(pattern(4_000_000))
        if self.rank == self.ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # NCCL may know of the death already: a proxy waits for the acknowledgement of what it has sent.
        error = ctypes.c_int(self.queue(communicator, buffer, 4_000_000, stream))

        def noticed() -> bool:
            if error.value not in (0, IN_PROGRESS):
                return True
            self.check(self.nccl.ncclCommGetAsyncError(communicator, ctypes.byref(error)))
            return error.value not in (0, IN_PROGRESS)

        self.await_(noticed)
        self.check(self.nccl.ncclCommAbort(communicator))
        assert self.cuda.cudaStreamSynchronize(stream) == 0
        assert self.cuda.cudaFree(buffer) == 0
        self.ranks -= 1
        again = self.join()
        right = right and self.sums(again, self.ranks)
        self.check(self.nccl.ncclCommDestroy(again))
        return {"error": error.value, "right": right}

    def shrink(self) -> dict[str, Any]:
        """The last rank is left out of a communicator while a collective that it never joins is in flight."""
        communicator, stream = self.join(), self.stream()
        right = self.sums(communicator, self.ranks)
        self.meet()
        buffer = self.buffer(pattern(1_000_000))
        smaller = pointer()
        if self.rank < self.ranks - 1:
            self.start(communicator, buffer, 1_000_000, stream)
            left_out = (ctypes.c_int * 1)(self.ranks - 1)
            abort = 1  # NCCL_SHRINK_ABORT
            self.check(self.nccl.ncclCommShrink(communicator, left_out, 1, ctypes.byref(smaller), None, abort))
            assert self.cuda.cudaStreamSynchronize(stream) == 0
            right = right and self.sums(smaller, self.ranks - 1)
            self.check(self.nccl.ncclCommDestroy(smaller))
        self.check(self.nccl.ncclCommAbort(communicator))
        assert self.cuda.cudaFree(buffer) == 0
        return {"right": right}

    def revoke(self) -> dict[str, Any]:
        """All ranks revoke a communicator in which rank 0 waits for the others, and split it afterwards."""
        communicator, stream, after = self.join(), self.stream(), pointer()
        right = self.sums(communicator, self.ranks)
        self.meet()
        if self.rank == 0:
            buffer = self.buffer(pattern(1_000_000))
            self.start(communicator, buffer, 1_000_000, stream)
        self.check(self.nccl.ncclCommRevoke(communicator, 0))
        state = ctypes.c_int()

        def quiescent() -> bool:
            self.check(self.nccl.ncclCommGetAsyncError(communicator, ctypes.byref(state)))
            return state.value == 0

        self.await_(quiescent)
        if self.rank == 0:
            assert self.cuda.cudaStreamSynchronize(stream) == 0
            assert self.cuda.cudaFree(buffer) == 0
        self.check(self.nccl.ncclCommSplit(communicator, 0, self.rank, ctypes.byref(after), None))
        right = right and self.sums(after, self.ranks)
        for each in (after, communicator):
            self.check(self.nccl.ncclCommDestroy(each))
        return {"right": right}

    def late(self, elements: int = 200_000) -> dict[str, Any]:
        """The last rank joins an all-reduce once it sees that the others wait for it, and looks again at the end."""
        (self.folder / f"pid-{self.rank}").write_text(f"{os.getpid()}\n")
        communicator, stream = self.join(), self.stream()
        right = [self.sums(communicator, self.ranks)]
        files = [self.folder / f"pid-{rank}" for rank in range(self.ranks)]
        self.await_(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
        pids = [int(file.read_text()) for file in files]

        def seen() -> OperationState | None:
            return next(iter(states(operations_of(pids), late_after_s=0.2)), None)

        def seen_when(holds: Callable[[OperationState], bool]) -> dict[str, Any]:
            found: list[OperationState] = []

            def look() -> bool:
                state = seen()
                if state is not None and holds(state):
                    found.append(state)
                return bool(found)

            self.await_(look)
            return asdict(found[0])

        buffer = self.buffer(pattern(elements))
        answer: dict[str, Any] = {}
        if self.rank == self.ranks - 1:
            answer["late"] = seen_when(lambda state: f"rank {self.rank}, which has not begun it" in state.late)
        self.start(communicator, buffer, elements, stream)
        expected = array("f", (self.ranks * value for value in pattern(elements)))
        right.append(self.result(buffer, elements, stream) == expected)
        answer["done"] = seen_when(
            lambda state: not state.running and " 1 of " in state.title and state.seen == self.ranks
        )
        self.meet()
        self.check(self.nccl.ncclCommDestroy(communicator))
        return {**answer, "right": all(right), "left": len(operations_of([os.getpid()]))}

    def finalize(self) -> dict[str, Any]:
        """Finalize before destroying, three times in a process."""
        right = []
        for _ in range(3):
            communicator = self.join()
            right.append(self.sums(communicator, self.ranks))
            self.check(self.nccl.ncclCommFinalize(communicator))
            self.check(self.nccl.ncclCommDestroy(communicator))
        return {"right": all(right)}


def pattern(elements: int) -> array[float]:
    """Element i is i % 97."""
    return (array("f", range(97)) * (elements // 97 + 1))[:elements]


def lanes() -> list[stats.LaneSnapshot]:
    """The lanes of this process's devices, as last published."""
    (this,) = stats.survey([os.getpid()]).processes
    return [lane for device in this.devices for lane in device.lanes]


def used() -> dict[str, int]:
    """Threads, open files, memory mappings and resident memory (KiB) of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "resident": int(status["VmRSS"].split()[0]),
    }


def main() -> None:
    """Run a scenario."""
    scenario, rank, ranks, library, folder = sys.argv[1:]
    this = Rank(int(rank), int(ranks), Path(library), Path(folder))
    print(json.dumps(getattr(this, scenario)()), flush=True)


if __name__ == "__main__":
    main()
