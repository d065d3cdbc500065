# SPDX-License-Identifier: Apache-2.0
"""Traces of others as a workload: computing, transfers and collectives that wait for one another.

A collective is a message from each member to the next one of its ring, of all bytes that it sends; an all-to-all is a
message to each other member. Sizes are rounded up to whole elements. A device computes one task at a time, in the order
of an ideal switch whose NICs have 100 Gbit/s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from testbed.misfit import Misfit
from testbed.traces.formats import Format, pack, unpack
from testbed.training.ideal import run
from testbed.training.tasks import Task, TaskGraph
from testbed.workloads.base import Buffers, Elements, Order, Talk, Transfer, VerifiedWorkload

_RATE_BPS = 100e9
_ITEM_BYTES = 8
_MOST_REAL_BYTES = 1 << 30
"""Bytes that all ranks together may send where they hold them in memory."""


class Trace(VerifiedWorkload):
    """`kind: trace`. `file` is in `format`, or a folder of such files; a relative name starts at the spec's folder.

    `iterations` and `first` are for `floodns`. `load` puts the contents of the file in `packed`, and the size of the
    largest message in `bytes`.
    """

    kind: Literal["trace"] = "trace"
    format: Format
    file: str
    iterations: int = Field(default=1, ge=1, le=1000)
    first: int | None = Field(default=None, ge=0)
    packed: str | None = None
    bytes: int = Field(default=_ITEM_BYTES, gt=0)
    dtype: Literal["int64"] = "int64"
    slices: int = Field(default=1, ge=1, le=1)

    @model_validator(mode="after")
    def _options_of_its_format(self) -> "Trace":
        for key, default in (("iterations", 1), ("first", None)):
            if self.format != "floodns" and getattr(self, key) != default:
                raise Misfit("is for format floodns only; leave it out", key)
        if self.packed is None and "bytes" in self.model_fields_set:
            raise Misfit("the trace has the sizes; leave it out", "bytes")
        if self.packed is not None:
            try:
                _ = self.graph
            except ValueError as error:
                raise Misfit(str(error), "packed") from None
        return self

    def holding(self, graph: TaskGraph) -> "Trace":
        """This workload with the contents of its file."""
        largest = max((_elements(size) for task in graph.tasks for _, _, size in _messages(task)), default=1)
        return self.model_copy(update={"packed": pack(graph), "bytes": _ITEM_BYTES * largest})

    @cached_property
    def graph(self) -> TaskGraph:
        """The trace as a task graph. Raises ValueError if `packed` is none."""
        return unpack(self.packed or "")

    def check_ranks(self, ranks: int) -> None:
        """Raises Misfit for fewer ranks than the trace has devices. Further ranks do nothing."""
        if self.packed is None:
            raise Misfit("its file is not read; testbed.spec.load reads it", "file")
        if ranks < self.graph.devices:
            raise Misfit(f"the trace has {self.graph.devices} devices, and the job has {ranks} ranks", "file")
        if not self._lowered.transfers:
            raise Misfit("the trace sends nothing", "file")

    def check_real(self) -> None:
        """Raises Misfit for what ranks that are processes do not do: compute, hold large data, wait for others."""
        if self._lowered.order.pauses_s.any():
            raise Misfit("the trace computes or starts at given times; run it on fabric fluid or packet", "file")
        sent = sum(transfer.count for transfer in self._lowered.transfers) * self.item_bytes
        if sent > _MOST_REAL_BYTES:
            raise Misfit(f"the trace sends {sent} bytes, more than {_MOST_REAL_BYTES}; use fluid or packet", "file")
        for number, earlier in self._awaited.items():
            members = self.graph.tasks[number].devices
            if not all(set(members) & set(self.graph.tasks[one].devices) for one in earlier):
                said = f"ranks {', '.join(map(str, members[:4]))} wait for a transfer between other ranks"
                raise Misfit(f"{said}; use fabric fluid or packet", "file")

    @cached_property
    def _messages(self) -> dict[int, list[int]]:
        """The places of the messages of each task that has any."""
        found: dict[int, list[int]] = {}
        for place, number in enumerate(self._lowered.tasks):
            found.setdefault(number, []).append(place)
        return found

    @cached_property
    def _awaited(self) -> dict[int, frozenset[int]]:
        """By task with messages: the tasks with messages that it waits for, directly or through others."""
        found: dict[int, frozenset[int]] = {}
        for number in self.graph.order():
            through = (frozenset([one]) if one in self._messages else found[one] for one in self.graph.after[number])
            found[number] = frozenset[int]().union(*through)
        return {number: found[number] for number in self._messages}

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """All messages; a step is the number of messages on the longest chain before one. `seed` is not used."""
        return self._lowered.transfers

    def order(self, ranks: int) -> Order:
        """As the trace says."""
        return self._lowered.order

    def talks(self, ranks: int) -> tuple[Talk, ...]:
        """The phases of the trace's jobs."""
        return self._lowered.talks

    def order_at(self, rank: int, ranks: int) -> tuple[tuple[int, int], ...]:
        """The waits of the trace between messages that the rank sends or receives.

        A member of a collective does not wait for what only other members wait for.
        """
        transfers = self._lowered.transfers
        return tuple(
            (one, place)
            for number, earlier in self._awaited.items()
            for place in self._messages[number]
            if transfers[place].src == rank
            for awaited in sorted(earlier)
            for one in self._messages[awaited]
            if rank in (transfers[one].src, transfers[one].dst)
        )

    def longest_chain_s(self, rate_bps: float) -> float:
        """The longest chain of computing and messages."""
        return self.graph.longest_chain_s(rate_bps)

    def buffers(self, rank: int, ranks: int, seed: int) -> Buffers:
        """The rank's data, the first elements of which every message carries, and room for all that arrives."""
        received = sum(transfer.count for transfer in self._lowered.transfers if transfer.dst == rank)
        return Buffers(self.data(rank, seed), np.zeros(received, dtype=np.int64))

    def expected(self, rank: int, ranks: int, seed: int) -> Elements:
        """The data of all senders, message after message."""
        arriving = [transfer for transfer in self._lowered.transfers if transfer.dst == rank]
        data = {src: self.data(src, seed) for src in {transfer.src for transfer in arriving}}
        pieces = [data[transfer.src][: transfer.count] for transfer in arriving]
        return np.concatenate([np.empty(0, dtype=np.int64), *pieces])

    @cached_property
    def _lowered(self) -> "_Lowered":
        return _lower(self.graph)


@dataclass(frozen=True, eq=False)
class _Lowered:
    transfers: tuple[Transfer, ...]
    order: Order
    tasks: tuple[int, ...]
    """By transfer: its task."""
    talks: tuple[Talk, ...]


def _elements(size: float) -> int:
    return int(-(-size // _ITEM_BYTES))


def _messages(task: Task) -> Iterator[tuple[int, int, float]]:
    """(source, destination, bytes) of the messages of a task."""
    if task.kind is None or not task.bytes:
        return
    members = task.devices
    if task.kind == "send":
        yield members[0], members[1], task.bytes
    elif task.kind == "all_to_all":
        for src in members:
            for dst in members:
                if src != dst:
                    yield src, dst, task.bytes / (len(members) - 1)
    else:
        for src, dst in zip(members, members[1:] + members[:1], strict=True):
            yield src, dst, task.bytes


def _engine_waits(graph: TaskGraph) -> list[list[int]]:
    """By task: what it waits for, with the task that its device computes before it."""
    waits = [list(after) for after in graph.after]
    starts = run(graph, _RATE_BPS).starts_s
    place = {number: at for at, number in enumerate(graph.order())}
    last: dict[int, int] = {}
    for number in sorted(range(len(graph.tasks)), key=lambda one: (starts[one], place[one])):
        task = graph.tasks[number]
        if task.kind is None and task.devices:
            if task.devices[0] in last:
                waits[number].append(last[task.devices[0]])
            last[task.devices[0]] = number
    return waits


def _lower(graph: TaskGraph) -> _Lowered:
    """Transfers in the order of steps. A task is a gate, if it pauses or has several messages, then its messages."""
    waits = _engine_waits(graph)
    found: list[tuple[int, int, int, int, float]] = []  # step, task, source, destination, bytes
    pauses: list[float] = []
    edges: list[tuple[tuple[bool, int], tuple[bool, int]]] = []  # (whether a pause, its number) on each side
    ends: dict[int, list[tuple[bool, int]]] = {}
    depth: dict[int, int] = {}  # by task: messages on the longest chain up to its end
    for number in TaskGraph(graph.devices, graph.tasks, waits).order():
        task, earlier = graph.tasks[number], list(dict.fromkeys(waits[number]))
        begin = [end for one in earlier for end in ends[one]]
        level = max((depth[one] for one in earlier), default=0)
        messages = list(_messages(task))
        if task.delay_s or (len(begin) > 1 and len(messages) != 1):
            gate = (True, len(pauses))
            pauses.append(task.delay_s)
            edges += [(end, gate) for end in begin]
            begin = [gate]
        ends[number], depth[number] = begin, level
        if messages:
            sent = [(False, len(found) + at) for at in range(len(messages))]
            found += [(level, number, src, dst, size) for src, dst, size in messages]
            edges += [(end, message) for end in begin for message in sent]
            ends[number], depth[number] = sent, level + 1
            if len(sent) > 1:
                ends[number] = [(True, len(pauses))]
                edges += [(message, ends[number][0]) for message in sent]
                pauses.append(0.0)
    in_order = sorted(range(len(found)), key=lambda one: found[one][0])
    place = np.empty(len(found), dtype=np.int64)
    place[in_order] = np.arange(len(found))
    transfers, targets = [], [0] * graph.devices
    for one in in_order:
        step, _, src, dst, size = found[one]
        count = _elements(size)
        transfers.append(Transfer(step, 0, src, dst, 0, targets[dst], count))
        targets[dst] += count

    def place_of(message: tuple[bool, int]) -> int:
        pause, at = message
        return len(found) + at if pause else int(place[at])

    numbered = [[place_of(one) for one in edge] for edge in edges]
    of_task: dict[int, list[int]] = {}
    for at, (_, task_number, *_) in enumerate(found):
        of_task.setdefault(task_number, []).append(int(place[at]))
    talks = []
    for _, first, last in graph.phases:
        inner = sorted(at for task_number in range(first, last) for at in of_task.get(task_number, ()))
        if inner:  # a task that does not send ends with one message at most
            talks.append(Talk(next(map(place_of, ends[first]), None), place_of(ends[last][0]), tuple(inner)))
    return _Lowered(
        transfers=tuple(transfers),
        order=Order(np.array(numbered, dtype=np.int64).reshape(-1, 2), np.array(pauses)),
        tasks=tuple(found[one][1] for one in in_order),
        talks=tuple(talks),
    )
