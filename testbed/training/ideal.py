# SPDX-License-Identifier: Apache-2.0
"""A task graph on an ideal switch: no link but a device's own is ever busy.

List scheduling: a task starts when all that it waits for is done and all that it needs is free, engines and the two
directions of NICs. Among those that could start, the one that was ready first does, then the one added first. A task
holds what it needs until its end, so a transfer waits until its sender and its receiver are free at the same moment,
also behind many collectives. `testbed.simulate.task_graphs` runs the same graph on the fluid model, where tasks share
NICs.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from testbed.training.tasks import Floats, Task, TaskGraph


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The start and the end of every task, in seconds."""

    starts_s: Floats
    ends_s: Floats

    @property
    def seconds(self) -> float:
        """The time at which the last task ended."""
        return float(self.ends_s.max(initial=0.0))


def run(graph: TaskGraph, rate_bps: float) -> Run:
    """Run every task once, with NICs of that rate in each direction.

    Raises ValueError if tasks wait for each other, or for a rate that is not above 0.
    """
    if rate_bps <= 0:
        raise ValueError(f"a rate is above 0, not {rate_bps}")
    graph.order()
    count = len(graph.tasks)
    seconds = [task.seconds(rate_bps) for task in graph.tasks]
    needs = [_resources(task) for task in graph.tasks]
    later: list[list[int]] = [[] for _ in range(count)]
    for number, waits in enumerate(graph.after):
        for earlier in waits:
            later[earlier].append(number)
    open_waits = [len(waits) for waits in graph.after]
    busy = [False] * (3 * graph.devices)
    waiting: list[set[tuple[float, int]]] = [set() for _ in busy]  # by resource: (time when ready, task)
    running: list[tuple[float, int]] = []
    starts, ends = np.zeros(count), np.zeros(count)
    now = 0.0
    candidates = {(now, number) for number in range(count) if not open_waits[number]}
    while candidates or running:
        for entry in sorted(candidates):
            number = entry[1]
            free = not any(busy[resource] for resource in needs[number])
            for resource in needs[number]:
                if free:
                    busy[resource] = True
                    waiting[resource].discard(entry)
                else:
                    waiting[resource].add(entry)
            if free:
                starts[number], ends[number] = now, now + seconds[number]
                heappush(running, (now + seconds[number], number))
        now = running[0][0]
        candidates = set()
        while running and running[0][0] == now:
            number = heappop(running)[1]
            for resource in needs[number]:
                busy[resource] = False
                candidates |= waiting[resource]
            for following in later[number]:
                open_waits[following] -= 1
                if not open_waits[following]:
                    candidates.add((now, following))
    return Run(starts, ends)


def _resources(task: Task) -> tuple[int, ...]:
    """The engine of device d is 3 d, what its NIC sends is 3 d + 1, and what it receives is 3 d + 2."""
    return (
        *(3 * device for device in task.engines),
        *(3 * device + 1 for device in task.senders),
        *(3 * device + 2 for device in task.receivers),
    )
