# SPDX-License-Identifier: Apache-2.0
"""One rank of the test of the CPU device's kernels: the real NCCL runs operations whose results are known.

usage: python kernel_rank.py LIBRARY RANK RANKS ID_FILE SUITE SEED

Prints one line per kind of operation, "RESULT name=cases", and exits with 1 at the first wrong byte. All ranks draw the
same cases from SEED.
"""

import ctypes
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.nccl.cpu_device import attach

_GUARD = 64  # bytes before and behind every buffer
_GUARD_BYTE = 0x5A
_DEADLINE_S = 60.0
_NOT_READY = 600  # cudaErrorNotReady

Values = npt.NDArray[Any]


class Type(NamedTuple):
    """A data type: NCCL's number, and the NumPy type of its values (of bfloat16, of its bits)."""

    name: str
    number: int
    numpy: str

    @property
    def is_float(self) -> bool:
        return "float" in self.name


TYPES = (
    Type("int8", 0, "int8"),
    Type("uint8", 1, "uint8"),
    Type("int32", 2, "int32"),
    Type("uint32", 3, "uint32"),
    Type("int64", 4, "int64"),
    Type("uint64", 5, "uint64"),
    Type("float16", 6, "float16"),
    Type("float32", 7, "float32"),
    Type("float64", 8, "float64"),
    Type("bfloat16", 9, "uint16"),
)
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


def encode(values: Values, kind: Type) -> Values:
    """Values as the type stores them. bfloat16 holds the upper half of a float32."""
    if kind.name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(kind.numpy)


def inputs(rank: int, count: int, operation: str, kind: Type) -> Values:
    """A rank's data: small whole numbers, of which every type holds all results."""
    index = np.arange(count, dtype=np.int64)
    if operation == "prod":
        return (index * (rank + 3) % 7 % 2) + 1
    values = (index * 5 + rank * 3) % 11
    return values - 5 if kind.is_float or kind.name.startswith("int") else values


def reduced(all_inputs: list[Values], operation: str, kind: Type) -> Values:
    """What a reduction of the ranks' data gives. An average of whole numbers is rounded towards zero."""
    stack = np.stack(all_inputs)
    if operation == "avg":
        mean: Values = stack.sum(axis=0) / len(all_inputs)
        return mean if kind.is_float else np.trunc(mean).astype(np.int64)
    functions: dict[str, Callable[..., Values]] = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    return functions[operation](stack, axis=0)


class Buffer:
    """Elements between guards."""

    in_use: ClassVar[list[npt.NDArray[np.uint8]]] = []
    """The memory of operations that may still run."""

    def __init__(self, count: int, kind: Type) -> None:
        size = np.dtype(kind.numpy).itemsize * count
        self._bytes = np.full(size + 2 * _GUARD, _GUARD_BYTE, dtype=np.uint8)
        self.in_use.append(self._bytes)
        self.values = self._bytes[_GUARD : _GUARD + size].view(kind.numpy)

    def address(self, element: int = 0) -> int:
        return int(self.values.ctypes.data) + element * self.values.itemsize

    def guarded(self) -> bool:
        return bool((self._bytes[:_GUARD] == _GUARD_BYTE).all() and (self._bytes[-_GUARD:] == _GUARD_BYTE).all())


def wait_for(files: Iterable[Path]) -> None:
    """Until other ranks have made the files."""
    end = time.monotonic() + _DEADLINE_S
    for file in files:
        while not file.exists():
            if time.monotonic() > end:
                raise SystemExit(f"no rank made {file.name}")
            time.sleep(0.02)


class Rank:
    """NCCL and the CPU device's runtime, loaded, with a communicator and a stream."""

    def __init__(self, library: Path, rank: int, ranks: int, id_file: Path) -> None:
        self.cuda = ctypes.CDLL(str(attach(library)))
        self.nccl = ctypes.CDLL(str(library))
        self.nccl.ncclGetErrorString.restype = self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.rank, self.ranks = rank, ranks

        class Unique(ctypes.Structure):
            _fields_ = (("internal", ctypes.c_char * 128),)

        unique = Unique()
        if rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
            new = id_file.with_suffix(".new")
            new.write_bytes(bytes(unique))
            new.rename(id_file)
        else:
            wait_for([id_file])
            unique = Unique.from_buffer_copy(id_file.read_bytes())
        self.folder = id_file.parent
        address = ctypes.c_void_p()
        self.nccl.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, Unique, ctypes.c_int)
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(address), ranks, unique, rank))
        self.communicator = address
        stream = ctypes.c_void_p()
        self.check(self.cuda.cudaStreamCreate(ctypes.byref(stream)))
        self.stream = stream

    def check(self, result: int) -> None:
        if result:
            text = self.nccl.ncclGetErrorString(result).decode()
            raise SystemExit(f"rank {self.rank}: {text}: {(self.nccl.ncclGetLastError(None) or b'').decode()}")

    def call(self, name: str, *arguments: Any) -> None:
        """A call of NCCL with plain integers as pointers, sizes and enumerations."""
        self.check(getattr(self.nccl, name)(*(ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments)))

    def wait(self) -> None:
        """Until the stream is done. Exits at a deadline or an asynchronous error."""
        end = time.monotonic() + _DEADLINE_S
        error = ctypes.c_int()
        while status := self.cuda.cudaStreamQuery(self.stream):
            self.check(self.nccl.ncclCommGetAsyncError(self.communicator, ctypes.byref(error)))
            self.check(error.value)
            if status != _NOT_READY:
                raise SystemExit(f"rank {self.rank}: the stream failed with CUDA error {status}")
            if time.monotonic() > end:
                raise SystemExit(f"rank {self.rank}: an operation hangs")
            time.sleep(0.0005)
        Buffer.in_use.clear()


def _verify(rank: Rank, what: str, buffer: Buffer, expected: Values, kind: Type, operation: str) -> None:
    wanted = encode(expected, kind)
    if kind.is_float and operation == "avg":
        got = buffer.values
        if kind.name == "bfloat16":
            got = (got.astype(np.uint32) << 16).view(np.float32)
        tolerance = {"bfloat16": 0.1, "float16": 0.01}.get(kind.name, 1e-5)
        right = np.allclose(got.astype(np.float64), expected, rtol=0, atol=tolerance)
    else:
        right = bool((buffer.values == wanted).all())
    if not right or not buffer.guarded():
        wrong = np.flatnonzero(buffer.values != wanted)
        at = f", first at element {wrong[0]} of {wanted.size}" if wrong.size else ""
        raise SystemExit(f"rank {rank.rank}: {what}: {wrong.size} elements are wrong{at}; guards {buffer.guarded()}")


class Case(NamedTuple):
    """One collective to be run."""

    kind: Type
    operation: str
    elements: int
    root: int
    in_place: bool


Pending = Callable[[], None]
"""Checks a result after the stream is done."""


def all_reduce(rank: Rank, case: Case) -> Pending:
    kind, operation, count = case.kind, case.operation, case.elements
    receive = Buffer(count, kind)
    send = receive if case.in_place else Buffer(count, kind)
    send.values[:] = encode(inputs(rank.rank, count, operation, kind), kind)
    number = OPERATIONS[operation]
    arguments = (send.address(), receive.address(), count, kind.number, number, rank.communicator, rank.stream)
    rank.call("ncclAllReduce", *arguments)
    expected = reduced([inputs(r, count, operation, kind) for r in range(rank.ranks)], operation, kind)
    return lambda: _verify(rank, f"all_reduce {case}", receive, expected, kind, operation)


def reduce(rank: Rank, case: Case) -> Pending:
    kind, operation, count = case.kind, case.operation, case.elements
    receive = Buffer(count, kind)
    send = receive if case.in_place else Buffer(count, kind)
    send.values[:] = encode(inputs(rank.rank, count, operation, kind), kind)
    untouched = receive.values.copy()
    number, root = OPERATIONS[operation], case.root
    arguments = (send.address(), receive.address(), count, kind.number, number, root, rank.communicator, rank.stream)
    rank.call("ncclReduce", *arguments)
    expected = reduced([inputs(r, count, operation, kind) for r in range(rank.ranks)], operation, kind)

    def verify() -> None:
        if rank.rank == root:
            _verify(rank, f"reduce {case}", receive, expected, kind, operation)
        elif not (receive.values == untouched).all() or not receive.guarded():
            raise SystemExit(f"rank {rank.rank}: reduce {case} wrote where it is not the root")

    return verify


def reduce_scatter(rank: Rank, case: Case) -> Pending:
    kind, operation, count, ranks = case.kind, case.operation, case.elements, rank.ranks
    send = Buffer(count * ranks, kind)
    send.values[:] = encode(inputs(rank.rank, count * ranks, operation, kind), kind)
    receive = Buffer(count, kind)
    target = send.address(rank.rank * count) if case.in_place else receive.address()
    number = OPERATIONS[operation]
    arguments = (send.address(), target, count, kind.number, number, rank.communicator, rank.stream)
    rank.call("ncclReduceScatter", *arguments)
    everything = reduced([inputs(r, count * ranks, operation, kind) for r in range(ranks)], operation, kind)
    share = slice(rank.rank * count, (rank.rank + 1) * count)

    def verify() -> None:
        if case.in_place:
            receive.values[:] = send.values[share]
        _verify(rank, f"reduce_scatter {case}", receive, everything[share], kind, operation)
        if not send.guarded():
            raise SystemExit(f"rank {rank.rank}: reduce_scatter {case} wrote outside its buffer")

    return verify


def all_gather(rank: Rank, case: Case) -> Pending:
    kind, count = case.kind, case.elements
    receive = Buffer(count * rank.ranks, kind)
    send = Buffer(count, kind)
    mine = encode(inputs(rank.rank, count, "sum", kind), kind)
    source = send.address()
    if case.in_place:
        receive.values[rank.rank * count : (rank.rank + 1) * count] = mine
        source = receive.address(rank.rank * count)
    else:
        send.values[:] = mine
    rank.call("ncclAllGather", source, receive.address(), count, kind.number, rank.communicator, rank.stream)
    expected = np.concatenate([inputs(r, count, "sum", kind) for r in range(rank.ranks)])
    return lambda: _verify(rank, f"all_gather {case}", receive, expected, kind, "sum")


def broadcast(rank: Rank, case: Case) -> Pending:
    kind, count, root = case.kind, case.elements, case.root
    receive = Buffer(count, kind)
    send = receive if case.in_place else Buffer(count, kind)
    send.values[:] = encode(inputs(rank.rank, count, "sum", kind), kind)
    arguments = (send.address(), receive.address(), count, kind.number, root, rank.communicator, rank.stream)
    rank.call("ncclBroadcast", *arguments)
    expected = inputs(root, count, "sum", kind)
    return lambda: _verify(rank, f"broadcast {case}", receive, expected, kind, "sum")


def all_to_all(rank: Rank, case: Case) -> Pending:
    """Each pair of ranks has a size of its own, 0 included."""
    kind = case.kind

    def size(sender: int, receiver: int) -> int:
        return case.elements * ((sender + 2 * receiver) % 4) // 3

    sends = [Buffer(size(rank.rank, other), kind) for other in range(rank.ranks)]
    receives = [Buffer(size(other, rank.rank), kind) for other in range(rank.ranks)]
    rank.call("ncclGroupStart")
    for other in range(rank.ranks):
        sends[other].values[:] = encode(inputs(rank.rank * 5 + other, sends[other].values.size, "sum", kind), kind)
        end = (kind.number, other, rank.communicator, rank.stream)
        rank.call("ncclSend", sends[other].address(), sends[other].values.size, *end)
        rank.call("ncclRecv", receives[other].address(), receives[other].values.size, *end)
    rank.call("ncclGroupEnd")

    def verify() -> None:
        for other, receive in enumerate(receives):
            expected = inputs(other * 5 + rank.rank, receive.values.size, "sum", kind)
            _verify(rank, f"all_to_all from {other} {case}", receive, expected, kind, "sum")

    return verify


def pipeline(rank: Rank, case: Case) -> Pending:
    """Rank r sends to r + 1."""
    kind, count = case.kind, case.elements
    send, receive = Buffer(count, kind), Buffer(count, kind)
    send.values[:] = encode(inputs(rank.rank, count, "sum", kind), kind)
    end = (rank.communicator, rank.stream)
    rank.call("ncclGroupStart")
    if rank.rank + 1 < rank.ranks:
        rank.call("ncclSend", send.address(), count, kind.number, rank.rank + 1, *end)
    if rank.rank > 0:
        rank.call("ncclRecv", receive.address(), count, kind.number, rank.rank - 1, *end)
    rank.call("ncclGroupEnd")
    if rank.rank == 0:
        return lambda: None
    expected = inputs(rank.rank - 1, count, "sum", kind)
    return lambda: _verify(rank, f"pipeline {case}", receive, expected, kind, "sum")


KINDS: dict[str, Callable[[Rank, Case], Pending]] = {
    "all_reduce": all_reduce,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "pipeline": pipeline,
}
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


def cases_of(name: str, ranks: int, draw: random.Random) -> list[Case]:
    """Every type with every operation, once each, of random sizes up to a million bytes; then one of several MiB."""
    operations = tuple(OPERATIONS) if name in REDUCTIONS else ("sum",)
    cases = []
    for kind in TYPES:
        for operation in operations:
            size = draw.choice((0, 1, 3, draw.randrange(4096), draw.randrange(1 << 16), draw.randrange(1 << 20)))
            count = size // np.dtype(kind.numpy).itemsize // (ranks if name in ("reduce_scatter", "all_gather") else 1)
            cases.append(Case(kind, operation, count, draw.randrange(ranks), draw.random() < 0.5))
    cases.append(Case(TYPES[7], "sum", 1_000_003, draw.randrange(ranks), False))
    return cases


def run_each(rank: Rank, names: tuple[str, ...], draw: random.Random) -> None:
    """One operation after the other, some at a time in the stream."""
    for name in names:
        cases = cases_of(name, rank.ranks, draw)
        for start in range(0, len(cases), 8):
            pending = [KINDS[name](rank, case) for case in cases[start : start + 8]]
            rank.wait()
            for verify in pending:
                verify()
        print(f"RESULT {name}={len(cases)}", flush=True)


def run_groups(rank: Rank, names: tuple[str, ...], draw: random.Random) -> None:
    """Collectives of one kind in one group call, which NCCL makes one kernel of."""
    for name in names:
        cases = cases_of(name, rank.ranks, draw)
        rank.call("ncclGroupStart")
        pending = [KINDS[name](rank, case) for case in cases]
        rank.call("ncclGroupEnd")
        rank.wait()
        for verify in pending:
            verify()
        print(f"RESULT group_{name}={len(cases)}", flush=True)


def run_many(rank: Rank, names: tuple[str, ...], draw: random.Random) -> None:
    """More launches in the stream than NCCL's ring buffer of work holds."""
    pending = []
    for _ in range(600):
        name = draw.choice(names)
        case = Case(TYPES[7], "sum", draw.randrange(300), draw.randrange(rank.ranks), False)
        pending.append(KINDS[name](rank, case))
    rank.wait()
    for verify in pending:
        verify()
    print(f"RESULT many={len(pending)}", flush=True)


def run_split(rank: Rank, names: tuple[str, ...], draw: random.Random) -> None:
    """The same in a communicator of every second rank."""
    parent = (rank.communicator, rank.rank, rank.ranks)
    color, key = rank.rank % 2, rank.rank // 2
    part = ctypes.c_void_p()
    rank.check(rank.nccl.ncclCommSplit(rank.communicator, color, key, ctypes.byref(part), None))
    rank.communicator, rank.rank, rank.ranks = part, key, (parent[2] + 1 - color) // 2
    run_each(rank, names, draw)
    rank.check(rank.nccl.ncclCommDestroy(rank.communicator))
    rank.communicator, rank.rank, rank.ranks = parent


def run_death(rank: Rank, _names: tuple[str, ...], draw: random.Random) -> None:
    """The last rank ends without a word; the others' kernels wait for it until they abort.

    It waits until the others have the result of the first all-reduce: its own kernel ends while the data that it sends
    may still be in its proxy's hands.
    """
    case = Case(TYPES[7], "sum", 4_000_000, 0, False)
    all_reduce(rank, case._replace(elements=1000))
    rank.wait()
    (rank.folder / f"first_done{rank.rank}").touch()
    if rank.rank == rank.ranks - 1:
        wait_for(rank.folder / f"first_done{other}" for other in range(rank.ranks))
        os._exit(0)
    try:
        all_reduce(rank, case)
        wait_for_error(rank)
    except SystemExit as refusal:
        # A proxy may learn of the death before this call: it waits for the acknowledgement of what it has sent.
        if "remote process exited" not in str(refusal):
            raise
    run_abort(rank, (), draw)


def wait_for_error(rank: Rank) -> None:
    """Until NCCL reports an asynchronous error."""
    error = ctypes.c_int()
    end = time.monotonic() + _DEADLINE_S
    while not error.value:
        rank.check(rank.nccl.ncclCommGetAsyncError(rank.communicator, ctypes.byref(error)))
        if time.monotonic() > end:
            raise SystemExit(f"rank {rank.rank}: no error is reported")
        time.sleep(0.01)


def run_abandon(rank: Rank, _names: tuple[str, ...], draw: random.Random) -> None:
    """Rank 0 aborts while its kernel waits for the others, which never start theirs."""
    if rank.rank == 0:
        all_reduce(rank, Case(TYPES[7], "sum", 4_000_000, 0, False))
        time.sleep(0.3)
        if rank.cuda.cudaStreamQuery(rank.stream) != _NOT_READY:
            raise SystemExit("the all-reduce did not wait for the other ranks")
    run_abort(rank, (), draw)


def run_abort(rank: Rank, _names: tuple[str, ...], _draw: random.Random) -> None:
    rank.check(rank.nccl.ncclCommAbort(rank.communicator))
    if status := rank.cuda.cudaStreamSynchronize(rank.stream):
        raise SystemExit(f"rank {rank.rank}: the stream failed with CUDA error {status}")
    print("RESULT aborted=1", flush=True)
    os._exit(0)


def main() -> None:
    library, number, ranks, id_file, suite, seed = sys.argv[1:]
    rank = Rank(Path(library), int(number), int(ranks), Path(id_file))
    draw = random.Random(int(seed))
    everything = tuple(KINDS)
    collectives = tuple(name for name in KINDS if name not in ("all_to_all", "pipeline"))
    if suite == "tree":
        run_each(rank, ("all_reduce",), draw)
    elif suite == "all":
        run_each(rank, everything, draw)
        run_groups(rank, ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"), draw)
        run_many(rank, collectives, draw)
    elif suite in ("death", "abandon"):
        (run_death if suite == "death" else run_abandon)(rank, (), draw)
    elif suite == "split":
        run_split(rank, ("all_reduce", "all_gather"), draw)
    else:
        run_each(rank, tuple(suite.split(",")), draw)
    rank.check(rank.nccl.ncclCommDestroy(rank.communicator))
    print("RESULT destroyed=1", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
