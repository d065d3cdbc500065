# SPDX-License-Identifier: Apache-2.0
"""The collective executor: carries out one rank's transfers of a schedule over real connections.

A transfer starts as soon as its dependencies are complete: a slice is forwarded once it has arrived and been added.
Receives are posted ahead. A ring therefore keeps its links busy across steps without a barrier.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from testbed.errors import TestbedError
from testbed.workloads import Buffers, Elements, Transfer

RECEIVES_AHEAD = 64
"""Receives posted at once: enough that a sender always finds one, and few enough to bound the engine's memory."""


class Request(Protocol):
    """What `hostlib.Connection.send` and `recv` return."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Bytes moved."""


class Connection(Protocol):
    """The part of `hostlib.Connection` that is used here."""

    def send(self, buffer: Elements, tag: int = 0) -> Request:
        """Start sending."""

    def recv(self, buffer: Elements, tag: int = 0) -> Request:
        """Post a receive."""


WaitAny = Callable[[Sequence[Request], float], int]
"""`hostlib.wait_any`: index of a finished request, or TimeoutError."""


class TransferTimeout(TestbedError):
    """The run exceeded its time limit. The text names a transfer that was not complete."""


@dataclass(frozen=True, slots=True)
class Connections:
    """A rank's connections by peer rank: `outgoing` to its targets, `incoming` from its sources."""

    outgoing: Mapping[int, Connection]
    incoming: Mapping[int, Connection]


@dataclass(slots=True)
class _Gate:
    """The start of a phase: when all tasks before it are complete, the rank computes for `pause_s`, then sends."""

    pause_s: float
    waits_for: int
    unlocks: list[_Task]


@dataclass(slots=True)
class _Task:
    """One end of a transfer, and the tasks that depend on it."""

    transfer: Transfer
    tag: int
    outgoing: bool
    waits_for: int = 0
    unlocks: list[_Task] = field(default_factory=list)
    opens: list[_Gate] = field(default_factory=list)
    scratch: Elements | None = None
    arrived: bool = False
    finished_s: float | None = None

    def __lt__(self, other: _Task) -> bool:
        return (self.transfer.step, self.transfer.part) < (other.transfer.step, other.transfer.part)


@dataclass(frozen=True, slots=True)
class Timings:
    """Completion times at one rank, in seconds of the monotonic clock."""

    finished_s: float
    step_finished_s: tuple[float, ...]
    """When the last transfer of each step, in or out, was complete. Steps without any have the previous time."""
    last_arrival_s: dict[int, float]
    """By source rank: when its last byte had arrived and, for reductions, had been added."""


class RankRun:
    """One rank's transfers with their dependencies and buffers.

    Create it and call `post` before the clock starts; `run` then carries out the transfers.
    """

    def __init__(
        self,
        rank: int,
        transfers: Sequence[Transfer],
        buffers: Buffers,
        *,
        sends_in_flight: int | None = None,
        receives_ahead: int = RECEIVES_AHEAD,
        phase_starts: Sequence[int] = (),
        pauses: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """`phase_starts` and `pauses` are those of `testbed.workloads.Workload`."""
        self._rank = rank
        self._buffers = buffers
        self._tasks = _tasks(rank, transfers)
        if buffers.input is buffers.output:
            _order_in_place(self._tasks)
        starts = sorted({*phase_starts, *pauses})
        self._gates = deque(_gate(self._tasks, first, pauses.get(first, 0.0)) for first in starts)
        self._opens_s: float | None = None
        """When the computation before the first gate ends, once it has begun."""
        for task in self._tasks:
            if task.transfer.combine and not task.outgoing:
                task.scratch = np.empty(task.transfer.count, dtype=buffers.output.dtype)
        self._receives = deque(task for task in self._tasks if not task.outgoing)
        self._ready = [task for task in self._tasks if task.outgoing and not task.waits_for]  # a heap, being sorted
        self._waiting: list[tuple[Request, _Task]] = []
        self._spare_receives = receives_ahead
        self._spare_sends = len(self._tasks) if sends_in_flight is None else sends_in_flight

    def post(self, connections: Connections) -> None:
        """Post receives, up to the limit of receives in flight."""
        while self._receives and self._spare_receives and self._may_post(self._receives[0]):
            task = self._receives.popleft()
            self._spare_receives -= 1
            request = connections.incoming[task.transfer.src].recv(self._receive_buffer(task), task.tag)
            self._waiting.append((request, task))

    def run(
        self, connections: Connections, wait_any: WaitAny, timeout_s: float, start_s: float | None = None
    ) -> Timings:
        """Carry out all transfers. The clock starts at `start_s` of the monotonic clock (default: now).

        Raises TransferTimeout `timeout_s` seconds after the start, TestbedError for a message of wrong size, and the
        transport's errors.
        """
        begin = time.monotonic() if start_s is None else start_s
        deadline = begin + timeout_s
        self._compute(begin)
        while True:
            while self._ready and self._spare_sends:
                task = heapq.heappop(self._ready)
                self._spare_sends -= 1
                request = connections.outgoing[task.transfer.dst].send(self._send_buffer(task), task.tag)
                self._waiting.append((request, task))
            self.post(connections)
            if not self._waiting and self._opens_s is None:
                return self._timings(begin)
            until = deadline if self._opens_s is None else min(deadline, self._opens_s)
            left_s = max(0.0, until - time.monotonic())
            try:
                index = self._wait(wait_any, left_s)
            except TimeoutError as error:
                if until == deadline:
                    raise TransferTimeout(self._overdue(timeout_s)) from error
            else:
                self._complete(*self._waiting.pop(index))
            self._compute(time.monotonic())

    def _wait(self, wait_any: WaitAny, left_s: float) -> int:
        """Index of a finished request. Raises TimeoutError when none finishes within `left_s` seconds."""
        if not self._waiting:
            time.sleep(left_s)
            raise TimeoutError
        return wait_any([request for request, _ in self._waiting], left_s)

    def _compute(self, now_s: float) -> None:
        """Start the computation of the next phase when its gate is reached, and the phase when that time has passed."""
        while self._gates and not self._gates[0].waits_for:
            if self._opens_s is None:
                self._opens_s = now_s + self._gates[0].pause_s
            if self._opens_s > now_s:
                return
            self._opens_s = None
            self._release(self._gates.popleft().unlocks)

    def _complete(self, request: Request, task: _Task) -> None:
        moved = request.wait(0.0)
        if moved != task.transfer.count * self._buffers.output.itemsize:
            raise TestbedError(f"rank {self._rank} got {moved} bytes where {_describe(task)} was due")
        if task.outgoing:
            self._spare_sends += 1
            self._finish(task)
            return
        self._spare_receives += 1
        task.arrived = True
        if not task.waits_for:
            self._take_in(task)

    def _may_post(self, task: _Task) -> bool:
        """Whether the receive can be posted: into scratch always, into the output once its data are unused."""
        return task.scratch is not None or not task.waits_for

    def _receive_buffer(self, task: _Task) -> Elements:
        if task.scratch is not None:
            return task.scratch
        return self._buffers.output[task.transfer.target : task.transfer.target + task.transfer.count]

    def _send_buffer(self, task: _Task) -> Elements:
        return self._buffers.input[task.transfer.source : task.transfer.source + task.transfer.count]

    def _take_in(self, task: _Task) -> None:
        if task.scratch is not None:
            place = self._buffers.output[task.transfer.target : task.transfer.target + task.transfer.count]
            np.add(place, task.scratch, out=place)
            task.scratch = None
        self._finish(task)

    def _finish(self, task: _Task) -> None:
        task.finished_s = time.monotonic()
        self._release(task.unlocks)
        for gate in task.opens:
            gate.waits_for -= 1

    def _release(self, held: Sequence[_Task]) -> None:
        """Mark one dependency of each of these tasks as complete."""
        for other in held:
            other.waits_for -= 1
            if other.waits_for:
                continue
            if other.outgoing:
                heapq.heappush(self._ready, other)
            elif other.arrived and other.finished_s is None:
                self._take_in(other)

    def _overdue(self, timeout_s: float) -> str:
        busy = f"waited for {_describe(self._waiting[0][1])}" if self._waiting else "computed"
        return f"rank {self._rank} still {busy} after {timeout_s:g} s"

    def _timings(self, begin: float) -> Timings:
        steps = [begin] * (1 + max((task.transfer.step for task in self._tasks), default=-1))
        arrivals: dict[int, float] = {}
        for task in self._tasks:
            assert task.finished_s is not None  # run() ends when all have
            step, peer = task.transfer.step, task.transfer.src
            steps[step] = max(steps[step], task.finished_s)
            if not task.outgoing:
                arrivals[peer] = max(arrivals.get(peer, begin), task.finished_s)
        running = [max(steps[: index + 1]) for index in range(len(steps))]
        return Timings(running[-1] if running else begin, tuple(running), arrivals)


def _tasks(rank: int, transfers: Sequence[Transfer]) -> list[_Task]:
    """The rank's tasks by step and part. Tags number the transfers of each ordered pair, equally at both ends."""
    counts: dict[tuple[int, int], int] = {}
    tasks = []
    for transfer in transfers:
        pair = (transfer.src, transfer.dst)
        tag = counts.get(pair, 0)
        counts[pair] = tag + 1
        if rank in pair:
            tasks.append(_Task(transfer, tag, outgoing=transfer.src == rank))
    return sorted(tasks)


def _order_in_place(tasks: Sequence[_Task]) -> None:
    """Add dependencies between tasks that access the same elements of an in-place buffer.

    A send depends on receives of earlier steps. A receive depends on sends of its own and earlier steps, and on
    receives of earlier steps. Sends do not depend on each other.
    """
    steps = np.array([task.transfer.step for task in tasks])
    outgoing = np.array([task.outgoing for task in tasks], dtype=bool)
    starts = np.array([task.transfer.source if task.outgoing else task.transfer.target for task in tasks])
    stops = starts + np.array([task.transfer.count for task in tasks], dtype=starts.dtype)
    for index, task in enumerate(tasks):
        overlap = (starts < stops[index]) & (starts[index] < stops)
        if task.outgoing:
            before = overlap & ~outgoing & (steps < steps[index])
        else:
            before = overlap & np.where(outgoing, steps <= steps[index], steps < steps[index])
        for other in np.flatnonzero(before).tolist():
            tasks[other].unlocks.append(task)
            task.waits_for += 1


def _gate(tasks: Sequence[_Task], first: int, pause_s: float) -> _Gate:
    """A gate that delays the sends from step `first` on until all tasks of earlier steps are complete."""
    before = [task for task in tasks if task.transfer.step < first]
    later = [task for task in tasks if task.outgoing and task.transfer.step >= first]
    gate = _Gate(pause_s, len(before), later)
    for task in before:
        task.opens.append(gate)
    for task in later:
        task.waits_for += 1
    return gate


def _describe(task: _Task) -> str:
    transfer = task.transfer
    way = f"to rank {transfer.dst}" if task.outgoing else f"from rank {transfer.src}"
    return f"slice {transfer.part} of step {transfer.step} {way}"
