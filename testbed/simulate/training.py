# SPDX-License-Identifier: Apache-2.0
"""Training jobs on the NICs of a Clos. In each iteration a job computes, then it all-reduces its gradients.

Each part of the model has a ring of all copies, as in O. Cohen et al., "Routing for Large ML Models"
(arXiv:2503.05324), section 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sdn.planners import Clos
from testbed.simulate.phases import PhaseRun, Planner, run_phases
from testbed.training.phased import PhasedModel, phased
from testbed.training.tasks import TaskGraph
from testbed.workloads.training_models import Model


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """A job that trains `copies` copies of a model and starts at `arrival_s`."""

    model: Model
    copies: int
    arrival_s: float
    nics: npt.NDArray[np.int64]
    """The NIC of each part of each copy, shape (parts, copies): each row is a ring."""

    @property
    def phased(self) -> PhasedModel:
        """An iteration of the job. Activations stay out: the paper times gradients only."""
        model = self.model
        return PhasedModel(
            tensor=model.parts,
            pipeline=1,
            data=self.copies,
            forward_s=model.compute_s * model.forward,
            backward_s=model.compute_s * (1 - model.forward),
            gradient_bytes=model.part_bytes,
        )

    @property
    def ideal_s(self) -> float:
        """The shortest all-reduce at 100 Gbit/s, in seconds."""
        return self.allreduce_s(100e9)

    def allreduce_s(self, rate_bps: float) -> float:
        """The shortest all-reduce over NICs of that rate, in seconds: each sends 2 (n - 1) / n of its part."""
        return 2 * (self.copies - 1) / self.copies * 8 * self.model.part_bytes / rate_bps


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


def task_graph(nics: int, jobs: Sequence[TrainingJob], iterations: int) -> TaskGraph:
    """Every job's iterations on a fabric with so many NICs. Its phases are the all-reduces."""
    graph = TaskGraph(nics)
    for number, job in enumerate(jobs):
        iteration = phased(job.phased).graph
        last = graph.join((), delay_s=job.arrival_s)
        for _ in range(iterations):
            graph.append(iteration, job.nics.T.ravel().tolist(), [last], job=number)
            last = len(graph.tasks) - 1
    return graph


def train(fabric: Clos, jobs: Sequence[TrainingJob], iterations: int, planner: Planner) -> PhaseRun:
    """Run every job for that many iterations. When an all-reduce begins or ends, all that run are planned."""
    return run_phases(fabric, task_graph(fabric.nics, jobs, iterations), planner)
