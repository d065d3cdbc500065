# SPDX-License-Identifier: Apache-2.0
"""The trace of the paper's table 5, which it does not print: chosen by the column Best, and by nothing else.

A trace is drawn from the published distributions, with sizes and durations independent. Few of its 5,000 jobs are both
large and long. With FIFO, the waiting of all others depends on where these jobs meet. So the number of the trace is the
parameter that is fitted. With another lambda its arrivals are stretched.
"""

from collections.abc import Sequence
from functools import cache
from statistics import fmean

from sim.cluster import Job, Scenario, Shape, TraceShape, generate, simulate
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
    """Mean JCT of Best."""
    outcomes = simulate(jobs_of(number, gap_s), Scenario(one_switch(CLUSTER512), "packed", "ideal")).outcomes
    return float(fmean(outcome.completion_s or 0.0 for outcome in outcomes))


def one_switch(shape: Shape) -> Shape:
    """Best's network: "an electric switch with enough ports to connect all servers" (section 9.3)."""
    return Shape(1, 1, shape.leaves * shape.servers_per_leaf, shape.gpus_per_server)


def mean_run_s(number: int = FITTED) -> float:
    """The mean duration of a trace's jobs without contention."""
    return fmean(job.run_s for job in jobs_of(number, 1.0))
