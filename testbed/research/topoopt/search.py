# SPDX-License-Identifier: Apache-2.0
"""Strategies for one fabric: FlexFlow's Markov chain, and coordinate descent.

The space is TopoOpt's: each layer is split by samples over a number of servers that divides all servers, beginning with
any of them. Both searches rank strategies by `Estimator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random

import numpy as np

from testbed.research.topoopt.estimates import Estimator, Job, Strategy, block, data_parallel, hybrid
from testbed.training.strategies import Placement

BUDGET = 4000
"""Proposals of the Markov chain; the released scripts use as many."""
_GAIN = 1e-3
"""A sweep that gains less than this part is the last one."""
_SCALE = 0.05
"""A strategy that takes this part longer than the present one is accepted with probability 1 / e."""


def starts(job: Job) -> tuple[Strategy, ...]:
    """Strategies with which a search begins: data parallelism, and embedding tables on single servers."""
    return tuple(dict.fromkeys((data_parallel(job), hybrid(job))))


def markov_chain(estimator: Estimator, start: Strategy, budget: int = BUDGET, seed: int = 1) -> Strategy:
    """The best strategy of a Metropolis chain: a random layer gets a random placement (Z. Jia et al., MLSys 2019)."""
    random, job = Random(seed), estimator.job
    degrees = _degrees(job.servers)
    current = best = start
    for _ in range(budget):
        layer, degree = random.randrange(len(current)), random.choice(degrees)
        proposed = _changed(current, (layer,), block(job.servers, degree, random.randrange(job.servers)))
        before, after = estimator(current).seconds, estimator(proposed).seconds
        if after <= before or random.random() < exp((1 - after / before) / _SCALE):
            current = proposed
        if estimator(current).seconds < estimator(best).seconds:
            best = current
    return best


def coordinate_descent(estimator: Estimator, start: Strategy, *, sweeps: int = 3, single: bool = True) -> Strategy:
    """Improve a strategy until no change gains: all degrees for layers of one shape and for all layers, at once.

    With `single`, also for each layer alone: where its neighbours are, and on the servers that compute least.
    """
    job, best = estimator.job, start
    for _ in range(sweeps):
        before = estimator(best).seconds
        for alike in _alike(job):
            for places in _spread(job, alike):
                best = _better(estimator, best, _placed(best, alike, places))
        for layer in range(len(best)) if single else ():
            for place in _candidates(job, best, layer):
                best = _better(estimator, best, _changed(best, (layer,), place))
        if estimator(best).seconds > (1 - _GAIN) * before:
            break
    return best


@dataclass(frozen=True, slots=True)
class Found:
    """The best strategies by their estimates, shortest first, and how many were estimated."""

    strategies: tuple[Strategy, ...]
    seconds: float
    estimated: int


def search(estimator: Estimator, start: Sequence[Strategy], *, keep: int = 3, single: bool = True) -> Found:
    """Coordinate descent from each of these strategies."""
    for strategy in start:
        coordinate_descent(estimator, strategy, single=single)
    best = tuple(estimator.best(keep))
    return Found(best, estimator(best[0]).seconds, estimator.estimated)


def _better(estimator: Estimator, one: Strategy, other: Strategy) -> Strategy:
    return other if estimator(other).seconds < estimator(one).seconds else one


def _degrees(servers: int) -> list[int]:
    return [degree for degree in range(1, servers + 1) if servers % degree == 0]


def _neighbours(job: Job, strategy: Strategy, layer: int) -> list[Placement]:
    """At most two placements each of layers before and after."""
    layers = job.network.layers
    before = dict.fromkeys(strategy[earlier] for earlier in layers[layer].after)
    after = dict.fromkeys(strategy[number] for number, later in enumerate(layers) if layer in later.after)
    return [*list(before)[:2], *list(after)[:2]]


def _changed(strategy: Strategy, layers: Sequence[int], place: Placement) -> Strategy:
    return _placed(strategy, layers, [place] * len(layers))


def _placed(strategy: Strategy, layers: Sequence[int], places: Sequence[Placement]) -> Strategy:
    changed = list(strategy)
    for layer, place in zip(layers, places, strict=True):
        changed[layer] = place
    return tuple(changed)


def _alike(job: Job) -> list[list[int]]:
    """Layers of the same shape, and all layers."""
    kinds: dict[tuple[float, float, float, bool], list[int]] = {}
    for number, layer in enumerate(job.network.layers):
        kinds.setdefault((layer.flops, layer.parameters, layer.outputs, layer.table), []).append(number)
    return [*(alike for alike in kinds.values() if len(alike) > 1), list(range(len(job.network.layers)))]


def _spread(job: Job, layers: Sequence[int]) -> list[list[Placement]]:
    """For each degree: these layers on as different servers as possible, and all on the same ones."""
    found = []
    for degree in _degrees(job.servers):
        blocks = [block(job.servers, degree, first) for first in range(0, job.servers, degree)]
        found.append([blocks[0]] * len(layers))
        if len(layers) <= len(blocks):
            found.append([blocks[place * len(blocks) // len(layers)] for place in range(len(layers))])
        else:
            found.append([blocks[place % len(blocks)] for place in range(len(layers))])
    return found


def _candidates(job: Job, strategy: Strategy, layer: int) -> list[Placement]:
    layers, near = job.network.layers, _neighbours(job, strategy, layer)
    busy = np.zeros(job.servers)
    for number, where in enumerate(strategy):
        if number != layer:
            busy[list(where.devices)] += job.profile(layers[number], job.batch / where.degree)
    found = dict.fromkeys(near)
    for degree in _degrees(job.servers):
        loads = busy.reshape(-1, degree).max(axis=1)
        found[block(job.servers, degree, degree * int(loads.argmin()))] = None
        found.update(dict.fromkeys(block(job.servers, degree, place.devices[0]) for place in near))
    found.pop(strategy[layer], None)
    return list(found)
