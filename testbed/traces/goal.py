# SPDX-License-Identifier: Apache-2.0
"""Schedules in GOAL, the language of LogGOPSim and ATLAHS, as text.

The grammar is that of `src/LogGOPSim/txt2bin.re` of github.com/spcl/LogGOPSim. After `num_ranks N` each rank has a
block `rank R { .. }` of lines:

- `[LABEL:] calc NANOSECONDS [cpu C]`; computing on processors other than 0 overlaps with all else
- `[LABEL:] send BYTESb to RANK [tag T] [cpu C] [nic N]`, `[LABEL:] recv BYTESb from RANK ..`
- `LABEL requires LABEL`: the first begins when the other has ended; `irequires`: when it has begun

The k-th send with a tag from one rank to another belongs to the k-th receive there. A send waits for no receiver.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from testbed.traces.files import LONGEST_S, MOST_TASKS, text_of, whole
from testbed.training.tasks import TaskGraph

_NANOSECOND = 1e-9
_COMMENT = re.compile(r"/\*|//")
_LABEL = r"[a-zA-Z][a-zA-Z0-9_]*"
_OPERATION = re.compile(
    rf"(?:(?P<label>{_LABEL})\s*:\s*)?"
    r"(?:calc\s+(?P<time>\d+)|(?P<what>send|recv)\s+(?P<size>\d+)\s*b\s+(?P<way>to|from)\s+(?P<peer>-?\d+)"
    r"(?:\s+tag\s+(?P<tag>-?\d+))?)(?:\s+cpu\s+(?P<cpu>\d+))?(?:\s+nic\s+\d+)?"
)
_WAIT = re.compile(rf"(?P<later>{_LABEL})\s+(?P<how>requires|irequires)\s+(?P<earlier>{_LABEL})")
_WAYS = {"send": "to", "recv": "from"}
_LARGEST = 10**18


@dataclass(slots=True)
class _Operation:
    rank: int
    where: str
    kind: str
    """calc, send or recv."""
    amount: int
    """Nanoseconds of a calc, else bytes."""
    peer: int = 0
    tag: int = 0
    cpu: int = 0
    after: list["_Operation"] = field(default_factory=list)
    after_begin: list["_Operation"] = field(default_factory=list)
    begin: int = -1
    """Its first task; -1: not added yet."""
    end: int = -1


def read_goal(path: Path) -> TaskGraph:
    """A schedule as a task graph, a device for each rank.

    Raises ValueError, one sentence with file and line, for a bad file and for what a task graph cannot say.
    """
    ranks, operations = _read(path)
    graph = TaskGraph(ranks)
    begun = {id(earlier) for operation in operations for earlier in operation.after_begin}
    for operation, sent in _pairs(operations):
        _add(graph, operation, sent, id(operation) in begun)
    for operation in operations:
        for earlier in operation.after:
            graph.wait(earlier.end, operation.begin)
        for earlier in operation.after_begin:
            graph.wait(earlier.begin, operation.begin)
    return graph


def _add(graph: TaskGraph, operation: _Operation, sent: _Operation | None, begun: bool) -> None:
    """Add the tasks of an operation; `sent` is the send of a receive. If others wait for its begin, it has a task."""
    gate = [graph.join(())] if begun else []
    rank, seconds = operation.rank, operation.amount * _NANOSECOND
    if operation.kind == "send":
        operation.end = graph.send(rank, operation.peer, operation.amount, gate)
    elif sent is not None:
        operation.end = graph.join([sent.end, *gate])
    elif operation.cpu:
        operation.end = graph.join(gate, delay_s=seconds)
    else:
        operation.end = graph.compute(rank, seconds, gate)
    operation.begin = gate[0] if gate else operation.end


def _pairs(operations: list[_Operation]) -> list[tuple[_Operation, _Operation | None]]:
    """The operations, sends before all receives, and the send of each receive."""
    sends: defaultdict[tuple[int, int, int], list[_Operation]] = defaultdict(list)
    taken: defaultdict[tuple[int, int, int], int] = defaultdict(int)
    for operation in operations:
        if operation.kind == "send":
            sends[operation.rank, operation.peer, operation.tag].append(operation)
    found: list[tuple[_Operation, _Operation | None]] = [(each, None) for each in operations if each.kind != "recv"]
    for operation in operations:
        if operation.kind == "recv":
            key = operation.peer, operation.rank, operation.tag
            if len(sends[key]) == taken[key]:
                raise ValueError(f"{operation.where}: rank {key[0]} has no send for this receive with tag {key[2]}")
            sent = sends[key][taken[key]]
            taken[key] += 1
            if sent.amount != operation.amount:
                raise ValueError(f"{operation.where}: receives another size than is sent, which is {sent.amount}")
            found.append((operation, sent))
    for key, own in sends.items():
        if len(own) > taken[key]:
            raise ValueError(f"{own[taken[key]].where}: rank {key[1]} has no receive for this send with tag {key[2]}")
    return found


def _read(path: Path) -> tuple[int, list[_Operation]]:
    """The number of ranks and all operations."""
    text = _without_comments(text_of(path), path)
    ranks, rank = 0, -1
    known: set[int] = set()
    labels: dict[str, _Operation] = {}
    operations: list[_Operation] = []
    waits, where = 0, f"{path}:1"
    for number, line in enumerate(text.split("\n"), start=1):
        words, where = line.split(), f"{path}:{number}"
        if not words:
            continue
        if len(operations) + waits >= MOST_TASKS:
            raise ValueError(f"{where}: this line is one more than the {MOST_TASKS} that are read")
        if words[0] == "num_ranks" and len(words) == 2 and not ranks:
            ranks = whole(words[1], "num_ranks", where, 1, MOST_TASKS)
        elif words[0] == "rank" and line.rstrip().endswith("{") and rank < 0:
            rank = whole(line.strip()[4:-1].strip(), "a rank", where, 0, max(ranks - 1, 0))
            if rank in known or not ranks:
                raise ValueError(f"{where}: rank {rank} has a block already, or num_ranks does not come before it")
            known.add(rank)
            labels = {}
        elif line.strip() == "}" and rank >= 0:
            rank = -1
        elif rank >= 0 and (wait := _WAIT.fullmatch(line.strip())):
            waits += 1
            for label in (wait["later"], wait["earlier"]):
                if label not in labels:
                    raise ValueError(f"{where}: {label[:40]} is no label of a line before this one in rank {rank}")
            later, earlier = labels[wait["later"]], labels[wait["earlier"]]
            (later.after if wait["how"] == "requires" else later.after_begin).append(earlier)
        elif rank >= 0 and (found := _OPERATION.fullmatch(line.strip())):
            operation = _operation(found, rank, ranks, where)
            operations.append(operation)
            if found["label"] and labels.setdefault(found["label"], operation) is not operation:
                raise ValueError(f"{where}: {found['label'][:40]} is the label of another line of rank {rank} too")
        else:
            raise ValueError(f"{where}: {line.strip()[:40]!r} is no line of a schedule in GOAL here")
    if rank >= 0 or not operations:
        raise ValueError(f"{where}: the schedule ends within a rank, or has no operation")
    return ranks, operations


def _without_comments(text: str, path: Path) -> str:
    """The text with as many lines, and without comments."""
    kept, place = list[str](), 0
    while (comment := _COMMENT.search(text, place)) is not None:
        kept.append(text[place : comment.start()])
        if comment[0] == "//":
            place = text.find("\n", comment.end())
        elif (place := text.find("*/", comment.end())) < 0:
            line = text.count("\n", 0, comment.start()) + 1
            raise ValueError(f"{path}:{line}: this comment has no end")
        else:
            place += 2
            kept.append("\n" * text.count("\n", comment.start(), place))
        if place < 0:
            return "".join(kept)
    return "".join([*kept, text[place:]])


def _operation(found: re.Match[str], rank: int, ranks: int, where: str) -> _Operation:
    cpu = whole(found["cpu"] or "0", "cpu", where, 0, 255)
    if found["what"] is None:
        time = whole(found["time"], "the time of calc", where, 0, int(LONGEST_S / _NANOSECOND))
        return _Operation(rank, where, "calc", time, cpu=cpu)
    if found["way"] != _WAYS[found["what"]]:
        raise ValueError(f"{where}: {found['what']} needs {_WAYS[found['what']]}, not {found['way']}")
    if "-1" in (found["peer"], found["tag"]):
        raise ValueError(
            f"{where}: receives from any rank or with any tag (-1) are not read, as their send is not known"
        )
    size = whole(found["size"], "bytes", where, 0, _LARGEST)
    peer = whole(found["peer"], "a rank", where, 0, ranks - 1)
    if peer == rank:
        raise ValueError(f"{where}: rank {rank} sends to itself")
    return _Operation(rank, where, found["what"], size, peer, whole(found["tag"] or "0", "tag", where, 0, 2**32), cpu)
