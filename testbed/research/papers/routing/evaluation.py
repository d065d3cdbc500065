# SPDX-License-Identifier: Apache-2.0
"""Section 5: jobs on 64 ToRs, 32 spines and 2,048 NICs. A planner chooses paths when a job starts or stops sending.

Our copy of the paper lacks most numbers. They are taken from the code released with the paper: sizes, failed spines,
ring sizes, computing times, 100 Gbit/s, arrivals within 10 s, whole ToRs for a copy. With rings of 8, that code omits 4
and 5 jobs, for which there are too few NICs. That code draws models at random. Here, each sub-figure names the model of
the measured job, and the other jobs take the next models in order, so that every sub-figure has a value.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from sdn.planners import Clos, Commodities, Plan, annealing, ecmp, greedy, ilp, optimal
from testbed.research.papers.ahead import Remembered
from testbed.simulate.phases import Planner
from testbed.simulate.training import TrainingJob, placed, placed_by_tor, train
from testbed.workloads import training_models
from testbed.workloads.training_models import Model

RATE_BPS = 100e9
TORS, SPINES = 64, 32
ARRIVALS_S = 10.0
BLOOM = replace(training_models.BLOOM, compute_s=1.2388)
GPT3 = replace(training_models.GPT3, compute_s=1.0096)
LLAMA2 = replace(training_models.LLAMA2, compute_s=2.6923)
MODELS = (BLOOM, GPT3, LLAMA2)
"""Models with the computing times of the released code. `testbed.training` gives others in proportion, too."""
RINGS = (2, 4, 8)
JOBS = (1, 2, 3, 4, 5)
FAILED = (0, 1, 4, 8)
OVERSUBSCRIBED = (2, 4)
"""NICs of a ToR over its uplinks. With fewer spines, a fabric is the same as with failed ones."""
NAMES = {"ecmp": "ECMP", "annealing": "annealing", "greedy": "greedy", "optimal": "edge colouring", "ilp": "ILP"}
"""Names of the planners in the paper, except greedy, which is the paper's own scheme."""
PLANNERS = tuple(NAMES)
ILP_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a sub-figure: the measured job trains `model`; there are `jobs` jobs with rings of `ring`."""

    model: Model
    ring: int
    jobs: int
    failed: int = 0
    by_tor: bool = True
    """Whether copies are on whole ToRs, as in the released code. Otherwise their NICs are drawn one by one."""

    def __str__(self) -> str:
        return f"{self.model.name}, rings of {self.ring}, {self.jobs} jobs, {self.failed} spines failed"

    @property
    def models(self) -> list[tuple[Model, int]]:
        """Model and ring size of all jobs. The first is the measured job."""
        first = MODELS.index(self.model)
        return [(MODELS[(first + job) % len(MODELS)], self.ring) for job in range(self.jobs)]

    @property
    def fits(self) -> bool:
        """Whether there are enough NICs."""
        return sum(model.parts * copies for model, copies in self.models) <= TORS * SPINES

    def placed(self, fabric: Clos, seed: int) -> list[TrainingJob]:
        """The placed jobs. The placement is the same for every planner and number of failed spines."""
        if self.by_tor:
            return placed_by_tor(self.models, fabric, ARRIVALS_S, seed)
        return placed(self.models, fabric.nics, ARRIVALS_S, seed)


@dataclass(frozen=True, slots=True)
class Point:
    """Results of a planner on a case: means over the iterations of the measured job."""

    case: Case
    planner: str
    allreduce_s: float
    """Time of the slowest ring."""
    ideal_s: float
    """All-reduce time on an otherwise idle fabric."""
    fct_s: float
    """Mean flow completion time over the flows of every step of the rings."""
    throughput_bps: float
    """Mean throughput of the flows."""
    proved: bool
    """Whether all plans are proven optimal."""

    @property
    def slowdown(self) -> float:
        """All-reduce time divided by the ideal."""
        return self.allreduce_s / self.ideal_s


@dataclass(frozen=True, slots=True)
class Planned:
    """The computation of one plan."""

    planner: str
    commodities: int
    seconds: float
    """Processor time of the process, threads of native code included. Other programs on its cores do not count."""


def cases(quick: bool) -> list[Case]:
    """Cases of Figures 4 to 6."""
    rings, jobs = ((4,), (1, 3)) if quick else (RINGS, JOBS)
    every = [Case(model, ring, count) for model in MODELS for ring in rings for count in jobs]
    return [case for case in every if case.fits]


def failure_cases(quick: bool) -> list[Case]:
    """Cases of Figure 8. Three jobs with rings of 8 are the most that fit the fabric."""
    ring = 4 if quick else 8
    return [Case(model, ring, 3, failed) for model in MODELS for failed in (FAILED[::3] if quick else FAILED)]


def oversubscribed_cases(quick: bool) -> list[Case]:
    """Cases for question 4 of section 5: ToRs with a half and a fourth of the uplinks that their NICs fill."""
    ring = 4 if quick else 8
    models = MODELS[:1] if quick else MODELS
    return [
        Case(model, ring, 3, SPINES - SPINES // times, by_tor)
        for model in models
        for times in OVERSUBSCRIBED
        for by_tor in (True, False)
    ]


def mixed_cases(quick: bool) -> list[Case]:
    """Cases with copies on NICs drawn one by one: a harder placement than the paper's."""
    ring = 4 if quick else 8
    return [Case(model, ring, 3, by_tor=False) for model in (MODELS[:1] if quick else MODELS)]


class CachedPlanner:
    """Plans once for each set of jobs that communicate at the same time, and measures each plan's processor time."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._plan = _planner(name, seed)
        self._known: dict[tuple[int, ...], Plan] = {}
        self.planned: list[Planned] = []
        self.proved = True

    def __call__(self, fabric: Clos, commodities: Commodities) -> Plan:
        jobs = (len(commodities), *np.unique(commodities.job).tolist())
        if jobs not in self._known:
            start = time.process_time()
            plan = self._plan(fabric, commodities)
            self.planned.append(Planned(self._name, len(commodities), time.process_time() - start))
            self._known[jobs] = plan
            self.proved &= plan.proved
        return self._known[jobs]


@Remembered
def measure(
    case: Case, planners: tuple[str, ...], iterations: int, seed: int
) -> tuple[Sequence[Point], Sequence[Planned]]:
    """Simulate a case under each planner."""
    whole = Clos.of(TORS, SPINES, SPINES, RATE_BPS)
    jobs = case.placed(whole, seed)
    failed = np.random.default_rng(seed).permutation(SPINES)[: case.failed]
    fabric = whole.without(spines=failed.tolist())
    points, planned = [], []
    for name in planners:
        planner = CachedPlanner(name, seed)
        trained = train(fabric, jobs, iterations, planner)
        job, flow_s = jobs[0], trained.message_s[0]
        bits = 8 * job.model.part_bytes / job.copies
        points.append(
            Point(
                case,
                name,
                allreduce_s=float(trained.phase_s[0].mean()),
                ideal_s=job.allreduce_s(RATE_BPS),
                fct_s=float(flow_s.mean()),
                throughput_bps=float((bits / flow_s).mean()),
                proved=planner.proved,
            )
        )
        planned += planner.planned
    return points, planned


def together(points: Sequence[Point]) -> list[Point]:
    """The means over several placements of one case, by planner."""
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
