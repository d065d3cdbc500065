# SPDX-License-Identifier: Apache-2.0
"""The order in which waiting jobs are placed."""

from bisect import insort
from collections.abc import Iterator
from typing import Literal, get_args

from sim.cluster.jobs import Job

QueueName = Literal["fifo", "fewest_first", "edf", "backfill"]

QUEUES: tuple[QueueName, ...] = get_args(QueueName)


class Queue:
    """Waiting jobs by their numbers, first the one to place next. Ties are in the order of arrival.

    - `fifo` and `backfill`: the job that arrived first.
    - `fewest_first`: the job with the fewest GPUs.
    - `edf`: the job with the earliest deadline; jobs without one come last.
    """

    def __init__(self, rule: QueueName) -> None:
        self._rule = rule
        self._waiting: list[tuple[float, int]] = []

    def add(self, number: int, job: Job) -> None:
        """A job waits. Numbers ascend with arrivals."""
        insort(self._waiting, (self._key(job), number))

    def remove(self, number: int, job: Job) -> None:
        """A job waits no longer."""
        self._waiting.remove((self._key(job), number))

    def __iter__(self) -> Iterator[int]:
        """The jobs in the order in which to place them."""
        return (number for _, number in list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)

    def first(self) -> int:
        """The job to place next. Raises IndexError when none waits."""
        return self._waiting[0][1]

    def _key(self, job: Job) -> float:
        if self._rule == "fewest_first":
            return float(job.gpus)
        if self._rule == "edf":
            return float("inf") if job.deadline_s is None else job.deadline_s
        return 0.0
