# SPDX-License-Identifier: Apache-2.0
"""How many commodities of equal demand a link carries at a given congestion.

A link of rate r carries floor(level * r / w) commodities of demand w at congestion `level`. So only the levels
j * w / r with integer j matter.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sdn.planners.grouping import groups
from sdn.planners.model import SAME, Floats, Ints

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Levels:
    """The levels of congestion at which links of given rates take one more commodity of `demand`."""

    rate_bps: Floats
    """The rate of each link in bit/s, by ToR, spine and parallel link."""
    demand: float

    def room(self, level: float | Floats) -> Counts:
        """[ToR, spine]: how many commodities the parallel links carry at a congestion, one for all or one per ToR."""
        at = np.asarray(level, dtype=np.float64).reshape(-1, 1, 1)
        held: Counts = np.floor(at * self.rate_bps / self.demand * (1 + SAME)).astype(np.int64)
        return np.asarray(held.sum(axis=2), dtype=np.int64)

    def next(self, level: float) -> float:
        """The lowest level above this one at which some link carries one more."""
        live = self.rate_bps[self.rate_bps > 0]
        held = np.floor(level * live / self.demand * (1 + SAME))
        return float(np.min((held + 1) * self.demand / live, initial=np.inf))

    def least(self, commodities: Counts) -> Floats:
        """[ToR]: the lowest level at which a ToR's links carry this many commodities; infinity without a live link."""
        live = np.unique(self.rate_bps[self.rate_bps > 0])
        needed = np.flatnonzero(commodities > 0)
        level = np.zeros(len(self.rate_bps))
        if live.size <= 1:
            links = (self.rate_bps[needed] > 0).sum(axis=(1, 2))
            with np.errstate(divide="ignore"):
                level[needed] = np.ceil(commodities[needed] / links) * self.demand / live.max(initial=1)
            return level
        for tor in needed:
            mine = Levels(self.rate_bps[tor : tor + 1], self.demand)
            total = float(mine.rate_bps.sum())
            # A lower bound of the level; at it, rounding down loses less than one per link.
            level[tor] = commodities[tor] * self.demand / total if total else np.inf
            while np.isfinite(level[tor]) and mine.room(level[tor]).sum() < commodities[tor]:
                level[tor] = mine.next(float(level[tor]))
        return level


def dealt(rate_bps: Floats, tors: Ints, spines: Ints) -> Ints:
    """The parallel link of each commodity of one demand: those of a ToR and spine are spread in proportion to rates.

    `rate_bps` is [ToR, spine, parallel link]. The spread minimises the largest load per rate.
    """
    link = np.zeros(tors.size, dtype=np.int32)
    if rate_bps.shape[2] == 1:
        return link
    for members in groups(tors.astype(np.int64) * rate_bps.shape[1] + spines):
        rate = rate_bps[tors[members[0]], spines[members[0]]]
        with np.errstate(divide="ignore"):
            filled = np.arange(1, members.size + 1)[:, None] / rate  # the level of the nth commodity on each link
        link[members] = np.argsort(filled, axis=None, kind="stable")[: members.size] % rate.size
    return link
