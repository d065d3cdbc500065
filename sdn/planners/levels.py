# SPDX-License-Identifier: Apache-2.0
"""How many equal commodities links can carry at a given congestion: the arithmetic of bounds and exact plans.

Commodities of one demand w fit whole or not at all, so a link of rate r holds floor(level * r / w) of them at
congestion `level`, and only the levels j * w / r, j whole, matter.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sdn.planners.grouping import groups
from sdn.planners.model import SAME, Floats, Ints

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Levels:
    """Links of given rates under commodities of one demand."""

    rate_bps: Floats
    """[ToR, spine, parallel link]."""
    demand: float

    def room(self, level: float | Floats) -> Counts:
        """[ToR, spine]: how many commodities all parallel links hold at a congestion, one for all or one per ToR."""
        at = np.asarray(level, dtype=np.float64).reshape(-1, 1, 1)
        held: Counts = np.floor(at * self.rate_bps / self.demand * (1 + SAME)).astype(np.int64)
        return np.asarray(held.sum(axis=2), dtype=np.int64)

    def next(self, level: float) -> float:
        """The least level above this one at which some link holds one more."""
        live = self.rate_bps[self.rate_bps > 0]
        held = np.floor(level * live / self.demand * (1 + SAME))
        return float(np.min((held + 1) * self.demand / live, initial=np.inf))

    def least(self, commodities: Counts) -> Floats:
        """[ToR]: the least level at which a ToR's links hold so many commodities. Infinity where none lives."""
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
            # No less than this would do; at it, fewer than one per link are lost to rounding down.
            level[tor] = commodities[tor] * self.demand / total if total else np.inf
            while np.isfinite(level[tor]) and mine.room(level[tor]).sum() < commodities[tor]:
                level[tor] = mine.next(float(level[tor]))
        return level


def dealt(rate_bps: Floats, tors: Ints, spines: Ints) -> Ints:
    """The parallel link of each commodity of one demand, those at a ToR and a spine dealt out evenly for the rates.

    `rate_bps` is by [ToR, spine, parallel link]; no link gets more than any other way of dealing would force on one.
    """
    link = np.zeros(tors.size, dtype=np.int32)
    if rate_bps.shape[2] == 1:
        return link
    for members in groups(tors.astype(np.int64) * rate_bps.shape[1] + spines):
        rate = rate_bps[tors[members[0]], spines[members[0]]]
        with np.errstate(divide="ignore"):
            filled = np.arange(1, members.size + 1)[:, None] / rate  # by the nth commodity on each link
        link[members] = np.argsort(filled, axis=None, kind="stable")[: members.size] % rate.size
    return link
