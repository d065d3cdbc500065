# SPDX-License-Identifier: Apache-2.0
"""The order in which waiting jobs are placed."""

from bisect import insort
from collections.abc import Iterator
from typing import Literal, get_args

from sim.cluster.jobs import Job

QueueName = Literal["fifo", "fewest_first", "edf", "backfill", "las"]

QUEUES: tuple[QueueName, ...] = get_args(QueueName)


class Queue:
    """Waiting jobs by their numbers, first the one to place next. Ties are in the order of arrival.

    - `fifo` and `backfill`: the job that arrived first.
    - `fewest_first`: the job with the fewest GPUs.
    - `edf`: the job with the earliest deadline; jobs without one come last.
    - `las`: the job that arrived first, of those whose service is below the threshold (see `preemption`).
    """

    def __init__(self, rule: QueueName) -> None:
        self._rule = rule
        self._waiting: list[tuple[float, int]] = []
        self._keys: dict[int, float] = {}

    def add(self, number: int, job: Job, *, served: bool = False) -> None:
        """A job waits. Numbers ascend with arrivals; `served`: its service has reached the threshold of `las`."""
        self._keys[number] = self._key(job, served)
        insort(self._waiting, (self._keys[number], number))

    def remove(self, number: int) -> None:
        """Take a job out of the queue."""
        self._waiting.remove((self._keys.pop(number), number))

    def __iter__(self) -> Iterator[int]:
        """The jobs in the order in which to place them."""
        return (number for _, number in list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)

    def first(self) -> int:
        """The job to place next. Raises IndexError when none waits."""
        return self._waiting[0][1]

    def _key(self, job: Job, served: bool) -> float:
        if self._rule == "las":
            return float(served)
        if self._rule == "fewest_first":
            return float(job.gpus)
        if self._rule == "edf":
            return float("inf") if job.deadline_s is None else job.deadline_s
        return 0.0
