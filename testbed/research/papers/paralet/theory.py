# SPDX-License-Identifier: Apache-2.0
"""Section 4.1: the slowdown of the most loaded of n ports, by Equation 1 and by random draws."""

from math import erfc, exp, lgamma, log, sqrt
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()


def quantile(nodes: float) -> float:
    """The standard normal's quantile at 1 - 1 / nodes: n' of Table 3."""
    return -_NORMAL.inv_cdf(1 / nodes)  # by symmetry, because 1 - 1 / nodes would lose precision


def nodes_of(n_prime: float) -> float:
    """Table 3: the n for which n' is the quantile at 1 - 1 / n."""
    return 2 / erfc(n_prime / sqrt(2))


def nodes_of_as_printed(n_prime: float) -> float:
    """Table 3 as 1 / (1 - CDF) in double precision, which loses precision by cancellation."""
    return 1 / (1 - _NORMAL.cdf(n_prime))


def slowdown(nodes: float, m: int) -> float:
    """Equation 1: the slowdown with m lanes on `nodes` ports, relative to the ideal."""
    return 1 + quantile(nodes) / sqrt(m)


def lanes_for(nodes: float, target: float) -> float:
    """Section 5.2: the (fractional) m for which Equation 1 gives the slowdown `target`."""
    return (quantile(nodes) / (target - 1)) ** 2


def collision_probability(ports: int) -> float:
    """Section 4.1: the probability that any two of n flows hash to the same of n ports: 1 - n! / n^n."""
    return 1 - exp(lgamma(ports + 1) - ports * log(ports))


def fullest_port(ports: int, m: int, draws: int = 400, seed: int = 1) -> float:
    """The slowdown that Equation 1 approximates: the mean maximum of m n flowlets on n ports, divided by m."""
    rng = np.random.default_rng(seed)
    counts = (np.bincount(rng.integers(ports, size=m * ports), minlength=ports).max() for _ in range(draws))
    return float(np.mean(list(counts))) / m
