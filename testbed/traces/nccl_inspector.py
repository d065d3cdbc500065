# SPDX-License-Identifier: Apache-2.0
"""Logs of NCCL Inspector as a job's demand: its collectives and transfers in order, without computing between them.

The formats v4.0 to v4.4 are those of `plugins/profiler/inspector/inspector_json.cc` of github.com/NVIDIA/nccl. Each
process writes a file `HOST-pidPID.log` with a JSON object per line:

- `coll_perf`: a collective of a communicator. `coll_sn` counts those of its kind. `coll_msg_size_bytes` is the size of
  a member's input or output, whichever is smaller: an all-gather and a reduce-scatter move it once per member.
- `p2p_perf`: a `Send` to, or a `Recv` from, the rank `p2p_peer` of the communicator; from v4.1 on.
- `dump_stats`: how many records follow; from v4.1 on. From v4.3 on the header and the metadata are here, and no longer
  in the records.
- `proxy_trace`: how NCCL's proxy carried a part of one of these; skipped.

Collectives of a communicator follow one another; those of several kinds in the order in which the first rank that has
both recorded them. Transfers from one rank to another follow one another, and wait for nothing else: what was in one
group is not recorded. Inspector drops records where its memory is full, so some may be missing; those that any rank has
recorded are read. A process must have one GPU.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from testbed.traces.collectives import Operation, add_collective
from testbed.traces.files import MOST_TASKS, files_in, text_of
from testbed.training.tasks import TaskGraph

_OPERATIONS: dict[str, Operation] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}
_LARGEST = 1 << 50
"""Bytes of a message."""
_MARKER = "dump_stats"
_COUNTS = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}
"""By kind of record: the key of a marker that says how many follow."""

_Process = tuple[str, int]
"""Host name and process id."""


class _Name(NamedTuple):
    """A collective of a communicator."""

    what: str
    number: int


@dataclass(slots=True)
class _Transfers:
    """Bytes by number, as the sender and as the receiver has recorded them. The two count on their own."""

    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Communicator:
    ranks: int
    where: str
    processes: dict[int, _Process] = field(default_factory=dict)
    """By rank."""
    collectives: dict[_Name, int] = field(default_factory=dict)
    """Their bytes."""
    places: dict[int, dict[_Name, int]] = field(default_factory=dict)
    """By rank: the place of each collective in its file."""
    transfers: defaultdict[tuple[int, int], _Transfers] = field(default_factory=lambda: defaultdict(_Transfers))
    """By sender and receiver."""

    def in_order(self) -> Iterator[_Name]:
        """The collectives: those of a kind by number, else as the first rank that has both recorded them."""
        kinds: defaultdict[str, list[_Name]] = defaultdict(list)
        for name in sorted(self.collectives, reverse=True):
            kinds[name.what].append(name)
        while heads := [names[-1] for names in kinds.values() if names]:
            first = min(heads, key=lambda head: sum(self._precedes(other, head) for other in heads))
            yield kinds[first.what].pop()

    def _precedes(self, one: _Name, other: _Name) -> bool:
        if one is other:
            return False
        both = next((places for places in self.places.values() if one in places and other in places), None)
        return both is not None and both[one] < both[other]


def read_inspector(path: Path) -> TaskGraph:
    """The files of all processes, or the folder that has them as *.log, as a task graph with a device for each process.

    Devices are numbered as the ranks of the communicator that all processes belong to; without one, by host name and
    process id. Raises ValueError, one sentence with file and line, for a bad file.
    """
    known: dict[str, _Communicator] = {}
    tasks = 0
    for file in files_in(path, "*.log"):
        for where, kind, entry in _records(file):
            if kind != "proxy_trace":
                tasks += _record(kind, entry, where, known)
            if tasks > MOST_TASKS:
                said = f"the collectives up to this one are more than {MOST_TASKS} tasks; cut the recording short"
                raise ValueError(f"{where}: {said}")
    if not known:
        raise ValueError(f"{path}:1: has no collective and no transfer")
    for name, communicator in known.items():
        if missing := communicator.ranks - len(communicator.processes):
            raise ValueError(
                f"{communicator.where}: {missing} of {communicator.ranks} ranks of communicator {name} are in no file"
            )
    return _graph(known)


def _records(file: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, kind and entry of each record of a file, with the header and the metadata that hold for it."""
    marker: dict[str, Any] = {}
    place, left, own = "", dict.fromkeys(_COUNTS, 0), True
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        entry = _object(line, where)
        kind = next((kind for kind in (_MARKER, *_COUNTS) if kind in entry), None)
        if kind is None:
            raise ValueError(f"{where}: has none of {', '.join((_MARKER, *_COUNTS))}; it is no line of NCCL Inspector")
        if kind == _MARKER:
            _ended(left, own, place)
            marker, place, own = {key: entry.get(key) for key in ("header", "metadata")}, where, False
            counts = {_MARKER: {"proxy_records": 0} | _section(entry, _MARKER)}
            left = {each: _number(counts, _MARKER, key, where, 0, 2**63) for each, key in _COUNTS.items()}
            continue
        if "header" in entry:
            own = True
        else:
            if not left[kind]:
                raise ValueError(f"{where}: has no header, and no {_MARKER} before it counts this {kind}")
            left[kind] -= 1
            entry |= marker
        yield where, kind, entry
    _ended(left, own, place)


def _ended(left: dict[str, int], own: bool, where: str) -> None:
    """Raises ValueError if records that a marker counts are not there; `own`: they have headers of their own."""
    if not own and (kind := next((kind for kind, count in left.items() if count), None)):
        raise ValueError(f"{where}: {left[kind]} of the {kind} that this {_MARKER} counts are not in the file")


def _record(kind: str, entry: dict[str, Any], where: str, known: dict[str, _Communicator]) -> int:
    """Take over a record. Returns the number of tasks that it adds."""
    name = _text(entry, "header", "id", where)
    ranks = _number(entry, "header", "n_ranks", where, 1, MOST_TASKS)
    rank = _number(entry, "header", "rank", where, 0, ranks - 1)
    process = _text(entry, "metadata", "hostname", where), _number(entry, "metadata", "pid", where, 0, 2**32)
    communicator = known.setdefault(name, _Communicator(ranks, where))
    if communicator.ranks != ranks:
        raise ValueError(
            f"{where}: communicator {name} has {ranks} ranks here and {communicator.ranks} in {communicator.where}"
        )
    if communicator.processes.setdefault(rank, process) != process:
        raise ValueError(f"{where}: rank {rank} of communicator {name} is in another process too")
    if kind == "p2p_perf":
        return _take_transfer(communicator, rank, entry, where)
    what = _text(entry, "coll_perf", "coll", where)
    size = _number(entry, "coll_perf", "coll_msg_size_bytes", where, 0, _LARGEST)
    collective = _Name(what, _number(entry, "coll_perf", "coll_sn", where, 0, 2**63))
    if what not in _OPERATIONS:
        known_ones = ", ".join(_OPERATIONS)
        raise ValueError(f"{where}: {what[:40]!r} is not read, as its peer is not recorded; read are {known_ones}")
    added = 0 if collective in communicator.collectives else ranks + 2
    if communicator.collectives.setdefault(collective, size) != size:
        raise ValueError(
            f"{where}: {what} {collective.number} of communicator {name} differs from what another rank recorded"
        )
    places = communicator.places.setdefault(rank, {})
    places.setdefault(collective, len(places))
    return added


def _take_transfer(communicator: _Communicator, rank: int, entry: dict[str, Any], where: str) -> int:
    what = _text(entry, "p2p_perf", "p2p", where)
    peer = _number(entry, "p2p_perf", "p2p_peer", where, 0, communicator.ranks - 1)
    size = _number(entry, "p2p_perf", "p2p_msg_size_bytes", where, 0, _LARGEST)
    number = _number(entry, "p2p_perf", "p2p_sn", where, 0, 2**63)
    if what not in ("Send", "Recv"):
        raise ValueError(f"{where}: p2p_perf.p2p must be Send or Recv, not {what[:40]!r}")
    if peer == rank:  # a copy
        return 0
    sends = what == "Send"
    transfers = communicator.transfers[(rank, peer) if sends else (peer, rank)]
    sizes = transfers.sent if sends else transfers.received
    if number in sizes:
        raise ValueError(f"{where}: p2p_sn {number} of rank {rank} is that of another line too")
    sizes[number] = size
    return 1


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: is not a JSON object; each line must be one that NCCL Inspector wrote")
    return entry


def _section(entry: dict[str, Any], section: str) -> dict[str, Any]:
    inner = entry.get(section)
    return inner if isinstance(inner, dict) else {}


def _text(entry: dict[str, Any], section: str, key: str, where: str) -> str:
    value = _section(entry, section).get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {section}.{key} must be a text")
    return value[:200]


def _number(entry: dict[str, Any], section: str, key: str, where: str, least: int, most: int) -> int:
    value = _section(entry, section).get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{where}: {section}.{key} must be a whole number of {least} to {most}")
    return value


def _graph(known: dict[str, _Communicator]) -> TaskGraph:
    processes = sorted({process for communicator in known.values() for process in communicator.processes.values()})
    for name, communicator in known.items():
        twice = [process for process, count in Counter(communicator.processes.values()).items() if count > 1]
        if twice:
            host, pid = twice[0]
            said = f"process {pid} on {host} has several ranks of communicator {name}; run a process for each GPU"
            raise ValueError(f"{communicator.where}: {said}")
    world = next(
        (communicator for _, communicator in sorted(known.items()) if communicator.ranks == len(processes)), None
    )
    order = processes if world is None else [world.processes[rank] for rank in range(world.ranks)]
    device = {process: number for number, process in enumerate(order)}
    graph = TaskGraph(len(processes))
    for name, communicator in known.items():
        members, last = [device[communicator.processes[rank]] for rank in range(communicator.ranks)], None
        for what, number in communicator.in_order():
            operation, size = _OPERATIONS[what], communicator.collectives[_Name(what, number)]
            whole = size * communicator.ranks if operation in ("all_gather", "reduce_scatter") else size
            begin, end = add_collective(graph, operation, whole, members, f"{what} {number}")
            if last is not None:
                graph.wait(last, begin)
            last = end
        for (src, dst), transfers in communicator.transfers.items():
            numbers = [
                graph.send(members[src], members[dst], size, name="Send")
                for size in _sizes(transfers, f"{communicator.where}: ranks {src} and {dst} of communicator {name}")
            ]
            for earlier, later in pairwise(numbers):
                graph.wait(earlier, later)
    return graph


def _sizes(transfers: _Transfers, who: str) -> list[int]:
    """The bytes of the transfers from a rank to another: of the end that has recorded more of them."""
    sent, received = ([sizes[number] for number in sorted(sizes)] for sizes in (transfers.sent, transfers.received))
    if len(sent) == len(received):
        for number, (one, other) in enumerate(zip(sent, received, strict=True), start=1):
            if one != other:
                raise ValueError(f"{who}: transfer {number} has {one} bytes at the sender, {other} at the receiver")
    return max(sent, received, key=len)
