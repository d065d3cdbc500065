# SPDX-License-Identifier: Apache-2.0
"""Section 4: greedy compared with the optimum, by construction and random trials; the optimality of edge colouring."""

from dataclasses import dataclass

import numpy as np

from sdn.planners import Clos, Commodities, Plan, greedy, optimal

RATE_BPS = 100e9


def tight_case() -> tuple[Plan, Plan]:
    """Greedy's plan and the optimum for four commodities over two spines. Only in greedy's plan two share a link.

    Commodities between ToRs A to E: A to C and B to E take the first spine, so B to D takes the second. For A to D,
    both A's link to the first spine and the second spine's link to D are in use.
    """
    fabric = Clos.of(tors=5, spines=2, nics_per_tor=2, nic_rate_bps=RATE_BPS)
    a, b, c, d, e = (2 * tor for tor in range(5))
    commodities = Commodities.of([a, b, b + 1, a + 1], [c, e, d, d + 1])
    return greedy(fabric, commodities), optimal(fabric, commodities)


@dataclass(frozen=True, slots=True)
class Trials:
    """Results of random instances."""

    instances: int
    beyond_twice: int
    """Instances where greedy's worst link has more than twice as many commodities as the optimum's."""
    colouring_beyond: int
    """Instances where colouring's worst link has more than ceil(commodities of the busiest ToR / spines)."""
    mean: float
    """Mean ratio of greedy's worst link to the optimum's."""


def trials(instances: int, seed: int = 0) -> Trials:
    """Compare the planners on `instances` small random fabrics with random commodities."""
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
    """Mean load of the worst link under greedy and the optimum, in random permutations of all NICs."""
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
