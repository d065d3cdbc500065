# SPDX-License-Identifier: Apache-2.0
"""How fast jobs run that share links, by job and by step.

`Average`: a job has one speed between two changes of the set of jobs. `PerStep`: a job computes, then runs the steps of
its collective, and has a speed in each. A step takes as long as on its worst link. Speeds are relative to a network
without contention. `sim.cluster.fair` follows single flows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from sdn import _native
from sim.cluster.jobs import Job
from sim.cluster.networks import Traffic
from sim.cluster.shape import Shape

_ROUNDS = 4
"""Most iterations of the fixed point of `Average`; on random traces the fifth changes no speed by more than 0.1 %."""

_CLOSE = 1e-3
"""The iterations end when every stretch changes by at most this share."""

_LEAST = 1e-3
"""`Average` assumes that other jobs leave at least this share of a link."""


@dataclass(slots=True)
class RunningJob:
    """A running job with flows between leaves."""

    job: Job
    traffic: Traffic
    links: NDArray[np.intp]
    """The links that its flows take, each once."""
    mean: NDArray[np.float64]
    """Their loads, averaged over the time of its collective."""
    own: NDArray[np.float64]
    """For each entry of `traffic.links`: the `mean` of its link."""


class Contention(ABC):
    """The running jobs that have flows between leaves, by slot. A slot is any number."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._running: dict[int, RunningJob] = {}
        self.load = np.zeros(shape.links)
        """By link: its mean load by all of these jobs, were there no contention."""
        self.worst = 0.0
        """The greatest of these loads."""
        self.changed = False
        """Whether `speeds` may have changed since it was called last."""
        self.paths_set = 0
        """How often the path of a new flow has been planned."""
        self.paths_moved = 0
        """How often it has changed the path of a running flow."""

    def start(self, slot: int, job: Job, traffic: Traffic) -> float:
        """Start a job. Returns the work of its first phase, in seconds without contention."""
        steps = np.repeat(np.arange(len(traffic.starts)), np.diff([*traffic.starts, len(traffic.links)]))
        links, entry = np.unique(traffic.links, return_inverse=True)
        mean: NDArray[np.float64] = np.bincount(entry, traffic.loads * traffic.shares[steps]).astype(np.float64)
        if traffic.flows is not None and not isinstance(self, Replanned):
            self.paths_set += len(traffic.flows.step)
        self._running[slot] = RunningJob(job, traffic, links, mean, mean[entry])
        self.load[links] += job.communication * mean
        self.worst = max(self.worst, float(self.load[links].max()))
        self.changed = True
        return self._first(slot)

    def next(self, slot: int) -> float | None:
        """End a phase of a job. Returns the work of its next phase in seconds; None when the job has ended."""
        self.changed = True
        if (work := self._next(slot)) is None:
            self._forget(slot)
        return work

    def leave(self, slot: int, left_s: float) -> float:
        """Stop a job before its end, with `left_s` of its phase's work to do.

        Returns all the work that it has left, in seconds without contention.
        """
        self.changed = True
        left_s = self._leave(slot, left_s)
        self._forget(slot)
        return left_s

    def _forget(self, slot: int) -> None:
        gone = self._running.pop(slot)
        was_worst = self.load[gone.links].max() >= self.worst
        self.load[gone.links] -= gone.job.communication * gone.mean
        if was_worst:
            self.worst = float(self.load.max())

    def advance(self, passed_s: float) -> None:  # noqa: B027  # most need not know the time
        """Let `passed_s` seconds pass at the speeds that `speeds` returned last."""

    def speeds(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The slots of all these jobs, and the speeds at which they do their phases' work, above 0."""
        self.changed = False
        return np.array(list(self._running), dtype=np.intp), self._speeds(list(self._running.values()))

    @abstractmethod
    def _first(self, slot: int) -> float: ...

    @abstractmethod
    def _next(self, slot: int) -> float | None: ...

    @abstractmethod
    def _leave(self, slot: int, left_s: float) -> float: ...

    @abstractmethod
    def _speeds(self, running: list[RunningJob]) -> NDArray[np.float64]: ...


class Average(Contention):
    """Speeds change only when jobs start and end.

    Other jobs meet a job's step at random times. A job's stretch is how much longer its collective takes than without
    contention. A job that communicates for the share a of its time without contention is present on its links for the
    share a * stretch / (1 - a + a * stretch) of its time. On a link where a step has load n, the step is stretched by
    n plus the load of others that are present: an equal share for each flow. Where others use less than that, because
    another link holds them back, the step has what they leave (max-min fairness): it is stretched by n / (1 - rate of
    others). The fixed point is iterated from the last one.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._stretch: dict[int, float] = {}

    def _first(self, slot: int) -> float:
        self._stretch[slot] = 1.0
        return self._running[slot].job.run_s

    def _next(self, slot: int) -> float | None:
        del self._stretch[slot]
        return None

    def _leave(self, slot: int, left_s: float) -> float:
        del self._stretch[slot]
        return left_s

    def _speeds(self, running: list[RunningJob]) -> NDArray[np.float64]:
        if not running:
            return np.empty(0)
        traffics = [running_job.traffic for running_job in running]
        links = np.concatenate([traffic.links for traffic in traffics])
        loads = np.concatenate([traffic.loads for traffic in traffics])
        shares = np.concatenate([traffic.shares for traffic in traffics])
        own = np.concatenate([running_job.own for running_job in running])
        entries = np.array([len(traffic.links) for traffic in traffics])
        starts = np.concatenate(
            [traffic.starts + first for traffic, first in zip(traffics, np.cumsum(entries) - entries, strict=True)]
        )
        of_step = np.repeat(np.arange(len(running)), [len(traffic.starts) for traffic in traffics])
        each = np.concatenate([running_job.links for running_job in running])
        mean = np.concatenate([running_job.mean for running_job in running])
        lengths = np.array([len(running_job.links) for running_job in running])
        share = np.array([running_job.job.communication for running_job in running])
        quiet = np.array([traffic.quiet for traffic in traffics])

        def by_others(weight: NDArray[np.float64]) -> NDArray[np.float64]:
            total = np.bincount(each, np.repeat(weight, lengths) * mean, self._shape.links)
            rest: NDArray[np.float64] = total.astype(np.float64, copy=False).take(links)
            rest -= np.repeat(weight, entries) * own
            return rest

        stretch = np.array(list(self._stretch.values()))
        for _ in range(_ROUNDS):
            present = share * stretch / (1 - share + share * stretch)
            equal = loads + by_others(present)
            left = loads / np.maximum(_LEAST, 1 - by_others(present / stretch))
            worst = np.maximum.reduceat(np.maximum(1.0, np.minimum(equal, left)), starts)
            before, stretch = stretch, quiet + np.bincount(of_step, shares * worst, len(running))
            if np.abs(stretch - before).max() <= _CLOSE:
                break
        self._stretch = dict(zip(self._stretch, stretch.tolist(), strict=True))
        speeds: NDArray[np.float64] = 1 / (1 - share + share * stretch)
        return speeds


class PerStep(Contention):
    """The vClos paper's rule: a step's speed is one over the number of flows on its worst link.

    A job computes once, then runs each step once; or it does so `rounds` times, each a part of its work. When the
    number of flows changes, what has been sent counts. (The paper's released simulator counts elapsed time instead.)
    """

    def __init__(self, shape: Shape, rounds: int = 1) -> None:
        super().__init__(shape)
        self._rounds = rounds
        self._left: dict[int, Iterator[int]] = {}
        """By slot: the phases to come; a phase is a step's number, or -1 for computation."""
        self._step: dict[int, int] = {}

    def _first(self, slot: int) -> float:
        steps = len(self._running[slot].traffic.starts)
        self._left[slot] = chain.from_iterable(repeat(range(-1, steps), self._rounds))
        self._step[slot] = next(self._left[slot])
        return self._work(slot)

    def _next(self, slot: int) -> float | None:
        step = next(self._left[slot], None)
        if step is None:
            del self._left[slot], self._step[slot]
            return None
        self._step[slot] = step
        return self._work(slot)

    def _leave(self, slot: int, left_s: float) -> float:
        del self._step[slot]
        return left_s + sum(self._alone_s(slot, step) for step in self._left.pop(slot))

    def _work(self, slot: int) -> float:
        return self._alone_s(slot, self._step[slot])

    def _alone_s(self, slot: int, step: int) -> float:
        """How long a phase takes without contention."""
        running_job = self._running[slot]
        collective = running_job.job.run_s * running_job.job.communication
        if step < 0:
            return (running_job.job.run_s - collective + collective * running_job.traffic.quiet) / self._rounds
        return collective * float(running_job.traffic.shares[step]) / self._rounds

    def _speeds(self, running: list[RunningJob]) -> NDArray[np.float64]:
        speeds = np.ones(len(running))
        active = [
            (index, _step(running_job.traffic, step))
            for index, (running_job, step) in enumerate(zip(running, self._step.values(), strict=True))
            if step >= 0
        ]
        if not active:
            return speeds
        links = np.concatenate([job.traffic.links[part] for job, part in ((running[n], part) for n, part in active)])
        loads = np.concatenate([running[index].traffic.loads[part] for index, part in active])
        total = np.bincount(links, loads, self._shape.links)[links]
        lengths = np.array([part.stop - part.start for _, part in active])
        worst = np.maximum.reduceat(total, np.cumsum(lengths) - lengths)
        speeds[[index for index, _ in active]] = 1 / np.maximum(1.0, worst)
        return speeds


class Replanned(PerStep):
    """Paths of a step are planned when it begins, and running flows move to make room.

    The fabric is rearrangeably non-blocking, so every flow has links of its own and all speeds are 1. The number of
    GPUs on a leaf must not exceed that of spines, nor that of leaves of a pod the cores of an agg.

    Leaves are coloured into spines. Between pods, aggs are then coloured into the cores of their group; a flow that
    moves to another agg is a new one there.
    """

    def __init__(self, shape: Shape, rounds: int = 1) -> None:
        super().__init__(shape, rounds)
        self._low = _native.Colouring(shape.leaves, shape.spines)
        self._high = _native.Colouring(shape.pods * shape.spines, max(1, shape.cores))
        self._flows: dict[int, list[int]] = {}
        """By slot: the flows of its step, by their numbers in `_low`."""
        self._above: dict[int, int] = {}
        """By flow between pods: its number in `_high`."""
        self._below: dict[int, int] = {}
        """The same the other way."""

    def _next(self, slot: int) -> float | None:
        self._depart(slot)
        work = super()._next(slot)
        flows = self._running[slot].traffic.flows
        if work is not None and flows is not None and (step := self._step[slot]) >= 0:
            own = flows.step == np.unique(flows.step)[step]
            self._flows[slot] = []
            for leaf, far in zip(flows.leaf[own].tolist(), flows.far_leaf[own].tolist(), strict=True):
                flow, _, _, moved = self._low.arrive(leaf, far)
                self._flows[slot].append(flow)
                self.paths_set += 1
                self.paths_moved += len(self._lift([edge for edge, *_ in moved], flow))
        return work

    def _leave(self, slot: int, left_s: float) -> float:
        self._depart(slot)
        return super()._leave(slot, left_s)

    def _depart(self, slot: int) -> None:
        """The flows of a job's step end."""
        for flow in self._flows.pop(slot, ()):
            moved = {self._below[edge] for edge in self._drop(flow)}
            self.paths_moved += len(moved | self._lift([edge for edge, *_ in self._low.depart(flow)]))

    def _lift(self, moved: list[int], fresh: int | None = None) -> set[int]:
        """Give flows that have moved to other aggs, and a fresh one, their cores. Returns the flows that have moved."""
        if not self._shape.cores:
            return {*moved}
        others: set[int] = set()
        between = [flow for flow in moved if flow in self._above]
        for flow in between:
            others |= {self._below[edge] for edge in self._drop(flow)}
        for flow in between if fresh is None else [*between, fresh]:
            pods = self._shape.pods_of(np.array(self._low.tors(flow))).tolist()
            if pods[0] == pods[1]:
                continue
            near, far = (pod * self._shape.spines + self._low.colours(flow)[0] for pod in pods)
            edge, _, _, displaced = self._high.arrive(near, far)
            self._above[flow], self._below[edge] = edge, flow
            others |= {self._below[other] for other, *_ in displaced}
        return (others | {*moved}) - {fresh}

    def _drop(self, flow: int) -> list[int]:
        """A flow has no core any more. Returns others that get another core, by their numbers in `_high`."""
        if (edge := self._above.pop(flow, None)) is None:
            return []
        del self._below[edge]
        return [other for other, *_ in self._high.depart(edge)]

    def _speeds(self, running: list[RunningJob]) -> NDArray[np.float64]:
        return np.ones(len(running))


def _step(traffic: Traffic, step: int) -> slice:
    ends = (*traffic.starts[step + 1 : step + 2].tolist(), len(traffic.links))
    return slice(int(traffic.starts[step]), int(ends[0]))
