# SPDX-License-Identifier: Apache-2.0
"""Task graphs as workloads: computing, transfers and collectives that wait for one another.

A collective is a message from each member to the next one of its ring, of all bytes that it sends; an all-to-all is a
message to each other member. Sizes are rounded up to whole elements. A device computes one task at a time, in the order
of an ideal switch whose NICs have `nic_bps`; a blocking transfer counts as computing of its receiver.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from testbed.conflict import Conflict
from testbed.training.ideal import run
from testbed.training.tasks import TaskGraph
from testbed.workloads.base import Buffers, Elements, Order, Talk, Transfer, VerifiedWorkload

ITEM_BYTES = 8
"""Bytes of an element."""
_MOST_REAL_BYTES = 1 << 30
"""Bytes that all ranks together may send where they hold them in memory."""


class TaskGraphWorkload(VerifiedWorkload):
    """A workload that a task graph describes. Device d of the graph is rank d."""

    SUBJECT: ClassVar[str]
    """What has the graph, in messages, and `KEY` the key of the spec that says it."""
    KEY: ClassVar[str]

    dtype: Literal["int64"] = "int64"
    slices: int = Field(default=1, ge=1, le=1)

    @property
    def nic_bps(self) -> float:
        """The rate of the NICs for which the order of computing is chosen, in bits per second."""
        return 100e9

    @property
    @abstractmethod
    def graph(self) -> TaskGraph:
        """The tasks."""

    @property
    def in_place(self) -> bool:
        """False: every message has a place of its own where it arrives."""
        return False

    def check_real(self) -> None:
        """Raises Conflict for what ranks that are processes do not do: hold large data, wait for what others do."""
        sent = sum(transfer.count for transfer in self._lowered.transfers) * self.item_bytes
        if sent > _MOST_REAL_BYTES:
            said = f"{self.SUBJECT} sends {sent} bytes, more than {_MOST_REAL_BYTES}; use fluid or packet"
            raise Conflict(said, self.KEY)
        for number, earlier in self._awaited.items():
            members = self.graph.tasks[number].devices
            if not all(set(members) & set(self.graph.tasks[previous].devices) for previous in earlier):
                said = f"ranks {', '.join(map(str, members[:4]))} wait for what only other ranks do"
                raise Conflict(f"{said}; use fabric fluid or packet", self.KEY)

    @property
    def _awaited(self) -> dict[int, frozenset[int]]:
        """By task of any device: the tasks of devices that it waits for, directly or through others."""
        found: dict[int, frozenset[int]] = {}
        tasks = self.graph.tasks
        for number in self.graph.order():
            through = (
                frozenset([previous]) if tasks[previous].devices else found[previous]
                for previous in self.graph.after[number]
            )
            found[number] = frozenset[int]().union(*through)
        return {number: earlier for number, earlier in found.items() if tasks[number].devices}

    def schedule(self, ranks: int, seed: int) -> tuple[Transfer, ...]:
        """All messages; a step is the number of messages on the longest chain before one. `seed` is not used."""
        return self._lowered.transfers

    def order(self, ranks: int) -> Order:
        """The waits of the graph's tasks. A pause is a computation, a delay, or joins messages in no time."""
        return self._lowered.order

    def talks(self, ranks: int) -> tuple[Talk, ...]:
        """The phases of the graph's jobs."""
        return self._lowered.talks

    def order_at(self, rank: int, ranks: int) -> Order:
        """The rows of `order` between what the rank computes, sends or receives; pauses are its own only.

        A member of a collective does not wait for what only other members wait for, nor does one of several devices
        that compute at once.
        """
        transfers, order = self._lowered.transfers, self._lowered.order
        number = {place: place for place, transfer in enumerate(transfers) if rank in (transfer.src, transfer.dst)}
        own = [pause for pause, devices in enumerate(self._lowered.paused) if not devices or rank in devices]
        number |= {len(transfers) + pause: len(transfers) + place for place, pause in enumerate(own)}
        rows = [
            (number[earlier], number[later])
            for earlier, later in order.waits.tolist()
            if earlier in number and later in number and (later >= len(transfers) or transfers[later].src == rank)
        ]
        return Order(np.array(rows, dtype=np.int64).reshape(-1, 2), order.pauses_s[own])

    def longest_chain_s(self, rate_bps: float, burst_bytes: int = 0) -> float:
        """Seconds of the graph's longest chain of computing and messages, with NICs of that rate and burst."""
        return self.graph.longest_chain_s(rate_bps, burst_bytes)

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
        return _lower(self.graph, self.nic_bps)


@dataclass(frozen=True, eq=False)
class _Lowered:
    transfers: tuple[Transfer, ...]
    order: Order
    paused: tuple[tuple[int, ...], ...]
    """By pause: the devices of its task. None: the pause belongs to all ranks."""
    talks: tuple[Talk, ...]


def largest_bytes(graph: TaskGraph) -> int:
    """The size of the largest message, in whole elements; one element if there is none."""
    return ITEM_BYTES * max((_elements(size) for task in graph.tasks for _, _, size in task.messages()), default=1)


def _elements(size: float) -> int:
    return int(-(-size // ITEM_BYTES))


def _engine_waits(graph: TaskGraph, nic_bps: float) -> list[list[int]]:
    """By task: what it waits for, with the task that occupies its engine before it."""
    waits = [list(after) for after in graph.after]
    starts = run(graph, nic_bps).starts_s
    place = {number: at for at, number in enumerate(graph.order())}
    last: dict[int, int] = {}
    for number in sorted(range(len(graph.tasks)), key=lambda number: (starts[number], place[number])):
        task = graph.tasks[number]
        for engine in task.engines:
            if engine in last:
                waits[number].append(last[engine])
            last[engine] = number
    return waits


def _lower(graph: TaskGraph, nic_bps: float) -> _Lowered:
    """Transfers in the order of steps. A task is a gate, if it pauses or has several messages, then its messages."""
    waits = _engine_waits(graph, nic_bps)
    found: list[tuple[int, int, int, int, float]] = []  # step, task, source, destination, bytes
    pauses: list[float] = []
    paused: list[tuple[int, ...]] = []
    edges: list[tuple[tuple[bool, int], tuple[bool, int]]] = []  # (whether a pause, its number) on each side
    ends: dict[int, list[tuple[bool, int]]] = {}
    depth: dict[int, int] = {}  # by task: messages on the longest chain up to its end
    for number in TaskGraph(graph.devices, graph.tasks, waits).order():
        task, earlier = graph.tasks[number], list(dict.fromkeys(waits[number]))
        begin = [end for previous in earlier for end in ends[previous]]
        level = max((depth[previous] for previous in earlier), default=0)
        messages = list(task.messages())
        if task.delay_s or (len(begin) > 1 and len(messages) != 1):
            gate = (True, len(pauses))
            pauses.append(task.delay_s)
            paused.append(task.devices)
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
                paused.append(task.devices)
    in_order = sorted(range(len(found)), key=lambda index: found[index][0])
    place = np.empty(len(found), dtype=np.int64)
    place[in_order] = np.arange(len(found))
    transfers, targets = [], [0] * graph.devices
    for index in in_order:
        step, _, src, dst, size = found[index]
        count = _elements(size)
        transfers.append(Transfer(step, 0, src, dst, 0, targets[dst], count))
        targets[dst] += count

    def place_of(message: tuple[bool, int]) -> int:
        pause, at = message
        return len(found) + at if pause else int(place[at])

    numbered = [[place_of(message) for message in edge] for edge in edges]
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
        paused=tuple(paused),
        talks=tuple(talks),
    )
