# SPDX-License-Identifier: Apache-2.0
"""Metrics of simulated clusters: what users and operators see."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster import Cause, Outcome, Result, State


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and percentiles over jobs that ended, in seconds unless said otherwise. All are 0 when none did."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Times":
        """The mean and the percentiles of these values, one per job."""
        if not values:
            return cls(0.0, 0.0, 0.0)
        p50, p99 = np.percentile(values, [50, 99]).tolist()
        return cls(float(np.mean(values)), p50, p99)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The jobs of all seeds under one strategy."""

    jobs: dict[State, int]
    running_s: Times
    """JRT: from the start of a job until its end."""
    waiting_s: Times
    """JWT: from its arrival until its start."""
    completion_s: Times
    """JCT: from its arrival until its end."""
    stretch: float
    """The mean of JRT / the job's duration without contention."""
    stretch_over_leaves: Times
    """The same ratio, of jobs on several leaves: not in seconds."""
    instability: float
    """The standard deviation of that ratio among jobs with equally many GPUs, averaged over jobs (section 9.3)."""
    utilisation: float
    """The share of GPUs that jobs used, until the last arrival."""
    failures: dict[Cause, float]
    """Failed placements by cause, per seed."""
    paths_set: float
    """How often the path of a flow was planned, per seed."""
    paths_moved: float
    """How often planning moved a running flow to another path, per seed."""
    preemptions: float
    """How often a job lost its GPUs to another, per seed."""


def metrics(results: Sequence[Result], gpus: int) -> ClusterMetrics:
    """The metrics of one strategy from its results, one per seed, on a cluster of `gpus` GPUs."""
    outcomes = [outcome for result in results for outcome in result.outcomes]
    ended = [outcome for outcome in outcomes if outcome.state == "ended"]
    stretches: defaultdict[int, list[float]] = defaultdict(list)
    for outcome in ended:
        stretches[outcome.job.gpus].append((outcome.running_s or 0.0) / outcome.job.run_s)
    failures = sum((result.failures for result in results), Counter[Cause]())
    return ClusterMetrics(
        dict(Counter(outcome.state for outcome in outcomes)),
        Times.of([outcome.running_s or 0.0 for outcome in ended]),
        Times.of([outcome.waiting_s or 0.0 for outcome in ended]),
        Times.of([outcome.completion_s or 0.0 for outcome in ended]),
        sum(map(sum, stretches.values())) / max(1, len(ended)),
        Times.of([(outcome.running_s or 0.0) / outcome.job.run_s for outcome in ended if outcome.leaves > 1]),
        sum(len(group) * float(np.std(group)) for group in stretches.values()) / max(1, len(ended)),
        float(np.mean([_utilisation(result, gpus) for result in results])),
        {cause: count / len(results) for cause, count in sorted(failures.items())},
        float(np.mean([result.paths_set for result in results])),
        float(np.mean([result.paths_moved for result in results])),
        sum(len(outcome.pauses) for outcome in outcomes) / len(results),
    )


def busy_gpus(result: Result) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The times at which jobs got or lost their GPUs, and the number of GPUs that jobs use from each on."""
    changes = [
        change
        for outcome in result.outcomes
        for from_s, to_s in runs_of(outcome, float("inf"))
        for change in ((from_s, outcome.job.gpus), (to_s, -outcome.job.gpus))
        if change[0] != float("inf")
    ]
    changes.sort()
    times = np.array([time_s for time_s, _ in changes], dtype=np.float64)
    return times, np.cumsum(np.array([number for _, number in changes], dtype=np.int64))


def runs_of(outcome: Outcome, until_s: float) -> list[tuple[float, float]]:
    """From when to when a job had GPUs; jobs that have not ended do so at `until_s`."""
    if outcome.start_s is None:
        return []
    starts = [outcome.start_s, *(to_s for _, to_s in outcome.pauses)]
    ends = [*(from_s for from_s, _ in outcome.pauses), until_s if outcome.end_s is None else outcome.end_s]
    return [(from_s, to_s) for from_s, to_s in zip(starts, ends, strict=True) if from_s < to_s]


def worst_flows(result: Result, ends_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The flows on the busiest link, averaged over time from each of `ends_s` (shape (n + 1,)) to the next: (n,)."""
    times, flows = np.array([(0.0, 0.0), *result.worst_flows]).T
    integral = np.concatenate([[0.0], np.cumsum(flows[:-1] * np.diff(times))])
    place = np.searchsorted(times, ends_s, side="right") - 1
    until = integral[place] + flows[place] * (ends_s - times[place])
    mean: NDArray[np.float64] = np.diff(until) / np.diff(ends_s)
    return mean


def _utilisation(result: Result, gpus: int) -> float:
    last_s = max(outcome.job.arrival_s for outcome in result.outcomes)
    used = sum(
        outcome.job.gpus * max(0.0, min(last_s, to_s) - from_s)
        for outcome in result.outcomes
        for from_s, to_s in runs_of(outcome, result.end_s)
    )
    return used / (gpus * last_s) if last_s else 0.0
