# SPDX-License-Identifier: Apache-2.0
"""One rank's ends of a schedule's transfers, and the order in which they may happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from testbed.workloads import Elements, Order, Transfer


@dataclass(slots=True)
class Gate:
    """Computing of the rank for `pause_s`, when all that it waits for is complete: before a phase, or in an order."""

    pause_s: float
    waits_for: int = 0
    """Tasks and gates on which it depends and that are not complete."""
    unlocks: list[Task] = field(default_factory=list)
    opens: list[Gate] = field(default_factory=list)


@dataclass(slots=True)
class Task:
    """One end of a transfer, and the tasks and gates that depend on it."""

    transfer: Transfer
    place: int
    """The place of the transfer in the schedule."""
    tag: int
    outgoing: bool
    route: int = 0
    waits_for: int = 0
    """Tasks and gates on which it depends and that are not complete."""
    unlocks: list[Task] = field(default_factory=list)
    opens: list[Gate] = field(default_factory=list)
    scratch: Elements | None = None
    """The memory in which a receive arrives that is then added to the output."""
    arrived: bool = False
    finished_s: float | None = None

    def __str__(self) -> str:
        peer = f"to rank {self.transfer.dst}" if self.outgoing else f"from rank {self.transfer.src}"
        return f"slice {self.transfer.part} of step {self.transfer.step} {peer}"

    def __lt__(self, other: Task) -> bool:
        return (self.transfer.step, self.transfer.part) < (other.transfer.step, other.transfer.part)


def tasks_of(
    rank: int,
    transfers: Sequence[Transfer],
    *,
    in_place: bool,
    routes: Sequence[int] | None = None,
) -> list[Task]:
    """The rank's tasks by step and part, with dependencies if the rank's input and output are one buffer.

    Tags number the transfers of each ordered pair, equally at both ends.
    """
    counts: dict[tuple[int, int], int] = {}
    tasks: list[Task] = []
    for place, transfer in enumerate(transfers):
        pair = (transfer.src, transfer.dst)
        tag = counts.get(pair, 0)
        counts[pair] = tag + 1
        if rank in pair:
            route = 0 if routes is None else routes[place]
            tasks.append(Task(transfer, place, tag, outgoing=transfer.src == rank, route=route))
    tasks.sort()
    if in_place:
        _order_in_place(tasks)
    return tasks


def _order_in_place(tasks: Sequence[Task]) -> None:
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


def gates_of(tasks: Sequence[Task], order: Order, messages: int) -> list[Gate]:
    """The pauses of a rank's order, in a schedule of `messages` transfers. Adds what `tasks` wait for."""
    placed = {task.place: task for task in tasks}
    gates = [Gate(pause_s) for pause_s in order.pauses_s.tolist()]
    for earlier, later in order.waits.tolist():
        before = placed[earlier] if earlier < messages else gates[earlier - messages]
        if later < messages:
            before.unlocks.append(placed[later])
            placed[later].waits_for += 1
        else:
            before.opens.append(gates[later - messages])
            gates[later - messages].waits_for += 1
    return gates


def phase_gates(tasks: Sequence[Task], pauses: Sequence[tuple[int, float]]) -> list[Gate]:
    """Gates before phases that begin at these steps, ascending. Each waits for the one before it."""
    gates = [gate_at(tasks, first, pause_s) for first, pause_s in pauses]
    for before, after in pairwise(gates):
        before.opens.append(after)
        after.waits_for += 1
    return gates


def gate_at(tasks: Sequence[Task], first: int, pause_s: float) -> Gate:
    """A gate that delays the sends from step `first` on until all tasks of earlier steps are complete."""
    before = [task for task in tasks if task.transfer.step < first]
    later = [task for task in tasks if task.outgoing and task.transfer.step >= first]
    gate = Gate(pause_s, len(before), later)
    for task in before:
        task.opens.append(gate)
    for task in later:
        task.waits_for += 1
    return gate
