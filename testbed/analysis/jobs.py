# SPDX-License-Identifier: Apache-2.0
"""Jobs that share a fabric: ideal completion times and fairness. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from netmodel import PortRef
from testbed.allocation.demands import Pair, bytes_by_pair, ideal_s
from testbed.analysis.metrics import balance
from testbed.analysis.observations import RunRecord
from testbed.spec import Experiment, Job
from testbed.workloads import Transfer


def ideal_at(experiment: Experiment, seed: int, job: Job | None = None) -> float:
    """Ideal completion time in seconds with `seed`: of all jobs together, or of `job` alone on the fabric.

    It is computed once for an `experiment`.
    """
    if (seed, job) not in experiment.ideals_s:
        experiment.ideals_s[seed, job] = _ideal_at(experiment, seed, job)
    return experiment.ideals_s[seed, job]


def _ideal_at(experiment: Experiment, seed: int, job: Job | None) -> float:
    if job is None and experiment.spec.workload.job_sizes is not None:  # each with phases of its own
        return max(ideal_at(experiment, seed, one) for one in experiment.jobs)
    number = 0 if job is None else experiment.jobs.index(job)
    placed, workload = experiment.at(seed), experiment.spec.workload.of_job(number)
    moved = placed.transfers(seed) if job is None else placed.transfers_of(job, seed)
    sizes = {other.size for other in experiment.jobs} if job is None else {job.size}
    # Phases that ranks keep apart add up; jobs whose phases differ may be in several at once.
    starts = workload.phase_starts(min(sizes)) if len(sizes) == 1 else ()
    carried_s = sum(workload.pauses(min(sizes)).values()) + sum(
        _arranged_s(placed, phase)
        if placed.path_arrangement is not None
        else max(
            ideal_s(experiment.topology, placed.hosts, demands, nic)
            for nic, demands in _by_nic(placed, bytes_by_pair(phase, workload.item_bytes)).items()
        )
        for phase in _phases(moved, starts)
    )
    if workload.order(min(sizes)) is None:
        return carried_s
    return max(carried_s, workload.longest_chain_s(max(placed.line_rate_bps(rank) for rank in range(placed.ranks))))


def _arranged_s(placed: Experiment, transfers: Sequence[Transfer]) -> float:
    """Shortest time in seconds over the paths of an arrangement: bits of the most loaded host port over its rate."""
    bits: Counter[PortRef] = Counter()
    for one in placed.carried(transfers):
        for port in one.way.ports:
            bits[port] += 8 * one.bytes
    return max((count / placed.topology.link_at(port).rate_bps for port, count in bits.items()), default=0.0)


def _phases(transfers: Sequence[Transfer], starts: Sequence[int]) -> list[Sequence[Transfer]]:
    """The transfers, which are in ascending steps, of each phase that has any."""
    cuts = [bisect_left(transfers, start, key=lambda transfer: transfer.step) for start in starts]
    return [transfers[first:last] for first, last in pairwise([0, *cuts, len(transfers)]) if first < last]


def _by_nic(placed: Experiment, demands: dict[Pair, int]) -> dict[int, dict[Pair, int]]:
    """Bytes by the index of their NIC and by pair. NICs of different indices are on separate, parallel networks."""
    carried: dict[int, dict[Pair, int]] = {}
    for pair, count in demands.items():
        carried.setdefault(placed.nics_between(*pair)[0], {})[pair] = count
    return carried


def speeds(experiment: Experiment, run: RunRecord) -> list[float]:
    """For each job, its ideal time alone divided by its completion time. 1 is optimal."""
    return [
        ideal_at(experiment, run.seed, job) / record.completion_s
        for job, record in zip(experiment.jobs, run.jobs, strict=True)
    ]


def fairness(experiment: Experiment, run: RunRecord) -> float:
    """Jain's fairness index of the jobs' speeds: 1 when all slow down equally, 1 / n when one of n gets everything."""
    return balance(speeds(experiment, run)).jain


def slowdowns(runs: Sequence[RunRecord], reference: Sequence[RunRecord]) -> list[float]:
    """Completion times relative to the runs in `reference` with the same seed. Other seeds are left out."""
    times = {run.seed: run.completion_s for run in reference}
    return [run.completion_s / times[run.seed] for run in runs if run.seed in times]


def mean_fairness(experiment: Experiment, runs: Sequence[RunRecord]) -> float:
    """The mean of `fairness` over runs."""
    return fmean(fairness(experiment, run) for run in runs)
