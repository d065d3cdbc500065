# SPDX-License-Identifier: Apache-2.0
"""Training jobs on a two-level Clos; paths are planned again whenever a job begins or ends communication.

After O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324), section 5. In each iteration a job
computes, then its rings all-reduce in 2 (p - 1) steps. Each step waits for the whole ring. Each part of the model has a
ring. The task graph of `testbed.training.schedule` has no all-reduce of all gradients, whose time the paper prints: it
exchanges them layer by layer behind the backward pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sdn.planners import Clos, Commodities, Plan
from sdn.planners.model import links_of
from sim.fluid import Messages, Simulation
from sim.messages import NO_CHANNEL
from sim.paths import Paths
from testbed.workloads.training_models import Model

Planner = Callable[[Clos, Commodities], Plan]


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A job that trains `copies` copies of a model and starts at `arrival_s`."""

    model: Model
    copies: int
    arrival_s: float
    nics: npt.NDArray[np.int64]
    """The NIC of each part of each copy, shape (parts, copies): each row is a ring."""

    @property
    def ideal_s(self) -> float:
        """The shortest all-reduce at 100 Gbit/s, in seconds."""
        return self.allreduce_s(100e9)

    def allreduce_s(self, rate_bps: float) -> float:
        """The shortest all-reduce over NICs of that rate, in seconds: each sends 2 (n - 1) / n of its part."""
        return 2 * (self.copies - 1) / self.copies * 8 * self.model.part_bytes / rate_bps


@dataclass(frozen=True, eq=False)
class Trained:
    """Results of a run."""

    allreduce_s: list[npt.NDArray[np.float64]]
    """By job: the time of each iteration's all-reduce."""
    flow_s: list[npt.NDArray[np.float64]]
    """By job: the duration of each flow in seconds, by iteration, step and flow, until its delivery."""
    plans: int
    """The number of plans that were made while the jobs ran."""
    simulation: Simulation


def placed(models: Sequence[tuple[Model, int]], nics: int, period_s: float, seed: int) -> list[TrainingJob]:
    """Jobs with these numbers of copies, on NICs drawn at random, that arrive at random times within a period.

    Raises ValueError when they do not fit.
    """
    _check_room(models, nics)
    rng = np.random.default_rng(seed)
    order = rng.permutation(nics)
    bounds = np.cumsum([0, *(model.parts * copies for model, copies in models)])
    return [
        TrainingJob(model, copies, float(rng.uniform(0, period_s)), order[start:stop].reshape(model.parts, copies))
        for (model, copies), (start, stop) in zip(models, pairwise(bounds.tolist()), strict=True)
    ]


def placed_by_tor(models: Sequence[tuple[Model, int]], fabric: Clos, period_s: float, seed: int) -> list[TrainingJob]:
    """The same, but each copy takes all free NICs of ToRs drawn at random, and of the last as many as it still needs.

    The code released with the paper places jobs in this way. The flows of rings then go in parallel between ToRs.
    """
    _check_room(models, fabric.nics)
    rng = np.random.default_rng(seed)
    free = [np.flatnonzero(fabric.nic_tor == tor).tolist() for tor in range(fabric.tors)]
    jobs = []
    for model, copies in models:
        nics = np.empty((model.parts, copies), dtype=np.int64)
        for copy in range(copies):
            taken: list[int] = []
            while len(taken) < model.parts:
                own = free[int(rng.choice([tor for tor, left in enumerate(free) if left]))]
                missing = model.parts - len(taken)
                taken += own[:missing]
                del own[:missing]
            nics[:, copy] = taken
        jobs.append(TrainingJob(model, copies, float(rng.uniform(0, period_s)), nics))
    return jobs


def _check_room(models: Sequence[tuple[Model, int]], nics: int) -> None:
    needed = sum(model.parts * copies for model, copies in models)
    if needed > nics:
        raise ValueError(f"the jobs need {needed} NICs, and there are {nics}")


def train(fabric: Clos, jobs: Sequence[TrainingJob], iterations: int, planner: Planner) -> Trained:
    """Run every job for that many iterations. When an all-reduce begins or ends, all that run are planned."""
    asked = [
        Commodities.of(job.nics.ravel(), np.roll(job.nics, -1, axis=1).ravel(), job=number)
        for number, job in enumerate(jobs)
    ]
    first = np.cumsum([0, *(len(own) for own in asked)])  # a job's first channel
    nowhere = Commodities.of(
        np.concatenate([own.src for own in asked]), np.concatenate([own.dst for own in asked]), 1.0
    )
    capacity, rows = links_of(planner(fabric, nowhere))
    simulation = Simulation(capacity)
    simulation.add_channels(Paths.of(rows[:, None, :]))
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    sent = [
        _add_iterations(simulation, job, int(first[number]), iterations, number, begins, ends)
        for number, job in enumerate(jobs)
    ]
    talking: set[int] = set()
    plans = 0
    while reached := simulation.advance():
        before = set(talking)
        for message in reached:
            talking |= {begins[message]} if message in begins else set()
            talking -= {ends[message]} if message in ends else set()
        if talking and talking != before:
            plans += 1
            active = sorted(talking)
            flows = np.concatenate([np.arange(first[job], first[job + 1]) for job in active])
            commodities = Commodities.of(
                nowhere.src[flows], nowhere.dst[flows], job=np.repeat(active, [len(asked[job]) for job in active])
            )
            simulation.set_paths(flows, Paths.of(links_of(planner(fabric, commodities))[1][:, None, :]))
    delivered = simulation.delivered_s()
    spans = []
    for number in range(len(jobs)):
        starts, stops = (
            delivered[[message for message, job in marks.items() if job == number]] for marks in (begins, ends)
        )
        spans.append(stops - starts)
    took_s = delivered - simulation.begun_s()
    return Trained(spans, [took_s[messages] for messages in sent], plans, simulation)


def _add_iterations(
    simulation: Simulation,
    job: TrainingJob,
    first: int,
    iterations: int,
    number: int,
    begins: dict[int, int],
    ends: dict[int, int],
) -> npt.NDArray[np.int64]:
    """Add all messages of a job; returns [iteration, step, flow]. A pause models computation. The ends of pauses and of
    all-reduces are milestones."""
    rings, copies = job.nics.shape
    channels = first + np.arange(rings * copies)
    bits = 8 * job.model.part_bytes / copies
    ring = np.repeat(np.arange(rings), copies)
    last: int | None = None
    flows: list[npt.NDArray[np.int64]] = []
    for _ in range(iterations):
        pause = simulation.add_messages(
            Messages(NO_CHANNEL, delay_s=job.model.compute_s, release_s=job.arrival_s, milestone=True)
        )
        begins[pause] = number
        if last is not None:
            simulation.add_waits([last], [pause])
        gate = np.full(rings, pause)
        for _ in range(2 * (copies - 1)):
            sent = simulation.add_messages(Messages(channels, bits)) + np.arange(channels.size)
            simulation.add_waits(gate[ring], sent)
            flows.append(sent)
            gate = simulation.add_messages(Messages(np.full(rings, NO_CHANNEL))) + np.arange(rings)
            simulation.add_waits(sent, gate[ring])
        last = simulation.add_messages(Messages(NO_CHANNEL, milestone=True))
        simulation.add_waits(gate, np.full(rings, last))
        ends[last] = number
    return np.concatenate(flows).reshape(iterations, -1, channels.size)
