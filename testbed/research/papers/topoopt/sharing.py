# SPDX-License-Identifier: Apache-2.0
"""A cluster of 432 servers shared by jobs of 16 (section 5.6, Figure 16), and shards that are set one after another.

d = 8, links of 100 Gbit/s; models with the values of section 5.6 in List 1, strategies of section 5.1. The fat-tree has
switches of 12 ports, which makes 432 servers. Its jobs are on random servers: the paper does not say where. All run at
once on the fluid model; each transfer takes a random path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Literal

import numpy as np

from testbed.research.papers.ahead import Case, Remembered
from testbed.research.papers.topoopt.cost import FAT_TREE
from testbed.research.papers.topoopt.iterations import fitting, job
from testbed.research.topoopt.estimates import Job, Strategy
from testbed.research.topoopt.fabrics import direct, switch
from testbed.research.topoopt.iterations import shortest_s, simulate_s
from testbed.research.topoopt.shared import FatTree, Floats, PlacedJob, QueuedJob, shared_iterations_s, starts_s
from testbed.training.networks import bert, candle, dlrm, vgg16
from testbed.training.per_operator import iteration

DEGREE, RATE_BPS = 8, 100e9
JOB_SERVERS = 16
COUNTS = {20: 5, 40: 10, 60: 15, 80: 20, 100: 27}
"""Jobs by load in percent."""
Name = Literal["TopoOpt", "Ideal Switch", "Fat-tree", "Oversub. Fat-tree"]
FABRICS: tuple[Name, ...] = ("TopoOpt", "Ideal Switch", "Fat-tree", "Oversub. Fat-tree")

_MODELS = {
    "D": dlrm(tables=16, width=256, dense=1024, features=2048),
    "B": bert(blocks=6, hidden=768, tokens=256),
    "C": candle(width=4096),
    "V": vgg16(),
}
_ORDER = "DBCDBVDCBD"
"""Ten jobs: 40 % DLRM, 30 % BERT, 20 % CANDLE, 10 % VGG16."""
_TREES: dict[Name, FatTree] = {
    "Fat-tree": FatTree(12, DEGREE * RATE_BPS / FAT_TREE, uplinks=6),
    "Oversub. Fat-tree": FatTree(12, DEGREE * RATE_BPS, uplinks=3),
}


@dataclass(frozen=True, slots=True)
class Times:
    """Iteration times in seconds, over all iterations that jobs make in the same time."""

    mean: float
    tail: float
    """The 99th percentile."""
    tail_of_jobs: float
    """The same where every job counts alike, however short its iterations are."""


@Remembered
def times(fabric: Name, load: int, seed: int = 1) -> Times:
    """The iteration times of jobs that share a fabric, at a load in percent (Figure 16)."""
    kinds = [_ORDER[number % len(_ORDER)] for number in range(COUNTS[load])]
    if fabric in _TREES:
        each: Sequence[Sequence[float]] = _shared(kinds, _TREES[fabric], seed)
    else:
        each = [[_alone(kind, fabric)] for kind in kinds]
    values, counts = np.concatenate(each), np.array([len(own) for own in each])
    often = np.ones(values.size) if fabric in _TREES else 1 / values
    return Times(
        float(np.average(values, weights=often)),
        percentile(values, often, 99),
        percentile(values, np.repeat(1 / counts, counts), 99),
    )


def percentile(values: Floats, weights: Floats, percent: float) -> float:
    """The weighted percentile: the least value so that it and smaller ones have `percent` % of all weights."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, (percent / 100 - 1e-12) * below[-1])])


def cases() -> list[Case]:
    """All times, the slowest first."""
    return [(times, (fabric, load)) for load in reversed(COUNTS) for fabric in reversed(FABRICS)]


def ratios(fabric: Name) -> Times:
    """How many times longer than on TopoOpt an iteration takes, the means over all loads."""
    pairs = [(times(fabric, load), times("TopoOpt", load)) for load in COUNTS]
    return Times(*(fmean(getattr(a, what) / getattr(b, what) for a, b in pairs) for what in Times.__slots__))


@cache
def _of(kind: str) -> Job:
    return job(_MODELS[kind], JOB_SERVERS)


@cache
def _alone(kind: str, fabric: Name) -> float:
    of = _of(kind)
    if fabric == "Ideal Switch":
        return _best(kind, DEGREE * RATE_BPS)[1]

    def seconds(strategy: Strategy) -> float:
        return simulate_s(of, strategy, direct(of.demand(strategy), DEGREE, RATE_BPS))

    return shortest_s(of, fitting(of), DEGREE * RATE_BPS, seconds)


@cache
def _best(kind: str, rate_bps: float) -> tuple[Strategy, float]:
    """The shorter strategy on a switch, and its time."""
    of = _of(kind)
    found = [(strategy, simulate_s(of, strategy, switch(of.servers, rate_bps))) for strategy in fitting(of)]
    return min(found, key=lambda pair: pair[1])


def _shared(kinds: Sequence[str], tree: FatTree, seed: int) -> list[list[float]]:
    servers = np.random.default_rng(seed).permutation(tree.servers)[: JOB_SERVERS * len(kinds)]
    placed = []
    for kind, own in zip(kinds, servers.reshape(-1, JOB_SERVERS), strict=True):
        of, (strategy, alone_s) = _of(kind), _best(kind, tree.rate_bps)
        graph = iteration(of.network, strategy, of.servers, of.batch, of.profile)
        placed.append(PlacedJob(graph, tuple(np.sort(own).tolist()), alone_s))
    return shared_iterations_s(placed, tree, seed)


def waits_s(setup_s: float, *, look_ahead: bool, load: float = 0.8, jobs: int = 300, seed: int = 1) -> float:
    """The mean time from a job's arrival to its start.

    Jobs of 16 servers arrive at random moments, run for one to three hours, and would keep the part `load` of 432
    servers busy if they started at once. Not from the paper, which has no arrivals.
    """
    random = np.random.default_rng(seed)
    lengths = random.uniform(1, 3, jobs) * 3600
    between_s = 2 * 3600 * JOB_SERVERS / (load * 432)
    arrivals = np.cumsum(random.exponential(between_s, jobs))
    queue = [
        QueuedJob(float(arrival), JOB_SERVERS, float(length)) for arrival, length in zip(arrivals, lengths, strict=True)
    ]
    starts = starts_s(queue, 432, setup_s, look_ahead=look_ahead)
    return float(np.mean([start - job.arrival_s for start, job in zip(starts, queue, strict=True)]))
