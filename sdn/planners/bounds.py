# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of congestion, each with its argument."""

import math
from dataclasses import dataclass

import numpy as np

from sdn.planners.grouping import Mask
from sdn.planners.levels import Levels
from sdn.planners.model import SAME, Clos, Commodities, Floats, Ints, tors_of


@dataclass(frozen=True, slots=True)
class Bound:
    """Every plan has at least this `congestion` (demand per bit/s); `why` is the argument."""

    congestion: float
    why: str


NOTHING = Bound(0.0, "no commodity needs a spine")
CUT_OFF = Bound(0.0, "no live spine joins the ToRs of any commodity that needs one")


def congestion_bound(fabric: Clos, commodities: Commodities) -> Bound:
    """The highest of the cheap bounds: the demand of each ToR, and of each pair of ToRs, over their live links.

    Commodities of equal demand are counted whole; for others see `weighted_tor`. O(commodities), and
    O(commodities * log) with unequal demands.
    """
    src, dst = tors_of(fabric, commodities)
    cross = src != dst
    if not cross.any():
        return NOTHING
    if fabric.uniform_links is None:
        cross &= joined(fabric, src, dst)
        if not cross.any():
            return CUT_OFF
    src, dst, demand = src[cross], dst[cross], commodities.demand[cross]
    if demand.min() == demand.max():
        return equal_demands(fabric, src, dst, float(demand[0]))
    return unequal_demands(fabric, src, dst, demand)


def joined(fabric: Clos, src: Ints, dst: Ints) -> Mask:
    """For each pair of ToRs, `src[i]` and `dst[i]`: whether some spine has a live link to both."""
    spines = np.packbits((fabric.link_rate_bps > 0).any(axis=2), axis=1)  # a matrix product would wait for threads
    return np.asarray((spines[src] & spines[dst]).any(axis=1))


def equal_demands(fabric: Clos, src: Ints, dst: Ints, demand: float) -> Bound:
    """The bound for commodities of one demand between different ToRs."""
    sent, taken = np.bincount(src, minlength=fabric.tors), np.bincount(dst, minlength=fabric.tors)
    if (uniform := fabric.uniform_links) is not None:
        links, rate = uniform[0].size, fabric.link_rate_bps[0, uniform[0][0], uniform[1][0]]
        busiest = max(int(sent.max()), int(taken.max()))
        return Bound(-(-busiest // links) * demand / float(rate), _OUT_AND_IN)
    levels = Levels(fabric.link_rate_bps, demand)
    tor = float(max(levels.least(sent).max(), levels.least(taken).max()))
    pair = pair_level(levels, src, dst, tor)
    return Bound(tor, _OUT_AND_IN) if pair <= tor * (1 + SAME) else Bound(pair, _PAIR)


_OUT_AND_IN = "what a ToR sends or takes must share its links to the spines"
_PAIR = "what goes between two ToRs must share the spines that both have live links to"


def pair_level(levels: Levels, src: Ints, dst: Ints, start: float) -> float:
    """The lowest level from `start` at which every pair's commodities fit between its ToRs, ignoring other pairs."""
    tors = levels.rate_bps.shape[0]
    pairs, commodities = np.unique(src.astype(np.int64) * tors + dst, return_counts=True)
    # Most ToRs have equal links, so the room between two of them is computed once per kind.
    rates, kind = np.unique(levels.rate_bps.reshape(tors, -1), axis=0, return_inverse=True)
    kind, alike = kind.ravel(), Levels(rates.reshape(-1, *levels.rate_bps.shape[1:]), levels.demand)
    kinds, which = np.unique(kind[pairs // tors] * len(rates) + kind[pairs % tors], return_inverse=True)
    most = np.zeros(kinds.size, dtype=np.int64)  # commodities of one pair
    np.maximum.at(most, which, commodities)
    a, b = kinds // len(rates), kinds % len(rates)
    level = start
    while True:
        room = alike.room(level)
        if (np.minimum(room[a], room[b]).sum(axis=1) >= most).all():
            return level
        level = levels.next(level)


def unequal_demands(fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> Bound:
    """The bound for any commodities between different ToRs."""
    most = 0.0
    for tors in (src, dst):
        order = np.lexsort((-demand, tors))
        groups, starts = np.unique(tors[order], return_index=True)
        for tor, mine in zip(groups, np.split(demand[order], starts[1:]), strict=True):
            rates = fabric.link_rate_bps[tor]
            most = max(most, weighted_tor(mine, rates[rates > 0]))
    total = np.bincount(src.astype(np.int64) * fabric.tors + dst, demand)
    pairs = np.flatnonzero(total)
    rate = fabric.link_rate_bps.sum(axis=2)
    shared = np.minimum(rate[pairs // fabric.tors], rate[pairs % fabric.tors]).sum(axis=1)
    pair = float((total[pairs] / shared).max())
    return Bound(most, _OUT_AND_IN) if pair <= most * (1 + SAME) else Bound(pair, _PAIR)


def weighted_tor(demand: Floats, rate: Floats) -> float:
    """A lower bound of the congestion of these demands, in descending order, on links of these rates.

    The maximum of: the mean; the largest demand on the fastest link; and on n equal links, for every j, the sum of the
    j + 1 smallest of the j n + 1 largest demands, because some j + 1 of these share a link (bounds for identical
    parallel machines, S. Martello and P. Toth, "Knapsack Problems", 1990, section 8.3). On equal links, bounds for
    integer demands are rounded up.
    """
    bound = max(demand.sum() / rate.sum(), demand[0] / rate.max())
    if rate.min() == rate.max():
        links, rate_bps = rate.size, float(rate[0])
        sums = np.concatenate(([0.0], np.cumsum(demand)))
        j = np.arange(1, (demand.size - 1) // links + 1)
        bound = max(bound, float(np.max(sums[j * links + 1] - sums[j * links - j], initial=0.0)) / rate_bps)
        if demand[0] < 2**53 and (demand == np.floor(demand)).all():
            unit = math.gcd(*map(int, np.unique(demand)))
            bound = max(bound, -(-int(demand.sum()) // (unit * links)) * unit / rate_bps)
    return float(bound)
