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
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from testbed.errors import TestbedError
from testbed.run.transfer_tasks import Gate, Task, gates_of, phase_gates, tasks_of
from testbed.workloads import Buffers, Elements, Order, Transfer

RECEIVES_AHEAD = 64
"""Receives posted at once: enough that a sender always finds one, and few enough to bound the engine's memory."""


class Request(Protocol):
    """The interface of the objects that `hostlib.Connection.send` and `recv` return."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the request is done. Returns the number of bytes that were moved."""


class Connection(Protocol):
    """The part of `hostlib.Connection` that is used here."""

    def send(self, buffer: Elements, tag: int = 0) -> Request:
        """Start to send `buffer`. Returns at once; the data must not change until the request is done."""

    def recv(self, buffer: Elements, tag: int = 0) -> Request:
        """Post memory for one message. Returns at once; the memory is filled when the request is done."""


WaitAny = Callable[[Sequence[Request], float], int]
"""`hostlib.wait_any`: index of a finished request, or TimeoutError."""


Way = tuple[int, int]
"""A peer's rank, and the number of a route to or from it."""


class TransferTimeout(TestbedError):
    """The run exceeded its time limit. The text names a transfer that was not complete."""


@dataclass(frozen=True, slots=True)
class Connections:
    """A rank's connections by peer rank and route: `outgoing` to its targets, `incoming` from its sources."""

    outgoing: Mapping[Way, Connection]
    incoming: Mapping[Way, Connection]


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
        routes: Sequence[int] | None = None,
        sends_in_flight: int | None = None,
        receives_ahead: int = RECEIVES_AHEAD,
        phase_starts: Sequence[int] = (),
        pauses: Mapping[int, float] = MappingProxyType({}),
        order: Order | None = None,
    ) -> None:
        """`routes` has the number of each transfer's route, by default 0.

        `phase_starts` and `pauses` are those of `testbed.workloads.Workload`, `order` its `order_at`.
        """
        self._rank = rank
        self._buffers = buffers
        self._tasks = tasks_of(rank, transfers, in_place=buffers.input is buffers.output, routes=routes)
        starts = sorted({*phase_starts, *pauses})
        self._gates = phase_gates(self._tasks, [(first, pauses.get(first, 0.0)) for first in starts])
        if order is not None:
            self._gates += gates_of(self._tasks, order, len(transfers))
        self._computing: list[tuple[float, int, Gate]] = []
        """A heap: gates that the rank has reached, by the end of their computation, then in the order of beginnings."""
        self._begun = 0
        self._computed_s = -np.inf
        """When the last computation has ended."""
        for task in self._tasks:
            if task.transfer.combine and not task.outgoing:
                task.scratch = np.empty(task.transfer.count, dtype=buffers.output.dtype)
        self._receives = deque(task for task in self._tasks if not task.outgoing)
        self._ready = [task for task in self._tasks if task.outgoing and not task.waits_for]  # a heap, being sorted
        self._waiting: list[tuple[Request, Task]] = []
        self._spare_receives = receives_ahead
        self._spare_sends = len(self._tasks) if sends_in_flight is None else sends_in_flight

    def post(self, connections: Connections) -> None:
        """Post receives, up to the limit of receives in flight."""
        while self._receives and self._spare_receives and self._may_post(self._receives[0]):
            task = self._receives.popleft()
            self._spare_receives -= 1
            request = connections.incoming[task.transfer.src, task.route].recv(self._receive_buffer(task), task.tag)
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
        for gate in self._gates:
            if not gate.waits_for:
                self._begin(gate, begin)
        self._compute(begin)
        while True:
            while self._ready and self._spare_sends:
                task = heapq.heappop(self._ready)
                self._spare_sends -= 1
                request = connections.outgoing[task.transfer.dst, task.route].send(self._send_buffer(task), task.tag)
                self._waiting.append((request, task))
            self.post(connections)
            if not self._waiting and not self._computing:
                return self._timings(begin)
            until = min(deadline, self._computing[0][0]) if self._computing else deadline
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

    def _begin(self, gate: Gate, now_s: float) -> None:
        """Begin the computation of a gate that waits for nothing more."""
        heapq.heappush(self._computing, (now_s + gate.pause_s, self._begun, gate))
        self._begun += 1

    def _compute(self, now_s: float) -> None:
        """Let what waits for computations begin once their time has passed."""
        while self._computing and self._computing[0][0] <= now_s:
            self._computed_s, _, gate = heapq.heappop(self._computing)
            self._release(gate.unlocks)
            self._open(gate.opens, now_s)

    def _open(self, gates: Sequence[Gate], now_s: float) -> None:
        """Mark one dependency of each of these gates as complete."""
        for gate in gates:
            gate.waits_for -= 1
            if not gate.waits_for:
                self._begin(gate, now_s)

    def _complete(self, request: Request, task: Task) -> None:
        moved = request.wait(0.0)
        if moved != task.transfer.count * self._buffers.output.itemsize:
            raise TestbedError(f"rank {self._rank} got {moved} bytes where {task} was due")
        if task.outgoing:
            self._spare_sends += 1
            self._finish(task)
            return
        self._spare_receives += 1
        task.arrived = True
        if not task.waits_for:
            self._take_in(task)

    def _may_post(self, task: Task) -> bool:
        """Whether the receive can be posted: into scratch always, into the output once its data are unused."""
        return task.scratch is not None or not task.waits_for

    def _receive_buffer(self, task: Task) -> Elements:
        if task.scratch is not None:
            return task.scratch
        return self._buffers.output[task.transfer.target : task.transfer.target + task.transfer.count]

    def _send_buffer(self, task: Task) -> Elements:
        return self._buffers.input[task.transfer.source : task.transfer.source + task.transfer.count]

    def _take_in(self, task: Task) -> None:
        if task.scratch is not None:
            place = self._buffers.output[task.transfer.target : task.transfer.target + task.transfer.count]
            np.add(place, task.scratch, out=place)
            task.scratch = None
        self._finish(task)

    def _finish(self, task: Task) -> None:
        task.finished_s = time.monotonic()
        self._release(task.unlocks)
        self._open(task.opens, task.finished_s)

    def _release(self, held: Sequence[Task]) -> None:
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
        busy = f"waited for {self._waiting[0][1]}" if self._waiting else "computed"
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
        return Timings(max([begin, self._computed_s, *running[-1:]]), tuple(running), arrivals)
