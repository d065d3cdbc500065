# SPDX-License-Identifier: Apache-2.0
"""Planner speed: `optimal` vs. `greedy`, an arrival vs. a complete plan, exact rates vs. plain numpy.

All times are in seconds of one thread and include Python's overhead: from arrays to a plan with its bound. In a
permutation, every NIC sends to one other NIC, chosen at random. Each repetition draws a new case, which both sides use.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from sdn.planners import Clos, Commodities, Incremental, Plan, greedy, max_min_rates, optimal
from sdn.planners.model import links_of
from sdn.planners.pods import PodClos
from sdn.planners.pods import optimal as optimal_in_pods
from testbed.bench.frame import Measurement, Result, result
from testbed.progress import Steps

REPETITIONS = 7
RATE_BPS = 100e9


@dataclass(frozen=True, slots=True)
class Size:
    """A fabric with as many NICs as uplinks at each ToR, and the number of commodities to plan."""

    tors: int
    spines: int
    commodities: int | None = None
    """Number of commodities between random NICs; None: a permutation."""

    @property
    def case(self) -> str:
        shape = f"{self.tors} ToRs x {self.spines} spines"
        if self.commodities is None:
            return f"{self.tors * self.spines} NICs, {shape}"
        return f"{self.commodities} commodities, {shape}"

    def make(self, seed: int) -> tuple[Clos, Commodities]:
        fabric = Clos.of(self.tors, self.spines, self.spines, RATE_BPS)
        rng = np.random.default_rng(seed)
        if self.commodities is None:
            src, dst = np.arange(fabric.nics), rng.permutation(fabric.nics)
        else:
            src = rng.integers(0, fabric.nics, self.commodities)
            # To a NIC of any other ToR.
            dst = (src + self.spines * rng.integers(1, self.tors, self.commodities)) % fabric.nics
        return fabric, Commodities.of(src[src != dst], dst[src != dst])


@dataclass(frozen=True, slots=True)
class FatTree:
    """A permutation on the fat-tree of switches with this many ports, and the two tiers that it is compared with."""

    ports: int
    two_tiers: Size

    @property
    def case(self) -> str:
        return f"{self.ports**3 // 4} NICs, fat-tree of {self.ports} ports"

    @property
    def peer(self) -> str:
        return f"{self.two_tiers.tors * self.two_tiers.spines} NICs, two tiers"

    def make(self, seed: int) -> tuple[PodClos, Commodities]:
        half = self.ports // 2
        fabric = PodClos.of(self.ports, half, half, half, half, RATE_BPS)
        src, dst = np.arange(fabric.nics), np.random.default_rng(seed).permutation(fabric.nics)
        return fabric, Commodities.of(src[src != dst], dst[src != dst])


PLANS = (Size(64, 32), Size(64, 32, 100_000), Size(512, 256))
THREE_TIERS = (FatTree(22, Size(64, 32)), FatTree(64, Size(512, 256)))
ARRIVALS = (Size(64, 32),)
RATES = (Size(64, 32), Size(64, 32, 100_000))


def measure() -> Result:
    """Run every case `REPETITIONS` times."""
    with Steps(REPETITIONS * len((*PLANS, *THREE_TIERS, *ARRIVALS, *RATES)), every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for measurement in run(PLANS, THREE_TIERS, ARRIVALS, RATES, REPETITIONS):
            measurements.append(measurement)
            steps.now(f"{measurement.metric} of {measurement.case}")
            steps.advance()
    return result("planner", measurements)


def run(
    plans: tuple[Size, ...],
    three_tiers: tuple[FatTree, ...],
    arrivals: tuple[Size, ...],
    rates: tuple[Size, ...],
    repetitions: int,
) -> Iterator[Measurement]:
    """Interleave repetitions of all cases, so that changes of the machine's speed affect all."""
    for seed in range(repetitions):
        for size in plans:
            fabric, asked = size.make(seed)
            ours, peer = (_seconds(plan, fabric, asked) for plan in (optimal, greedy))
            yield Measurement("plan", size.case, "s", ours, peer, "greedy")
        for tree in three_tiers:
            ours, peer = _seconds(optimal_in_pods, *tree.make(seed)), _seconds(optimal, *tree.two_tiers.make(seed))
            yield Measurement("plan", tree.case, "s", ours, peer, tree.peer)
        for size in arrivals:
            fabric, asked = size.make(seed)
            ours, peer = _arrival(fabric, asked, seed), _seconds(optimal, fabric, asked)
            yield Measurement("arrival", size.case, "s", ours, peer, "afresh")
        for size in rates:
            plan = greedy(*size.make(seed))
            ours, peer = (_seconds(_predicted, plan, filling) for filling in (max_min_rates, numpy_rates))
            yield Measurement("rates", size.case, "s", ours, peer, "numpy")


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """The shortest of three runs, because other load can only add time."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def _predicted(plan: Plan, filling: Callable[..., object]) -> object:
    """Like `Plan.rates`, with the given implementation of max-min filling."""
    return filling(*links_of(plan), plan.commodities.demand)


def _arrival(fabric: Clos, asked: Commodities, seed: int, swaps: int = 200) -> float:
    """Median time of an arrival in a loaded fabric: two commodities depart and return with swapped destinations."""
    live = Incremental(fabric, asked)
    number = dict(enumerate(live.numbers()))
    src, dst = asked.src.tolist(), asked.dst.tolist()
    rng = np.random.default_rng(seed)
    times = []
    for _ in range(swaps):
        a, b = rng.choice(len(src), 2, replace=False).tolist()
        if src[a] == dst[b] or src[b] == dst[a]:
            continue
        for i in (a, b):
            live.depart(number[i])
        dst[a], dst[b] = dst[b], dst[a]
        for i in (a, b):
            start = time.perf_counter()
            route, _ = live.arrive(src[i], dst[i])
            times.append(time.perf_counter() - start)
            number[i] = route.commodity
    return median(times)


def numpy_rates(
    capacity: npt.NDArray[np.float64], links: npt.NDArray[np.int32], weight: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Max-min rates by progressive filling with numpy: a round fills all links that are full before their neighbours.

    Neighbours are links that share a flow. Links that fill later cannot change when such a link fills. All capacities
    must be finite.
    """
    rate = np.full(len(weight), np.inf)
    left = np.append(capacity, np.inf)  # the last entry stands for no link
    flows = np.arange(len(weight))
    while flows.size:
        crossed = links[flows] % left.size
        load = np.bincount(crossed.ravel(), np.repeat(weight[flows], links.shape[1]), left.size)
        level = np.divide(left, load, out=np.full(left.size, np.inf), where=load > 0)
        first = level[crossed].min(axis=1)  # when each flow's first link fills
        among = np.full(left.size, np.inf)
        np.minimum.at(among, crossed.ravel(), np.repeat(first, links.shape[1]))
        stop = (level <= among * (1 + 1e-12))[crossed] & (level[crossed] <= first[:, None] * (1 + 1e-12))
        stopped = stop.any(axis=1)
        rate[flows[stopped]] = first[stopped] * weight[flows[stopped]]
        taken = np.repeat(rate[flows[stopped]], links.shape[1])
        left[:-1] -= np.bincount(crossed[stopped].ravel(), taken, left.size)[:-1]
        flows = flows[~stopped]
    return rate
