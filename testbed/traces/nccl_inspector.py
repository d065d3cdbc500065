# SPDX-License-Identifier: Apache-2.0
"""Logs of NCCL Inspector as a job's demand: its collectives in order, without the computation between them.

The format is that of `ext-profiler/inspector/inspector.cc` of github.com/NVIDIA/nccl, version v4.0: each process writes
a file `HOST-pidPID.log` with a JSON object per line for a collective of a communicator. `coll_msg_size_bytes` is the
size of a member's input or output, whichever is smaller: an all-gather and a reduce-scatter move it once per member.

Collectives of a communicator follow one another by `coll_sn`. Inspector writes the last one of each interval, so some
may be missing; those that any rank has recorded are read. A process must have one GPU.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
"""Bytes of a collective's message."""

_Process = tuple[str, int]
"""Host name and process id."""


@dataclass(slots=True)
class _Communicator:
    ranks: int
    where: str
    processes: dict[int, _Process] = field(default_factory=dict)
    """By rank."""
    collectives: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By number: operation and bytes."""


def read_inspector(path: Path) -> TaskGraph:
    """The files of all processes, or the folder that has them as *.log, as a task graph with a device for each process.

    Devices are numbered as the ranks of the communicator that all processes belong to; without one, by host name and
    process id. Raises ValueError, one sentence with file and line, for a bad file.
    """
    known: dict[str, _Communicator] = {}
    tasks = 0
    for file in files_in(path, "*.log"):
        for number, line in enumerate(text_of(file).splitlines(), start=1):
            if line.strip():
                tasks += _record(line, f"{file}:{number}", known)
            if tasks > MOST_TASKS:
                said = f"the collectives up to this one are more than {MOST_TASKS} tasks; cut the recording short"
                raise ValueError(f"{file}:{number}: {said}")
    if not known:
        raise ValueError(f"{path}:1: has no collective")
    for name, communicator in known.items():
        if missing := communicator.ranks - len(communicator.processes):
            raise ValueError(
                f"{communicator.where}: {missing} of {communicator.ranks} ranks of communicator {name} are in no file"
            )
    return _graph(known)


def _record(line: str, where: str, known: dict[str, _Communicator]) -> int:
    """Take over a line. Returns the number of tasks that it adds."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: is not a JSON object; each line must be one that NCCL Inspector wrote") from None
    name = _text(entry, "header", "id", where)
    ranks = _number(entry, "header", "n_ranks", where, 1, MOST_TASKS)
    rank = _number(entry, "header", "rank", where, 0, ranks - 1)
    process = _text(entry, "metadata", "hostname", where), _number(entry, "metadata", "pid", where, 0, 2**32)
    what = _text(entry, "coll_perf", "coll", where)
    size = _number(entry, "coll_perf", "coll_msg_size_bytes", where, 0, _LARGEST)
    number = _number(entry, "coll_perf", "coll_sn", where, 0, 2**63)
    if what not in _OPERATIONS:
        known_ones = ", ".join(_OPERATIONS)
        raise ValueError(f"{where}: {what[:40]!r} is not read, as its peer is not recorded; read are {known_ones}")
    communicator = known.setdefault(name, _Communicator(ranks, where))
    if communicator.ranks != ranks:
        raise ValueError(
            f"{where}: communicator {name} has {ranks} ranks here and {communicator.ranks} in {communicator.where}"
        )
    if communicator.processes.setdefault(rank, process) != process:
        raise ValueError(f"{where}: rank {rank} of communicator {name} is in another process too")
    added = 0 if number in communicator.collectives else ranks + 2
    if communicator.collectives.setdefault(number, (what, size)) != (what, size):
        raise ValueError(f"{where}: collective {number} of communicator {name} differs from what another rank recorded")
    return added


def _value(entry: Any, section: str, key: str) -> Any:
    inner = entry.get(section) if isinstance(entry, dict) else None
    return inner.get(key) if isinstance(inner, dict) else None


def _text(entry: Any, section: str, key: str, where: str) -> str:
    value = _value(entry, section, key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {section}.{key} must be a text")
    return value[:200]


def _number(entry: Any, section: str, key: str, where: str, least: int, most: int) -> int:
    value = _value(entry, section, key)
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
    for communicator in known.values():
        members, last = [device[communicator.processes[rank]] for rank in range(communicator.ranks)], None
        for number, (what, size) in sorted(communicator.collectives.items()):
            operation = _OPERATIONS[what]
            whole = size * communicator.ranks if operation in ("all_gather", "reduce_scatter") else size
            begin, end = add_collective(graph, operation, whole, members, f"{what} {number}")
            if last is not None:
                graph.wait(last, begin)
            last = end
    return graph
