# SPDX-License-Identifier: Apache-2.0
"""Step times and losses of a training script, by policy. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf, nan

import numpy as np

from testbed.analysis import metrics
from testbed.analysis.metrics import PolicyResult
from testbed.spec import Experiment


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One policy's steps of all seeds, and its losses.

    `first_loss` and `last_loss` are those of the first seed's first job; NaN where the script reports none.
    `largest_difference` is that between a loss and the loss of the same seed, job and step under policy `reference`,
    infinite where one of them is missing.
    """

    name: str
    median_s: float
    p99_s: float
    first_loss: float
    last_loss: float
    reference: str
    largest_difference: float


def step_times(experiment: Experiment, results: Sequence[PolicyResult]) -> list[StepTimes]:
    """An entry for every policy if the workload trains a model, else none.

    The reference is the first policy that is not over a program's own sockets, or the first policy.
    """
    if not experiment.spec.workload.TRAINS:
        return []
    names = [policy.name for policy in experiment.spec.policies if policy.transport != "socket"]
    reference = next((result for result in results if result.name in names[:1]), results[0])
    found = []
    for result in results:
        durations = [duration for run in result.runs for duration in metrics.step_durations_s(run)]
        losses = result.runs[0].jobs[0].losses or [nan]
        found.append(
            StepTimes(
                name=result.name,
                median_s=float(np.median(durations)),
                p99_s=float(np.percentile(durations, 99)),
                first_loss=losses[0],
                last_loss=losses[-1],
                reference=reference.name,
                largest_difference=_largest_difference(result, reference),
            )
        )
    return found


def _largest_difference(result: PolicyResult, reference: PolicyResult) -> float:
    pairs = zip_longest(_losses(result), _losses(reference), fillvalue=inf)
    return max((0.0 if one == other else abs(one - other) for one, other in pairs), default=0.0)


def _losses(result: PolicyResult) -> list[float]:
    return [loss for run in result.runs for job in run.jobs for loss in job.losses]
