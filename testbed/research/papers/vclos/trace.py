# SPDX-License-Identifier: Apache-2.0
"""The trace of the paper's table 5, which it does not print: chosen by the column Best, and by nothing else.

A trace is drawn from the published distributions, with sizes and durations independent. Few of its 5,000 jobs are both
large and long. With FIFO, the waiting of all others depends on where these jobs meet. So the number of the trace is the
parameter that is fitted; its arrivals are those of lambda = 1 s, stretched.
"""

from collections import deque
from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from statistics import fmean

from sim.cluster import Job, Shape, TraceShape, generate
from testbed.research.papers.vclos.printed import GAPS_S, TABLE_5

CLUSTER512 = Shape(leaves=16, spines=32, servers_per_leaf=4, gpus_per_server=8)
CLUSTER2048 = Shape(leaves=64, spines=32, servers_per_leaf=4, gpus_per_server=8)
JOBS = 5_000
TRACES = 60
"""The number of traces that the fit tries."""
FITTED = 51
"""The result of `fitted`; a test repeats it."""


def jobs_of(number: int, gap_s: float) -> list[Job]:
    """A trace with a mean time between arrivals."""
    return generate(TraceShape(JOBS, gap_s), number)


def fitted(numbers: Sequence[int] = range(1, TRACES + 1)) -> int:
    """The trace whose largest relative error against the column Best is least."""
    return min(numbers, key=lambda number: max(abs(error) for error in errors(number)))


@cache
def errors(number: int) -> tuple[float, ...]:
    """By lambda: the mean JCT of a trace relative to the column Best, less 1."""
    return tuple(best_s(gap_s, number) / printed - 1 for gap_s, printed in zip(GAPS_S, TABLE_5["Best"], strict=True))


def best_s(gap_s: float, number: int = FITTED) -> float:
    """Mean JCT of Best: CLUSTER512's servers under "an electric switch with enough ports" (section 9.3)."""
    servers = CLUSTER512.leaves * CLUSTER512.servers_per_leaf
    return completion_s(jobs_of(number, 1.0), gap_s, servers, CLUSTER512.gpus_per_server)


def completion_s(jobs: Sequence[Job], gap_s: float, servers: int, per_server: int) -> float:
    """Mean JCT by FIFO without contention, arrivals stretched by `gap_s`: jobs take GPUs of one server, or servers.

    A small job gets the server with the fewest idle GPUs that suffice, so it is the simulation of placement `packed`
    under a single switch, but for ties, in less time.
    """
    idle = [per_server] * servers
    running: list[tuple[float, tuple[tuple[int, int], ...]]] = []
    queue: deque[Job] = deque()
    waited_s = now_s = 0.0

    def placed(gpus: int) -> tuple[tuple[int, int], ...]:
        if gpus <= per_server:
            fits = [(number, server) for server, number in enumerate(idle) if number >= gpus]
            return ((min(fits)[1], gpus),) if fits else ()
        whole = [server for server, number in enumerate(idle) if number == per_server]
        wanted = -(-gpus // per_server)
        return tuple((server, per_server) for server in whole[:wanted]) if len(whole) >= wanted else ()

    coming = deque(jobs)
    while coming or running:
        if coming and (not running or coming[0].arrival_s * gap_s <= running[0][0]):
            now_s = coming[0].arrival_s * gap_s
            queue.append(coming.popleft())
        else:
            now_s, ended = heappop(running)
            for server, number in ended:
                idle[server] += number
        while queue and (got := placed(queue[0].gpus)):
            job = queue.popleft()
            waited_s += now_s - job.arrival_s * gap_s
            for server, number in got:
                idle[server] -= number
            heappush(running, (now_s + job.run_s, got))
    return (waited_s + sum(job.run_s for job in jobs)) / len(jobs)


def mean_run_s(number: int = FITTED) -> float:
    """The mean duration of a trace's jobs without contention."""
    return fmean(job.run_s for job in jobs_of(number, 1.0))
