# SPDX-License-Identifier: Apache-2.0
"""Task graphs: computing on devices, transfers, collectives, and what waits for what.

A device has an engine, which computes one task at a time, and a NIC, which sends and receives at the same time. It is
one GPU, or a tensor group whose GPUs do the same at the same time. Pipeline schedules, gradients that are sent behind
the backward pass, and ZeRO's gathers are edges; which communication is exposed follows from them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from testbed.bursts import held_back
from testbed.training.hardware import Collective, Kind, sent_bytes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `delay_s` is spent before anything is sent; for computing it is the whole task."""

    kind: Kind | None
    """None computes on all `devices` at once, or waits for other tasks only if there are none."""
    devices: tuple[int, ...]
    """The devices that compute; sender and receiver of a `send`; members of a collective in the order of its ring."""
    delay_s: float = 0.0
    bytes: float = 0.0
    """The bytes that each sender sends."""
    blocking: bool = False
    """Whether the engine of the receiver of a `send` is idle meanwhile."""
    name: str = ""

    @property
    def senders(self) -> tuple[int, ...]:
        """The devices that send; none for a task that computes."""
        return () if self.kind is None else self.devices[:1] if self.kind == "send" else self.devices

    @property
    def receivers(self) -> tuple[int, ...]:
        """The devices that receive; none for a task that computes."""
        return () if self.kind is None else self.devices[1:] if self.kind == "send" else self.devices

    @property
    def engines(self) -> tuple[int, ...]:
        """Devices that compute, or do nothing else while they receive."""
        return self.devices if self.kind is None else self.receivers if self.blocking else ()

    def messages(self) -> Iterator[tuple[int, int, float]]:
        """Source, destination and bytes of what is sent: to the next member of the ring, or to all others."""
        if self.kind is None or not self.bytes:
            return
        if self.kind == "send":
            yield self.devices[0], self.devices[1], self.bytes
        elif self.kind == "all_to_all":
            for src, dst in permutations(self.devices, 2):
                yield src, dst, self.bytes / (len(self.devices) - 1)
        else:
            for src, dst in zip(self.devices, self.devices[1:] + self.devices[:1], strict=True):
                yield src, dst, self.bytes

    def seconds(self, rate_bps: float, burst_bytes: int = 0) -> float:
        """The time of the task alone, with NICs of that rate that send a burst of this length at once."""
        return self.delay_s + 8 * held_back(self.bytes, burst_bytes) / rate_bps


class Phase(NamedTuple):
    """Tasks during which a job communicates: those numbered from `begin` to `end`.

    The phase begins when task `begin` has ended, and ends with task `end`. Neither sends.
    """

    job: int
    begin: int
    end: int


@dataclass(slots=True)
class TaskGraph:
    """Tasks, numbered from 0 in the order in which they are added, and what each one waits for."""

    devices: int
    tasks: list[Task] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    """By task: those that it waits for."""
    phases: list[Phase] = field(default_factory=list)
    """When jobs begin and end communication, for planners. None: all communicate all the time."""
    jobs: dict[str, list[int]] = field(default_factory=dict)
    """By name: the devices of each job of a trace that has several, which share neither devices nor tasks. The phases
    have the jobs' numbers in this order."""

    def compute(self, device: int, seconds: float, after: Iterable[int] = (), name: str = "") -> int:
        """Add computing; returns its number. Raises ValueError as all methods that add, for what does not fit."""
        return self._add(Task(None, (device,), seconds, name=name), after)

    def compute_together(
        self, devices: Iterable[int], seconds: float, after: Iterable[int] = (), name: str = ""
    ) -> int:
        """Add computing that begins and ends on all these devices at once."""
        return self._add(Task(None, tuple(devices), seconds, name=name), after)

    def send(
        self,
        src: int,
        dst: int,
        size: float,
        after: Iterable[int] = (),
        *,
        delay_s: float = 0.0,
        blocking: bool = False,
        name: str = "",
    ) -> int:
        """Add a transfer of `size` bytes."""
        if src == dst:
            raise ValueError(f"device {src} cannot send to itself")
        return self._add(Task("send", (src, dst), delay_s, size, blocking, name), after)

    def collective(
        self,
        what: Collective,
        members: Sequence[int],
        after: Iterable[int] = (),
        *,
        delay_s: float = 0.0,
        name: str = "",
    ) -> int:
        """Add a collective as rings in the order of `members`; one member sends nothing."""
        group = tuple(members)
        if len(group) < 2:
            return self._add(Task(None, (), delay_s, name=name), after)
        return self._add(Task(what.kind, group, delay_s, sent_bytes(what, len(group)), name=name), after)

    def join(self, after: Iterable[int], name: str = "", *, delay_s: float = 0.0) -> int:
        """Add a task without any work of its own, which ends `delay_s` after those that it waits for."""
        return self._add(Task(None, (), delay_s, name=name), after)

    def wait(self, earlier: int, later: int) -> None:
        """Let a task wait for one more, which may have been added after it."""
        if not (0 <= earlier < len(self.tasks) and 0 <= later < len(self.tasks)):
            raise ValueError(f"there is no task {earlier} or {later} among {len(self.tasks)}")
        self.after[later].append(earlier)

    def append(self, graph: "TaskGraph", devices: Sequence[int], after: Iterable[int] = (), *, job: int = 0) -> int:
        """Add the tasks of a graph, and its phases as those of `job`. Its device d is `devices[d]` here.

        Tasks that wait for nothing in that graph wait for `after`. Returns the number of the first one.
        """
        if len(devices) != graph.devices or min(devices) < 0 or max(devices) >= self.devices:
            raise ValueError(
                f"a graph of {graph.devices} devices cannot be added to one of {self.devices} as {devices}"
            )
        first, begin = len(self.tasks), list(after)
        for task, waits in zip(graph.tasks, graph.after, strict=True):
            self.tasks.append(replace(task, devices=tuple(devices[device] for device in task.devices)))
            self.after.append([first + earlier for earlier in waits] or begin)
        self.phases += [Phase(job, first + phase.begin, first + phase.end) for phase in graph.phases]
        return first

    def _add(self, task: Task, after: Iterable[int]) -> int:
        number, waits = len(self.tasks), list(after)
        if not all(0 <= device < self.devices for device in task.devices):
            raise ValueError(f"task {number} is on {task.devices}, and the graph has {self.devices} devices")
        if len(set(task.devices)) < len(task.devices) or min(task.delay_s, task.bytes) < 0:
            raise ValueError(f"task {number} needs distinct devices, and time and bytes of 0 or more: {task}")
        if not all(0 <= earlier < number for earlier in waits):
            raise ValueError(f"task {number} waits for one of {waits} that has not been added yet")
        self.tasks.append(task)
        self.after.append(waits)
        return number

    def order(self) -> list[int]:
        """The tasks, each after all that it waits for. Raises ValueError if tasks wait for each other."""
        later: list[list[int]] = [[] for _ in self.tasks]
        open_waits = [len(waits) for waits in self.after]
        for number, waits in enumerate(self.after):
            for earlier in waits:
                later[earlier].append(number)
        found = [number for number, count in enumerate(open_waits) if not count]
        for number in found:
            for following in later[number]:
                open_waits[following] -= 1
                if not open_waits[following]:
                    found.append(following)
        if len(found) < len(self.tasks):
            stuck = next(number for number, count in enumerate(open_waits) if count)
            raise ValueError(f"task {stuck} ({self.tasks[stuck].name or self.tasks[stuck].kind}) waits for itself")
        return found

    def longest_chain_s(self, rate_bps: float, burst_bytes: int = 0) -> float:
        """The time of the longest chain of tasks that wait for one another, each alone. No run is shorter."""
        ends = [0.0] * len(self.tasks)
        for number in self.order():
            start = max((ends[earlier] for earlier in self.after[number]), default=0.0)
            ends[number] = start + self.tasks[number].seconds(rate_bps, burst_bytes)
        return max(ends, default=0.0)

    def of_job(self, name: str) -> "TaskGraph":
        """The tasks of one of the `jobs`, whose devices are numbered in the order there."""
        number, members = list(self.jobs).index(name), self.jobs[name]
        phases = [phase for phase in self.phases if phase.job == number]
        first, last = phases[0].begin, phases[-1].end
        device = {member: place for place, member in enumerate(members)}
        return TaskGraph(
            len(members),
            [replace(task, devices=tuple(device[at] for at in task.devices)) for task in self.tasks[first : last + 1]],
            [[earlier - first for earlier in waits] for waits in self.after[first : last + 1]],
            [Phase(0, phase.begin - first, phase.end - first) for phase in phases],
        )

    def divided(self, size: float, seconds: float) -> "TaskGraph":
        """The same tasks with bytes divided by `size`, and delays and computing by `seconds`."""
        tasks = [replace(task, bytes=task.bytes / size, delay_s=task.delay_s / seconds) for task in self.tasks]
        return TaskGraph(self.devices, tasks, self.after, self.phases)

    def sent_bytes(self) -> Floats:
        """Bytes that each device sends."""
        total = np.zeros(self.devices)
        for task in self.tasks:
            total[list(task.senders)] += task.bytes
        return total

    def received_bytes(self) -> Floats:
        """Bytes that each device receives."""
        total = np.zeros(self.devices)
        for task in self.tasks:
            total[list(task.receivers)] += task.bytes
        return total

    def computed_s(self) -> Floats:
        """Seconds that each device computes."""
        total = np.zeros(self.devices)
        for task in self.tasks:
            if task.kind is None:
                total[list(task.devices)] += task.delay_s
        return total


def in_turn(graph: TaskGraph, times: int) -> TaskGraph:
    """The graph several times. A device begins with a round's tasks when all of its tasks of the round before ended.

    The graph has no phases.
    """
    found = TaskGraph(graph.devices)
    acting = [{*task.engines, *task.senders} for task in graph.tasks]
    taking_part = [acting[number] | set(task.receivers) for number, task in enumerate(graph.tasks)]
    firsts = [  # by task: the devices that do nothing before it
        own - set[int]().union(*(acting[earlier] for earlier in waits))
        for own, waits in zip(acting, graph.after, strict=True)
    ]
    going_on = [set[int]() for _ in graph.tasks]  # by task: the devices that do more after it
    for number, waits in enumerate(graph.after):
        for earlier in waits:
            going_on[earlier] |= taking_part[number]
    lasts: list[list[int]] = [[] for _ in range(graph.devices)]
    for number, own in enumerate(taking_part):
        for device in own - going_on[number]:
            lasts[device].append(number)
    count = len(graph.tasks)
    for first in range(0, times * count, count):
        found.tasks += graph.tasks
        for own, waits in zip(firsts, graph.after, strict=True):
            before = {last - count for device in own for last in lasts[device]} if first else set[int]()
            found.after.append([first + earlier for earlier in [*waits, *sorted(before)]])
    return found


def gpus_of(graph: TaskGraph, parts: int, first: Sequence[int]) -> TaskGraph:
    """The graph of GPUs where each device is a group of `parts` of them, numbered from `first[device]` on.

    GPUs of the same number communicate: each sends what the device sends. A group computes as one: all of its GPUs at
    once.
    """
    found = TaskGraph(parts * graph.devices)
    numbers: list[range] = []
    for task in graph.tasks:
        by_part = [tuple(first[device] + part for device in task.devices) for part in range(parts)]
        acting = [tuple(chain.from_iterable(by_part))] if task.kind is None else by_part
        numbers.append(range(len(found.tasks), len(found.tasks) + len(acting)))
        found.tasks += [replace(task, devices=devices) for devices in acting]
    for own, waits in zip(numbers, graph.after, strict=True):
        for part in range(len(own)):
            found.after.append([])
            for earlier in map(numbers.__getitem__, waits):
                each = len(own) > 1 and len(earlier) > 1  # what a GPU sends waits only for its own messages
                found.after[-1] += earlier[part : part + 1] if each else earlier
    return found
