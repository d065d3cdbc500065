# SPDX-License-Identifier: Apache-2.0
"""What NCCL's collectives wait for: the snapshots of `libnccl-profiler-paralet.so`, joined over ranks. Pure.

nccl_net_plugin/native/profiler/snapshot.hpp describes the snapshot. NCCL tells a rank which of its transfers wait, and
for whom; the ranks of an operation joined say which rank, or which path, the others wait for.
"""

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from hostlib.stats import SnapshotError

MEMFD = "paralet-operations"
"""Name of the file in memory that has the snapshot."""

MOST_BYTES = 2**22
"""Bytes of a snapshot that is read: 512 operations with 8 waits each have less."""

LATE_AFTER_S = 0.5
"""A transfer that has not moved for this time makes its operation late."""

_HEADER = re.compile(rb"paralet-operations (\d{1,9}) (\d{1,10}) (\d{1,9})\n")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Waiting:
    """The oldest step under way of one channel and direction."""

    peer: int
    """A rank of the communicator."""
    channel: int
    send: bool
    step: int
    steps: int
    on: str
    """``gpu``: this rank's kernel; ``peer``: the peer has posted no receive; ``network``: data that are on the way."""
    since_s: float
    """When the wait began, in seconds of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class SlowestFlowlet:
    """The flowlet of an operation that took longest from its posting to its acknowledgement."""

    duration_s: float
    lane: int
    peer: str
    """The address to which the flowlet went."""
    port: int
    """The UDP source port of the lane that carried the flowlet."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective, send or receive of one rank. Times are of the monotonic clock; 0: not yet."""

    communicator: int
    """NCCL's hash, the same in all ranks."""
    name: str
    """What the application calls the communicator; may be empty."""
    ranks: int
    rank: int
    function: str
    """NCCL's name, such as ``AllReduce``, ``Send``."""
    type: str
    algorithm: str
    protocol: str
    sequence: int
    """Counts the collectives with this function in the communicator."""
    count: int
    """The number of elements of the operation."""
    number: int
    """Counts all operations of the process."""
    peer: int
    """Of a send or receive; -1 of a collective."""
    enqueued_s: float
    began_s: float
    """When the operation's first transfer over the network began."""
    ended_s: float
    """Last transfer so far; 0 while one is under way."""
    sent_bytes: int
    received_bytes: int
    flowlets: int
    flowlets_s: float
    """The sum of the durations of all of its flowlets, in seconds."""
    slowest: SlowestFlowlet | None
    waits: tuple[Waiting, ...]
    """Those that have waited longest first; none once the operation has ended."""


@dataclass(frozen=True, slots=True)
class RankOperations:
    """The latest operations of one process, at `clock_s` of its host's monotonic clock."""

    pid: int
    clock_s: float
    operations: tuple[Operation, ...]
    uid: int | None = None
    """The user of the process, as the kernel says; None where that is not known."""


class _Answer(msgspec.Struct):
    pid: int
    operations: tuple[Operation, ...]


def parse(data: bytes) -> tuple[int, tuple[Operation, ...]]:
    """The process, by its own id for itself, and its operations. Bytes may follow. Raises SnapshotError."""
    header = _HEADER.match(data)
    if header is None:
        raise SnapshotError("the snapshot of NCCL's operations has no header")
    version, crc, length = map(int, header.groups())
    if version != _VERSION:
        raise SnapshotError(f"the snapshot of NCCL's operations has version {version}, not {_VERSION}")
    body = data[header.end() : header.end() + length]
    if len(body) != length or zlib.crc32(body) != crc:
        raise SnapshotError("the checksum of NCCL's operations is wrong: they changed while they were read")
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"the snapshot of NCCL's operations is invalid: {error}") from error
    return answer.pid, answer.operations


@dataclass(frozen=True, slots=True)
class OperationState:
    """An operation as far as its ranks were seen. Times in seconds."""

    title: str
    """Such as ``AllReduce 12 of training (4 ranks)``."""
    seen: int
    """Ranks of which something is known."""
    running: bool
    seconds: float
    """From the first transfer to the last, or until now."""
    sent_bytes: int
    slowest: SlowestFlowlet | None
    flowlet_mean_s: float
    late: str
    """Whom the ranks wait for, if transfers have not moved for `LATE_AFTER_S`."""

    @property
    def sentence(self) -> str:
        """The state of the operation in one sentence: how far it is, and what it waits for."""
        time = f"{'running' if self.running else 'done'} {_duration(self.seconds)}"
        said = f"{self.title}: {time}, {self.sent_bytes / 1e6:,.1f} MB sent"
        if self.late:
            said += f"; {self.late}"
        if self.slowest is not None:
            said += (
                f"; slowest lane {self.slowest.lane} to {self.slowest.peer}, port {self.slowest.port}: "
                f"{_duration(self.slowest.duration_s)}, mean {_duration(self.flowlet_mean_s)}"
            )
        return said + "."


def states(processes: Iterable[RankOperations], late_after_s: float = LATE_AFTER_S) -> list[OperationState]:
    """The operations under way, and of each communicator without one the latest; the longest first.

    Ranks of different users never make one operation, whatever they say. `late_after_s`: a transfer that has not moved
    for this time is late.
    """
    by_user: dict[int | None, list[RankOperations]] = defaultdict(list)
    for process in processes:
        by_user[process.uid].append(process)
    found = [state for ranks in by_user.values() for state in _of_one_user(ranks, late_after_s)]
    return sorted(found, key=lambda state: (not state.running, -state.seconds))


def _of_one_user(processes: Iterable[RankOperations], late_after_s: float) -> list[OperationState]:
    groups: dict[tuple[object, ...], dict[int, tuple[float, Operation]]] = defaultdict(dict)
    known: dict[int, dict[int, RankOperations]] = defaultdict(dict)
    for process in processes:
        for operation in process.operations:
            alone = operation.peer >= 0
            key = (
                operation.communicator,
                operation.function,
                operation.sequence,
                *((operation.rank, operation.number) if alone else ()),
            )
            groups[key][operation.rank] = (process.clock_s, operation)
            known[operation.communicator][operation.rank] = process
    by_communicator: dict[int, list[Mapping[int, tuple[float, Operation]]]] = defaultdict(list)
    for group in groups.values():
        by_communicator[next(iter(group.values()))[1].communicator].append(group)
    found = []
    for communicator, all_of_it in by_communicator.items():
        under_way = [group for group in all_of_it if any(operation.ended_s == 0 for _, operation in group.values())]
        latest = min(all_of_it, key=lambda group: min(clock - operation.began_s for clock, operation in group.values()))
        found += [_state(group, known[communicator], late_after_s) for group in under_way or [latest]]
    return found


def _state(
    group: Mapping[int, tuple[float, Operation]], known: Mapping[int, RankOperations], late_after_s: float
) -> OperationState:
    _, first = next(iter(group.values()))
    what = f"{first.function} {first.sequence}"
    if first.peer >= 0:
        what = f"{first.function} of rank {first.rank} and rank {first.peer}"
    name = first.name or f"{first.communicator:#x}"
    flowlets = sum(operation.flowlets for _, operation in group.values())
    slowest = [operation.slowest for _, operation in group.values() if operation.slowest is not None]
    return OperationState(
        title=f"{what} of {name} ({first.ranks} ranks)",
        seen=len(group),
        running=any(operation.ended_s == 0 for _, operation in group.values()),
        seconds=max((operation.ended_s or clock) - operation.began_s for clock, operation in group.values()),
        sent_bytes=sum(operation.sent_bytes for _, operation in group.values()),
        slowest=max(slowest, key=lambda flowlet: flowlet.duration_s, default=None),
        flowlet_mean_s=sum(operation.flowlets_s for _, operation in group.values()) / max(1, flowlets),
        late=_late(group, known, late_after_s),
    )


def _late(
    group: Mapping[int, tuple[float, Operation]], known: Mapping[int, RankOperations], late_after_s: float
) -> str:
    """Where the chains of waits end, one sentence part; empty if all transfers move."""
    waits = {
        rank: (clock - operation.waits[0].since_s, operation.waits[0])
        for rank, (clock, operation) in group.items()
        if operation.ended_s == 0 and operation.waits and clock - operation.waits[0].since_s >= late_after_s
    }
    if not waits:
        return ""
    ends = [_end(rank, group, {rank: wait for rank, (_, wait) in waits.items()}, known) for rank in sorted(waits)]
    most = max(set(ends), key=lambda end: (ends.count(end), end))
    longest = max(age for age, _ in waits.values())
    return f"{len(waits)} {'rank has' if len(waits) == 1 else 'ranks have'} waited {_duration(longest)} for {most}"


def _end(
    rank: int, group: Mapping[int, object], waits: Mapping[int, Waiting], known: Mapping[int, RankOperations]
) -> str:
    """Whom this rank waits for in the end, as a part of a sentence."""
    passed: list[int] = []
    while rank not in passed:
        passed.append(rank)
        wait = waits[rank]
        if wait.on == "gpu":
            return f"the GPU of rank {rank}"
        if wait.on == "network" and wait.send:
            return f"the path from rank {rank} to rank {wait.peer}"
        if wait.peer not in waits:
            if wait.peer not in known:
                return f"rank {wait.peer}, which was not looked at"
            if wait.peer not in group:
                return f"rank {wait.peer}, which has not begun it"
            return f"rank {wait.peer}"
        rank = wait.peer
    return "one another: " + ", ".join(f"rank {rank}" for rank in sorted(passed))


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def sentences(found: Sequence[OperationState], most: int) -> list[str]:
    """The first `most` states as sentences, and how many there are beside them."""
    said = [state.sentence for state in found[:most]]
    return said + ([f"and {len(found) - most} more operations"] if len(found) > most else [])
