# SPDX-License-Identifier: Apache-2.0
"""A generator of traces with the published distributions of the vClos paper and of its released simulator.

Sizes are the histogram of jobs of the Helios clusters. Durations are log-normal with Helios's mean and median. A
Gaussian copula correlates both, because independent ones would load the paper's cluster to 0.38 only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from sim.cluster.jobs import PATTERNS, Job, Pattern

SIZES = {1: 11136, 2: 829, 4: 1109, 8: 4257, 16: 400, 32: 925, 64: 76, 128: 80, 256: 13}
"""Helios: the number of jobs by their number of GPUs."""

MEDIAN_S, SIGMA = 206.0, 2.636
"""Helios: the median of durations, and the sigma of a log-normal distribution with their mean, 6,651.7 s."""

SHARES = (0.25, 0.23, 0.16, 0.10, 0.07, 0.04, 0.02, 0.05, 0.12, 0.08)
"""Shares of time in communication: VGG16 with batches of 4 to 96, ResNet, BERT. The paper prints no mix of them."""


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The parameters of `generate`."""

    jobs: int
    mean_gap_s: float
    """Arrivals are a Poisson process with this mean time between two."""
    correlation: float = 0.0
    """Of size and duration, between -1 and 1: the parameter of the Gaussian copula."""
    shortest_s: float = 1_000.0
    longest_s: float = 100_000.0
    """Durations are clipped to `shortest_s` and `longest_s`, in seconds."""
    largest: int = 256
    """Jobs have at most so many GPUs."""
    pattern: Pattern | None = None
    """The collective of all jobs; None: drawn as in the released simulator."""
    communication: float | None = None
    """The share of time of all collectives; None: drawn."""
    deadline_factor: float = 2.0
    """A job's deadline is its arrival plus its duration times this."""


def generate(shape: TraceShape, seed: int) -> list[Job]:
    """Draw a trace of jobs, in the order of their arrivals."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(shape.mean_gap_s, shape.jobs))
    by_size, noise = rng.standard_normal((2, shape.jobs))
    sizes = np.array([size for size in SIZES if size <= shape.largest])
    counts = np.array([SIZES[size] for size in sizes.tolist()], dtype=np.float64)
    quantiles = np.array([NormalDist().cdf(value) for value in by_size.tolist()])
    at = np.searchsorted(np.cumsum(counts) / counts.sum(), quantiles).clip(max=len(sizes) - 1)
    by_duration = shape.correlation * by_size + np.sqrt(1 - shape.correlation**2) * noise
    durations = np.clip(MEDIAN_S * np.exp(SIGMA * by_duration), shape.shortest_s, shape.longest_s)
    drawn = collectives(rng, sizes[at].tolist(), shape.pattern, shape.communication)
    return [
        Job(
            f"job{number}",
            float(arrivals[number]),
            int(sizes[at[number]]),
            float(durations[number]),
            *drawn[number],
            float(arrivals[number] + shape.deadline_factor * durations[number]),
        )
        for number in range(shape.jobs)
    ]


def collectives(
    rng: np.random.Generator, sizes: Sequence[int], pattern: Pattern | None, communication: float | None = None
) -> list[tuple[float, Pattern]]:
    """The share of communication and the collective of jobs with so many GPUs.

    `pattern` and `communication` are everyone's if given.

    Half of the jobs whose size is a power of two use halving-doubling. Of the others, those with a draw below 0.7 use
    the hierarchical ring, and the rest pairwise all-to-all. Shares of communication vary by up to half.
    """
    shares = rng.choice(SHARES, len(sizes)) * rng.uniform(0.5, 1.5, len(sizes))
    draws = rng.random(len(sizes)).tolist()
    return [
        (share if communication is None else communication, pattern or _pattern(size, draw))
        for share, size, draw in zip(shares.tolist(), sizes, draws, strict=True)
    ]


def _pattern(gpus: int, draw: float) -> Pattern:
    if draw < 0.5 and gpus & (gpus - 1) == 0:
        return "halving_doubling"
    return "hierarchical_ring" if draw < 0.7 else PATTERNS[-1]
