# SPDX-License-Identifier: Apache-2.0
"""Alternating optimisation (TopoOpt, section 4.1): a strategy for the topology, then a topology for the strategy."""

from dataclasses import dataclass
from math import inf

import numpy as np

from testbed.research.topoopt.estimates import Estimator, Job, Strategy
from testbed.research.topoopt.fabrics import Fabric, direct, switch
from testbed.research.topoopt.iterations import simulate_s
from testbed.research.topoopt.search import search, starts

ROUNDS = 8
"""The most rounds of an alternation."""
_GAIN = 1e-4
"""A round that gains less than this part is the last one."""


@dataclass(frozen=True, slots=True)
class Design:
    """A strategy with the fabric for it."""

    strategy: Strategy
    fabric: Fabric
    estimated_s: float
    """The time of an iteration in seconds, by `Estimator`."""
    simulated_s: float | None
    """The time of an iteration in seconds on the fluid model; None where nothing was simulated."""
    history_s: tuple[float, ...]
    """The best estimate after each round."""
    estimated: int
    """The number of strategies that were estimated."""


def alternate(job: Job, degree: int, rate_bps: float, *, simulated: int = 2, single: bool = True) -> Design:
    """The best strategy and circuits, `degree` of `rate_bps` for each server.

    It begins with the circuits for each strategy of `starts`, and for the best ones on a switch of the same rate. The
    search then improves each strategy on its circuits, TopologyFinder finds circuits for the result, and so on until
    nothing is gained. The `simulated` best ones are simulated; with 0 the estimate decides. Without `single`, layers of
    one shape are placed alike, which is faster.

    Raises ValueError when no strategy fits into the memory of the GPUs.
    """
    found: list[_Ranked] = []
    history: list[float] = []
    ideal = search(Estimator(job, switch(job.servers, degree * rate_bps)), starts(job), keep=2, single=single)
    estimated = ideal.estimated
    present = dict.fromkeys((*starts(job), *ideal.strategies))
    for _ in range(ROUNDS):
        following: dict[Strategy, None] = {}
        for strategy in present:
            estimator = Estimator(job, direct(job.demand(strategy), degree, rate_bps))
            best = search(estimator, [strategy], keep=1, single=single)
            estimated += best.estimated
            found += [
                _Ranked(estimator(candidate).seconds, candidate, estimator.fabric)
                for candidate in {strategy, *best.strategies}
            ]
            following |= dict.fromkeys(best.strategies)
        history.append(min(design.estimated_s for design in found))
        if len(history) > 1 and history[-1] > (1 - _GAIN) * history[-2]:
            break
        present = following
    return _design(job, found, simulated, history, estimated)


def on_fabric(job: Job, fabric: Fabric, *, simulated: int = 2, single: bool = True) -> Design:
    """The best strategy for a fabric that does not change. Raises ValueError as `alternate` does."""
    estimator = Estimator(job, fabric)
    best = search(estimator, starts(job), keep=max(1, simulated), single=single)
    found = [_Ranked(estimator(strategy).seconds, strategy, fabric) for strategy in best.strategies]
    return _design(job, found, simulated, [best.seconds], best.estimated)


@dataclass(frozen=True, slots=True)
class _Ranked:
    estimated_s: float
    strategy: Strategy
    fabric: Fabric


def _design(job: Job, found: list[_Ranked], simulated: int, history: list[float], estimated: int) -> Design:
    ranked = _ranked(found, max(1, simulated))
    if not ranked:
        raise ValueError(
            f"every strategy found needs more than the {job.gpu_bytes / 1e9:.1f} GB of each GPU: take more servers, or "
            "GPUs with more memory"
        )
    best, seconds = ranked[0], None
    if simulated:
        times = [simulate_s(job, design.strategy, design.fabric) for design in ranked]
        seconds = min(times)
        best = ranked[times.index(seconds)]
    return Design(best.strategy, best.fabric, best.estimated_s, seconds, tuple(history), estimated)


def _ranked(found: list[_Ranked], count: int) -> list[_Ranked]:
    """The best `count` that fit into memory, each once: a last round repeats the strategy of the one before."""
    chosen: list[_Ranked] = []
    for design in sorted(found, key=lambda design: design.estimated_s):
        if len(chosen) == count or design.estimated_s == inf:
            break
        if not any(design.strategy == other.strategy and _alike(design.fabric, other.fabric) for other in chosen):
            chosen.append(design)
    return chosen


def _alike(one: Fabric, other: Fabric) -> bool:
    return (
        one.rings == other.rings
        and np.array_equal(one.links_bps, other.links_bps)
        and np.array_equal(one.paths, other.paths)
    )
