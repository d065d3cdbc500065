# SPDX-License-Identifier: Apache-2.0
"""Section 5: jobs on 64 ToRs, 32 spines and 2,048 NICs; a planner chooses paths whenever a job begins or ends to talk.

The text that we have lost most numbers; those of the code released with the paper stand in: sizes, failed spines, ring
sizes, 100 Gbit/s, arrivals within 10 s, whole ToRs for a copy. With rings of 8 it leaves out 4 and 5 jobs, for which
there are too few NICs. It draws models at random; here each sub-figure names the model that is looked at, and the other
jobs take the next ones in turn, so that each has a value.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from sdn.planners import Clos, Commodities, Plan, annealing, ecmp, greedy, ilp, optimal
from testbed.simulate.training import Planner, TrainingJob, placed, placed_by_tor, train
from testbed.workloads.training_models import BLOOM, GPT3, LLAMA2, Model

RATE_BPS = 100e9
TORS, SPINES = 64, 32
ARRIVALS_S = 10.0
MODELS = (BLOOM, GPT3, LLAMA2)
RINGS = (2, 4, 8)
JOBS = (1, 2, 3, 4, 5)
FAILED = (0, 1, 4, 8)
PLANNERS = ("ecmp", "annealing", "greedy", "optimal", "ilp")
NAMES = {"ecmp": "ECMP", "annealing": "annealing", "greedy": "greedy", "optimal": "edge colouring", "ilp": "ILP"}
"""What the paper calls them, but for greedy, which is its own scheme."""
ILP_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """A sub-figure's point: the job of `model`, `jobs` of them in all with rings of `ring`."""

    model: Model
    ring: int
    jobs: int
    failed: int = 0
    by_tor: bool = True
    """Copies on whole ToRs, as the released code has it; otherwise on NICs drawn one by one."""

    @property
    def models(self) -> list[tuple[Model, int]]:
        """All jobs, the one that is looked at first."""
        first = MODELS.index(self.model)
        return [(MODELS[(first + job) % len(MODELS)], self.ring) for job in range(self.jobs)]

    @property
    def fits(self) -> bool:
        """Whether there are NICs enough."""
        return sum(model.parts * copies for model, copies in self.models) <= TORS * SPINES

    def placed(self, fabric: Clos, seed: int) -> list[TrainingJob]:
        """The jobs on their NICs: the same for every planner, and however many spines have failed."""
        if self.by_tor:
            return placed_by_tor(self.models, fabric, ARRIVALS_S, seed)
        return placed(self.models, fabric.nics, ARRIVALS_S, seed)


@dataclass(frozen=True, slots=True)
class Point:
    """What a planner made of a case: means over the iterations of the job that is looked at."""

    case: Case
    planner: str
    allreduce_s: float
    """The slowest ring's time."""
    ideal_s: float
    """What it takes when nothing is in the way."""
    fct_s: float
    """Flow completion time, of the flows of every step of the rings."""
    throughput_bps: float
    """The mean of the flows' throughputs."""
    proved: bool
    """Whether all plans are proved to be optimal."""

    @property
    def slowdown(self) -> float:
        """All-reduce time over the ideal."""
        return self.allreduce_s / self.ideal_s


@dataclass(frozen=True, slots=True)
class Planned:
    """One computation of a plan."""

    planner: str
    commodities: int
    seconds: float


def cases(quick: bool) -> list[Case]:
    """Figures 4 to 6."""
    rings, jobs = ((4,), (1, 3)) if quick else (RINGS, JOBS)
    every = [Case(model, ring, count) for model in MODELS for ring in rings for count in jobs]
    return [case for case in every if case.fits]


def failure_cases(quick: bool) -> list[Case]:
    """Figure 8, with the fullest fabric that there is for rings of 8."""
    ring = 4 if quick else 8
    return [Case(model, ring, 3, failed) for model in MODELS for failed in (FAILED[::3] if quick else FAILED)]


def mixed_cases(quick: bool) -> list[Case]:
    """Copies on NICs drawn one by one: not the paper's placement, but the harder one."""
    ring = 4 if quick else 8
    return [Case(model, ring, 3, by_tor=False) for model in (MODELS[:1] if quick else MODELS)]


class Remembering:
    """A planner that plans once for each set of jobs that talk at the same time, and times it."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._plan = _planner(name, seed)
        self._known: dict[tuple[int, ...], Plan] = {}
        self.planned: list[Planned] = []
        self.proved = True

    def __call__(self, fabric: Clos, commodities: Commodities) -> Plan:
        jobs = (len(commodities), *np.unique(commodities.job).tolist())
        if jobs not in self._known:
            start = time.perf_counter()
            plan = self._plan(fabric, commodities)
            self.planned.append(Planned(self._name, len(commodities), time.perf_counter() - start))
            self._known[jobs] = plan
            self.proved &= plan.proved
        return self._known[jobs]


def measure(
    case: Case, planners: Sequence[str], iterations: int, seed: int, told: Callable[[str], None]
) -> tuple[list[Point], list[Planned]]:
    """A case under each planner. `told` hears what is being done."""
    whole = Clos.of(TORS, SPINES, SPINES, RATE_BPS)
    jobs = case.placed(whole, seed)
    failed = np.random.default_rng(seed).permutation(SPINES)[: case.failed]
    fabric = whole.without(spines=failed.tolist())
    points, planned = [], []
    for name in planners:
        told(f"{case.model.name}, rings of {case.ring}, {case.jobs} jobs, {case.failed} spines failed: {NAMES[name]}")
        planner = Remembering(name, seed)
        trained = train(fabric, jobs, iterations, planner)
        job, flow_s = jobs[0], trained.flow_s[0]
        bits = 8 * job.model.part_bytes / job.copies
        points.append(
            Point(
                case,
                name,
                allreduce_s=float(trained.allreduce_s[0].mean()),
                ideal_s=job.allreduce_s(RATE_BPS),
                fct_s=float(flow_s.mean()),
                throughput_bps=float((bits / flow_s).mean()),
                proved=planner.proved,
            )
        )
        planned += planner.planned
    return points, planned


def together(points: Sequence[Point]) -> list[Point]:
    """Points of one case, of several placements: the means, by planner."""
    found = []
    for name in PLANNERS:
        own = [point for point in points if point.planner == name]
        if own:
            found.append(
                Point(
                    own[0].case,
                    name,
                    allreduce_s=fmean(point.allreduce_s for point in own),
                    ideal_s=own[0].ideal_s,
                    fct_s=fmean(point.fct_s for point in own),
                    throughput_bps=fmean(point.throughput_bps for point in own),
                    proved=all(point.proved for point in own),
                )
            )
    return found


def _planner(name: str, seed: int) -> Planner:
    match name:
        case "ecmp":
            return partial(ecmp, seed=seed)
        case "annealing":
            return partial(annealing, seed=seed)
        case "ilp":
            return partial(ilp, time_limit_s=ILP_LIMIT_S, seed=seed)
        case "greedy":
            return greedy
        case _:
            return optimal
