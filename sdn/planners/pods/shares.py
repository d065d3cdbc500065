# SPDX-License-Identifier: Apache-2.0
"""Equal demands where aggs have fewer links to cores than to leaves: each agg takes an equal share of every pod.

The aggs take their commodities one after the other. Of r that are left, the next one takes a r-th, rounded up or down,
of what each leaf and what each pod sends to other pods, and of what they take from there. A flow with these bounds is
whole wherever a fraction is (leaves within pods are nested, so the constraints are a network), and a r-th of every pair
of leaves is one. So no agg gets more than its part, rounded up, of a leaf and of a pod at the same time. Commodities
within a pod then fill up what leaves have left. For them such a flow need not exist, so a few orders are tried.
"""

import numpy as np

from sdn import _native
from sdn.planners.grouping import Index, Mask
from sdn.planners.levels import Counts
from sdn.planners.model import Ints
from sdn.planners.pods.model import PodClos

_Ranges = tuple[Counts, Counts]
_TRIES = 16


def aggs_by_shares(fabric: PodClos, src: Ints, dst: Ints) -> Ints | None:
    """An agg for each commodity of one demand between the different leaves `src` and `dst`; None where shares fail.

    For fabrics whose links are alike within each tier, and whose aggs have equally many.
    """
    links = (fabric.low.link_rate_bps[0] > 0).sum(axis=1)
    live = np.flatnonzero(links)
    if not src.size or (links[live] != links[live[0]]).any():
        return None
    across = fabric.leaf_pod[src] != fabric.leaf_pod[dst]
    tries = 1 if across.all() else _TRIES
    found = (_dealt(fabric, src, dst, across, live, links, np.random.default_rng(turn)) for turn in range(tries))
    return next((agg for agg in found if agg is not None), None)


def _dealt(
    fabric: PodClos, src: Ints, dst: Ints, across: Mask, live: Index, links: Counts, rng: np.random.Generator
) -> Ints | None:
    """`aggs_by_shares` with the pairs of leaves in an order drawn by `rng`."""
    agg = np.full(src.size, -1, dtype=np.int32)
    between, within = (_Left(fabric, src, dst, np.flatnonzero(which), rng) for which in (across, ~across))
    busiest = max(int((between.leaves(way) + within.leaves(way)).max()) for way in (0, 1))
    room = -(-busiest // int(links.sum())) * int(links[live[0]])  # what an agg may take of a leaf
    for turn, number in enumerate(live.tolist()):
        rest = live.size - turn
        totals = [between.leaves(way) + within.leaves(way) for way in (0, 1)]
        taken = between.take(rest, [_part(between.leaves(way), rest) for way in (0, 1)], pods=True)
        if taken is None:
            return None
        agg[taken] = number
        carried = [np.bincount(leaves[taken], minlength=fabric.low.tors) for leaves in (src, dst)]
        left = [
            (np.maximum(total - (rest - 1) * room - own, 0), room - own)
            for total, own in zip(totals, carried, strict=True)
        ]
        filled = within.take(rest, left, pods=False)
        if filled is None:
            return None
        agg[filled] = number
    return agg


class _Left:
    """Commodities that have no agg yet, by pair of leaves."""

    def __init__(self, fabric: PodClos, src: Ints, dst: Ints, which: Index, rng: np.random.Generator) -> None:
        self._tors, self._pod, self._pods = fabric.low.tors, fabric.leaf_pod, fabric.pods
        code = src[which].astype(np.int64) * self._tors + dst[which]
        self._order = which[np.argsort(code, kind="stable")]
        pairs, count = np.unique(code, return_counts=True)
        order = rng.permutation(pairs.size)
        pairs, self._count, self._next = pairs[order], count[order], (np.cumsum(count) - count)[order]
        self._ends = (pairs // self._tors).astype(np.int32), (pairs % self._tors).astype(np.int32)

    def leaves(self, way: int) -> Counts:
        """What each leaf sends (0) or takes (1)."""
        return np.bincount(self._ends[way], self._count, minlength=self._tors).astype(np.int64)

    def take(self, rest: int, leaves: list[_Ranges], *, pods: bool) -> Index | None:
        """Takes one share of `rest`, within these ranges of leaves and, if asked, an equal part of each pod."""
        groups = [
            (self._pod, _part(np.bincount(self._pod, self.leaves(way), minlength=self._pods).astype(np.int64), rest))
            for way in (0, 1)
        ]
        share = _native.bounded_flow(
            *self._ends,
            _part(self._count, rest) if pods else (np.zeros_like(self._count), self._count),
            leaves[0],
            leaves[1],
            groups[0] if pods else None,
            groups[1] if pods else None,
        )
        if share is None:
            return None
        which = np.repeat(self._next - np.cumsum(share) + share, share) + np.arange(share.sum())
        self._next = self._next + share
        self._count = self._count - share
        return np.asarray(self._order[which])


def _part(count: Counts, rest: int) -> _Ranges:
    """A share of one of `rest` that are equal: rounded down and up."""
    return count // rest, -(-count // rest)
