# SPDX-License-Identifier: Apache-2.0
"""Least attained service: which running jobs give way to a waiting one.

Discretised 2D-LAS with two queues (J. Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI
2019, section 3). A job's service is its GPUs times the time for which it has had them. New jobs are in the first queue;
a job moves to the second when its service reaches a threshold, and stays there. Jobs of the first queue preempt those
of the second. Durations need not be known. Tiresias's return of starved jobs to the first queue is not modelled.
"""

from collections.abc import Sequence

from sdn.isolation.integer_program import Undecided
from sim.cluster.jobs import Job
from sim.cluster.placements import AnyAllocation, AnyCluster, Place


def make_room(
    cluster: AnyCluster, place: Place, job: Job, running: Sequence[AnyAllocation]
) -> tuple[AnyAllocation, list[int]] | None:
    """A place for a job, and which of `running` must be released for it; None if it has none even without all of them.

    `running` has the allocations that may be released, first the one to release first. Those that turn out not to be
    in the way are kept.
    """
    if len(cluster.idle) + sum(len(allocation.gpus) for allocation in running) < job.gpus:
        return None
    left = cluster
    for count, victim in enumerate(running, start=1):
        left = left.release(victim)  # type: ignore[arg-type]  # a rule and its cluster agree
        if len(left.idle) < job.gpus:
            continue
        try:
            allocation = place(left, job.name, job.gpus)
        except Undecided:
            return None
        if allocation is not None:
            left = left.take(allocation)  # type: ignore[arg-type]
            return allocation, _in_the_way(left, running[:count])
    return None


def _in_the_way(cluster: AnyCluster, released: Sequence[AnyAllocation]) -> list[int]:
    """Which of these allocations cannot be taken again."""
    lost = []
    for number, allocation in enumerate(released):
        try:
            cluster = cluster.take(allocation)  # type: ignore[arg-type]
        except ValueError:
            lost.append(number)
    return lost
