# SPDX-License-Identifier: Apache-2.0
"""Orders of commodities, for planners that take an `order`."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sdn.planners.grouping import occurrences
from sdn.planners.model import Clos, Commodities, Floats, Ints, tors_of


def crux(fabric: Clos, commodities: Commodities, work: Mapping[int, float] | None = None) -> Ints:
    """Jobs in descending order of GPU intensity, as Crux selects paths (J. Cao et al., SIGCOMM 2024, section 4.1).

    The intensity of a job is its `work` per iteration (in any one unit, say FLOP; equal for all by default) divided by
    the time that its worst link is busy. Crux measures that time on the links used. Here no path is chosen yet, so it
    is the least possible time: over the job's NICs, and over the links of its ToRs together. Jobs of equal intensity
    are ordered by number, commodities of one job as given. Raises KeyError for a job without work.
    """
    busy = busy_times(fabric, commodities)
    jobs = np.unique(commodities.job)
    intensity = {
        job: (1.0 if work is None else work[job]) / busy[job] if busy[job] else math.inf for job in jobs.tolist()
    }
    first = sorted(intensity, key=lambda job: (-intensity[job], job))
    place = {job: i for i, job in enumerate(first)}
    return _by(np.array([place[int(job)] for job in jobs], dtype=np.int64)[np.searchsorted(jobs, commodities.job)])


def c4p(fabric: Clos, commodities: Commodities) -> Ints:
    """Jobs in order of arrival, as C4P places them (J. Dong et al., HPCA 2025: C4, section on C4P).

    A job arrives with its first commodity. Within a job source ToRs alternate, so that its connections spread evenly
    over the paths, in whatever order they were opened.
    """
    src, _ = tors_of(fabric, commodities)
    _, first, job = np.unique(commodities.job, return_index=True, return_inverse=True)
    arrival = np.argsort(np.argsort(first))[job]
    turn = occurrences(arrival.astype(np.int64) * fabric.tors + src)  # of its job, at its ToR
    return np.lexsort((src, turn, arrival)).astype(np.int32)


def largest_first(commodities: Commodities) -> Ints:
    """Commodities by demand, the largest first."""
    return _by(-commodities.demand)


def busy_times(fabric: Clos, commodities: Commodities) -> dict[int, float]:
    """For each job, the least time that its worst link is busy, in demand per bit/s."""
    src, dst = tors_of(fabric, commodities)
    cross = src != dst
    jobs, job = np.unique(commodities.job, return_inverse=True)
    busy = np.zeros(jobs.size)
    tor_rate = fabric.link_rate_bps.sum(axis=(1, 2))
    for at, rate, mine in (
        (commodities.src, fabric.nic_rate_bps, np.full_like(cross, True)),
        (commodities.dst, fabric.nic_rate_bps, np.full_like(cross, True)),
        (src, tor_rate, cross),
        (dst, tor_rate, cross),
    ):
        keys, inverse = np.unique(job[mine].astype(np.int64) * rate.size + at[mine], return_inverse=True)
        demand = np.bincount(inverse, commodities.demand[mine], minlength=keys.size).astype(np.float64)
        with np.errstate(divide="ignore"):
            np.maximum.at(busy, keys // rate.size, demand / rate[keys % rate.size])
    return dict(zip(jobs.tolist(), busy.tolist(), strict=True))


def _by(key: npt.NDArray[np.int64] | Floats) -> Ints:
    return np.argsort(key, kind="stable").astype(np.int32)
