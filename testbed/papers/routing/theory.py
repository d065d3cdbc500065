# SPDX-License-Identifier: Apache-2.0
"""Section 4: how far greedy may be from the optimum, by construction and by trial; and that colouring is optimal."""

from dataclasses import dataclass

import numpy as np

from sdn.planners import Clos, Commodities, Plan, greedy, optimal

RATE_BPS = 100e9


def tight_case() -> tuple[Plan, Plan]:
    """Greedy's plan and the optimum of four commodities over two spines, where greedy shares a link and none need be.

    ToRs A to E, in this order: A to C and B to E take the first spine; so B to D takes the second. Then A to D finds
    A's link to the first spine taken, and the second spine's link to D.
    """
    fabric = Clos.of(tors=5, spines=2, nics_per_tor=2, nic_rate_bps=RATE_BPS)
    a, b, c, d, e = (2 * tor for tor in range(5))
    commodities = Commodities.of([a, b, b + 1, a + 1], [c, e, d, d + 1])
    return greedy(fabric, commodities), optimal(fabric, commodities)


@dataclass(frozen=True, slots=True)
class Trials:
    """What random instances gave."""

    instances: int
    beyond_twice: int
    """In how many greedy's worst link has more than twice as many commodities as the optimum's."""
    colouring_beyond: int
    """In how many colouring's has more than the busiest ToR's commodities over the spines, rounded up."""
    mean: float
    """Greedy's worst link over the optimum's."""


def trials(instances: int, seed: int = 0) -> Trials:
    """Small fabrics of any shape with any number of commodities between any NICs."""
    rng = np.random.default_rng(seed)
    ratios: list[float] = []
    beyond = colouring = 0
    while len(ratios) < instances:
        tors, spines, nics = (int(rng.integers(low, high)) for low, high in ((2, 12), (1, 9), (1, 9)))
        fabric = Clos.of(tors, spines, nics, np.inf, RATE_BPS)
        src, dst = rng.integers(0, fabric.nics, (2, int(rng.integers(2, 4 * fabric.nics + 3))))
        across = fabric.nic_tor[src] != fabric.nic_tor[dst]
        if not across.any():
            continue
        commodities = Commodities.of(src[across], dst[across])
        ends = (np.bincount(fabric.nic_tor[nic]).max() for nic in (commodities.src, commodities.dst))
        least = -(-int(max(ends)) // spines)
        first_fit, best = (round(plan(fabric, commodities).congestion * RATE_BPS) for plan in (greedy, optimal))
        ratios.append(first_fit / best)
        beyond += first_fit > 2 * best
        colouring += best > least
    return Trials(len(ratios), beyond, colouring, float(np.mean(ratios)))


def permutations(instances: int, tors: int, spines: int, seed: int = 0) -> tuple[float, float]:
    """Means of greedy's and of the optimum's worst link in random permutations of all NICs; as many a ToR as spines."""
    rng = np.random.default_rng(seed)
    fabric = Clos.of(tors, spines, spines, RATE_BPS)
    worst = []
    for _ in range(instances):
        src, dst = np.arange(fabric.nics), rng.permutation(fabric.nics)
        across = fabric.nic_tor[src] != fabric.nic_tor[dst]
        commodities = Commodities.of(src[across], dst[across])
        worst.append([plan(fabric, commodities).congestion * RATE_BPS for plan in (greedy, optimal)])
    first_fit, best = np.mean(worst, axis=0).tolist()
    return first_fit, best
