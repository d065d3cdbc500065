# SPDX-License-Identifier: Apache-2.0
"""Task graphs in phases on a two-level Clos. A collective goes step by step, and each step waits for its whole ring.

After O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), section 5: paths are planned again whenever a
job begins or ends communication. `task_graphs.py` sends a collective as one message per member instead, and lets the
engines of devices compute one task at a time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sdn.planners import Clos, Commodities, Plan
from sdn.planners.model import links_of
from sim.fluid import Messages, Simulation
from sim.messages import NO_CHANNEL
from sim.paths import Paths
from testbed.training.tasks import Task, TaskGraph

Planner = Callable[[Clos, Commodities], Plan]

_Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PhaseRun:
    """Results of a run."""

    phase_s: list[_Floats]
    """By job: the duration of each of its phases in seconds, in the order of the graph."""
    message_s: list[_Floats]
    """By job: the duration of each message in seconds, until its delivery, in the order of tasks and steps."""
    plans: int
    """The number of plans that were made while the jobs ran."""
    simulation: Simulation


def run_phases(fabric: Clos, graph: TaskGraph, planner: Planner) -> PhaseRun:
    """Run all tasks. Device d of the graph is NIC d. When a phase begins or ends, all that communicate are planned.

    Raises ValueError for tasks that wait for each other or send outside of every phase, and where no task sends.
    """
    graph.order()
    steps = _Steps(graph)
    if not steps.channels.size:
        raise ValueError("no task sends anything")
    src, dst, job = steps.channels.T
    capacity, rows = links_of(planner(fabric, Commodities.of(src, dst, 1.0)))
    simulation = Simulation(capacity)
    simulation.add_channels(Paths.of(rows[:, None, :]))
    steps.load(simulation)
    begins = {int(steps.first[phase.begin]): phase.job for phase in graph.phases}
    ends = {int(steps.first[phase.end]): phase.job for phase in graph.phases}
    communicating: set[int] = set()
    plans = 0
    while reached := simulation.advance():
        before = set(communicating)
        for message in reached:
            communicating |= {begins[message]} if message in begins else set()
            communicating -= {ends[message]} if message in ends else set()
        if communicating and communicating != before:
            plans += 1
            flows = np.flatnonzero(np.isin(job, list(communicating)))
            planned = planner(fabric, Commodities.of(src[flows], dst[flows], job=job[flows]))
            simulation.set_paths(flows, Paths.of(links_of(planned)[1][:, None, :]))
    delivered_s = simulation.delivered_s()
    took_s = delivered_s - simulation.begun_s()
    of_job = np.where(steps.channel == NO_CHANNEL, -1, job[steps.channel])
    phases: list[list[float]] = [[] for _ in range(1 + max((phase.job for phase in graph.phases), default=-1))]
    for phase in graph.phases:
        phases[phase.job].append(delivered_s[steps.first[phase.end]] - delivered_s[steps.first[phase.begin]])
    return PhaseRun(
        [np.array(own) for own in phases],
        [took_s[of_job == number] for number in range(len(phases))],
        plans,
        simulation,
    )


class _Steps:
    """The messages of a graph: of each task a gate, which takes its delay, and then the messages and a gate per step.

    What waits for a task waits for its last gate.
    """

    first: _Numbers
    """By task: the number of its first gate."""
    channel: _Numbers
    """By message: its channel, or NO_CHANNEL for a gate."""
    channels: _Numbers
    """By channel: source, destination and job, in the order in which tasks need them."""

    def __init__(self, graph: TaskGraph) -> None:
        jobs = {number: phase.job for phase in graph.phases for number in range(phase.begin + 1, phase.end)}
        known: dict[tuple[int, int, int], int] = {}
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by messages of a step, and steps: tasks
        sent: list[list[int]] = []  # by task: the channels of a step
        sizes: list[float] = []  # by task: the bits of a message
        counts: list[int] = []
        for number, task in enumerate(graph.tasks):
            messages, steps = list(task.messages()), _steps(task)
            if messages and number not in jobs:
                raise ValueError(f"task {number} sends, but no phase of its job has begun")
            ends = [(src, dst, jobs[number]) for src, dst, _ in messages]
            sent.append([known.setdefault(end, len(known)) for end in ends])
            sizes.append(8 * messages[0][2] / steps if messages else 0.0)
            counts.append(1 + (steps * (len(messages) + 1) if messages else 0))
            if messages:
                alike[len(messages), steps].append(number)
        ends_before = np.cumsum([0, *counts])
        self.first = ends_before[:-1]
        last = ends_before[1:] - 1
        self.channels = np.array(list(known), dtype=np.int64).reshape(-1, 3)
        self.channel = np.full(ends_before[-1], NO_CHANNEL)
        self._bits = np.zeros(ends_before[-1])
        self._delay_s = np.zeros(ends_before[-1])
        self._delay_s[self.first] = [task.delay_s for task in graph.tasks]
        self._milestone = np.zeros(ends_before[-1], dtype=np.bool_)
        self._milestone[self.first[[end for phase in graph.phases for end in (phase.begin, phase.end)]]] = True
        edges = np.array(
            [(earlier, number) for number, own in enumerate(graph.after) for earlier in own], dtype=np.int64
        )
        earlier, later = edges.reshape(-1, 2).T
        self._waits = [(last[earlier], self.first[later])]
        for (width, steps), tasks in alike.items():
            gates = self.first[tasks][:, None] + np.arange(1 + steps) * (width + 1)  # by task and step
            messages_of = gates[:, :-1, None] + 1 + np.arange(width)
            self.channel[messages_of] = np.array([sent[task] for task in tasks])[:, None, :]
            self._bits[messages_of] = np.array([sizes[task] for task in tasks])[:, None, None]
            self._waits.append((np.repeat(gates[:, :-1], width), messages_of.ravel()))
            self._waits.append((messages_of.ravel(), np.repeat(gates[:, 1:], width)))

    def load(self, simulation: Simulation) -> None:
        """Add all messages, with the numbers of this object."""
        simulation.add_messages(Messages(self.channel, self._bits, self._delay_s, milestone=self._milestone))
        for earlier, later in self._waits:
            simulation.add_waits(earlier, later)


def _steps(task: Task) -> int:
    """In how many steps a task sends: those of a ring, otherwise one."""
    match task.kind:
        case "all_reduce":
            return 2 * (len(task.devices) - 1)
        case "all_gather" | "reduce_scatter":
            return len(task.devices) - 1
        case _:
            return 1
