# SPDX-License-Identifier: Apache-2.0
"""Equal demands when ToRs differ in their live links: colouring with some colours forbidden at some vertices.

The general problem is NP-hard, and König's theorem does not hold. These steps are used:

1. A lower bound of the congestion: commodities against live links, per ToR and per pair of ToRs.
2. Chains that avoid dead links, starting without any route. Mostly they reach the bound, which proves the plan optimal.
3. Otherwise spines are *uneven* (their links differ between ToRs) or *even*. Uneven spines take commodities one after
   the other: a flow with lower bounds determines, for each pair of ToRs, how many commodities the spine takes, such
   that no ToR, and no pair, keeps more than the remaining spines can carry. The even spines take the rest, for which
   colouring is exact.

With one uneven spine a level of congestion is possible exactly when the flow exists, so the first level with a flow is
the optimum. With links of one rate, some of which a single ToR lacks, the flows always exist, so the bound is reached:
a dead link is a commodity from that ToR to itself, and König's theorem counts it like any other. With several uneven
spines and ToRs, a plan that reaches the bound is proved optimal; otherwise the level is raised and a gap remains.
"""

from dataclasses import dataclass

import numpy as np

from sdn import _native
from sdn.planners.bounds import Bound, equal_demands
from sdn.planners.grouping import Index, Mask
from sdn.planners.levels import Counts, Levels, dealt
from sdn.planners.model import SAME, Clos, Ints

_TRIES = 8  # chains that are compared; shorter ones meet fewer dead links
_LEVELS = 64  # levels above the bound that are tried before the best plan so far is used
_EFFORT = 2_000_000  # paths that single moves may examine


def restricted(fabric: Clos, src: Ints, dst: Ints, demand: float) -> tuple[Ints, Ints, Ints, Bound]:
    """Spine, up, down and a bound, for commodities of one demand, each between two ToRs that some spine joins."""
    problem = _Problem.of(fabric, src, dst, demand)
    bound = equal_demands(fabric, src, dst, demand)
    best = problem.by_chains() if problem.one_rate else None
    level = bound.congestion
    for _ in range(_LEVELS):
        if best is not None and best.congestion <= level * (1 + SAME):
            break
        answer, ruled_out = problem.by_shares(level)
        if ruled_out and level <= bound.congestion * (1 + SAME):
            bound = Bound(problem.levels.next(level), "what the other spines cannot hold does not fit on an uneven one")
        if best is None or answer.congestion < best.congestion:
            best = answer
        level = problem.levels.next(level)
    assert best is not None  # because _LEVELS is not 0
    up, down = (problem.link_at[tors, best.spine, rank] for tors, rank in ((src, best.up), (dst, best.down)))
    return best.spine, up, down, bound


@dataclass(frozen=True, eq=False, slots=True)
class _Answer:
    """A plan in which links are given by rank."""

    spine: Ints
    up: Ints
    down: Ints
    congestion: float


@dataclass(frozen=True, eq=False, slots=True)
class _Problem:
    """Commodities of one demand. Parallel links are ranked by rate, the fastest first, so that dead ones come last."""

    levels: Levels
    """By [ToR, spine, rank]."""
    link_at: Ints
    """[ToR, spine, rank]: the parallel link."""
    src: Ints
    dst: Ints
    tors: Ints
    """ToRs that send or receive."""
    even: Mask
    """Per spine: whether all of `tors` have the same links to it."""
    one_rate: bool
    """Whether all their live links are equally fast."""

    @classmethod
    def of(cls, fabric: Clos, src: Ints, dst: Ints, demand: float) -> "_Problem":
        link_at = np.argsort(-fabric.link_rate_bps, axis=2, kind="stable").astype(np.int32)
        rate = np.take_along_axis(fabric.link_rate_bps, link_at, axis=2)
        tors = np.unique(np.concatenate((src, dst)))
        mine = rate[tors]
        live = mine[mine > 0]
        return cls(
            levels=Levels(rate, demand),
            link_at=link_at,
            src=src,
            dst=dst,
            tors=tors,
            even=(mine == mine[0]).all(axis=(0, 2)),
            one_rate=bool((live == live[0]).all()),
        )

    def by_chains(self) -> _Answer:
        """Colours all commodities by chains that avoid dead links. Requires links of one rate."""
        rate = self.levels.rate_bps
        spine_of, rank_of = np.nonzero((rate[self.tors] > 0).any(axis=0))
        colouring = _native.Colouring(rate.shape[0], spine_of.size)
        for tor, colour in np.argwhere(rate[self.tors][:, spine_of, rank_of] == 0):
            for way in (0, 1):
                colouring.forbid(way, int(self.tors[tor]), int(colour))
        colour = colouring.colours_of(colouring.insert_all(self.src, self.dst, tries=_TRIES))[0]
        spine, rank = spine_of[colour].astype(np.int32), rank_of[colour].astype(np.int32)
        return self._answer(spine, rank, rank)

    def by_shares(self, level: float) -> tuple[_Answer, bool]:
        """Tries a congestion of `level`: uneven spines take their part, the even ones are coloured.

        If that fails, the remaining commodities use the least congested paths. Also returns whether no plan can have
        this level. First every ToR is limited to the level that it needs itself, which helps ToRs with little load.
        """
        sent, taken = (np.bincount(tors, minlength=len(self.link_at)) for tors in (self.src, self.dst))
        own = self.levels.room(self.levels.least(sent)), self.levels.room(self.levels.least(taken))
        shares = _Shares(self.src, self.dst, *own)
        if not self._take(shares):
            common = self.levels.room(level)
            shares = _Shares(self.src, self.dst, common, common)
            if not self._take(shares):
                return self._finished(shares, level), shares.taken == 0
        return self._coloured(shares, level), False

    def _take(self, shares: "_Shares") -> bool:
        """Each uneven spine takes its part, those with the least room first. False when one cannot."""
        room = shares.room_out[self.tors].sum(axis=0)
        uneven = np.flatnonzero(~self.even & (room > 0))
        return all(shares.take(int(spine)) for spine in uneven[np.argsort(room[uneven], kind="stable")])

    def _coloured(self, shares: "_Shares", level: float) -> _Answer:
        """Colours the remaining commodities with the links of the even spines."""
        spine, up, down = self._taken(shares)
        rate = self.levels.rate_bps[self.tors[0]]
        spine_of, rank_of = np.nonzero((rate > 0) & self.even[:, None])
        rates = rate[spine_of, rank_of]
        if rates.size and (rates != rates[0]).any():
            # A link has as many colours as it carries commodities; colours that load a link least come first.
            slots = np.floor(level * rates / self.levels.demand * (1 + SAME)).astype(np.int64)
            of = np.repeat(np.arange(rates.size), slots)
            nth = np.arange(of.size) - np.repeat(np.cumsum(slots) - slots, slots) + 1
            of = of[np.argsort(nth / rates[of], kind="stable")]
            spine_of, rank_of = spine_of[of], rank_of[of]
        left = np.flatnonzero(spine < 0)
        if left.size:
            colour = _native.colour(len(self.link_at), self.src[left], self.dst[left], spine_of.size)
            spine[left] = spine_of[colour]
            up[left] = down[left] = rank_of[colour]
        return self._answer(spine, up, down)

    def _finished(self, shares: "_Shares", level: float) -> _Answer:
        """Puts the remaining commodities on the least congested paths one by one, then moves those above the level."""
        spine, up, down = self._taken(shares)
        routing = _native.Routing(self.levels.rate_bps)
        kept, left = np.flatnonzero(spine >= 0), np.flatnonzero(spine < 0)
        demand = np.full(kept.size, self.levels.demand)
        routing.insert_all(self.src[kept], self.dst[kept], demand, spine[kept], up[kept], down[kept])
        for i in left:
            routing.insert(int(self.src[i]), int(self.dst[i]), self.levels.demand)
        routing.improve(level, effort=_EFFORT)
        both = np.concatenate((kept, left))  # a new Routing numbers commodities in order of arrival
        spine[both], up[both], down[both] = routing.routes(np.arange(both.size, dtype=np.int32))
        return self._answer(spine, up, down)

    def _taken(self, shares: "_Shares") -> tuple[Ints, Ints, Ints]:
        """Spine, up and down of the commodities that uneven spines have taken; -1 for the others."""
        spine = shares.spine
        up, down = np.full_like(spine, -1), np.full_like(spine, -1)
        for at in np.unique(spine[spine >= 0]):
            mine = np.flatnonzero(spine == at)
            up[mine] = dealt(self.levels.rate_bps, self.src[mine], spine[mine])
            down[mine] = dealt(self.levels.rate_bps, self.dst[mine], spine[mine])
        return spine, up, down

    def _answer(self, spine: Ints, up: Ints, down: Ints) -> _Answer:
        rate = self.levels.rate_bps
        congestion = 0.0
        for tors, rank in ((self.src, up), (self.dst, down)):
            links = np.ravel_multi_index((tors, spine, rank), rate.shape)
            count = np.bincount(links, minlength=rate.size)
            used = count > 0
            congestion = max(congestion, float((count[used] * self.levels.demand / rate.ravel()[used]).max()))
        return _Answer(spine, up, down, congestion)


class _Shares:
    """The remaining commodities by pair of ToRs, while spines take theirs."""

    def __init__(self, src: Ints, dst: Ints, room_out: Counts, room_in: Counts) -> None:
        tors = len(room_out)
        code = src.astype(np.int64) * tors + dst
        self._by_pair: Index = np.argsort(code, kind="stable")
        pairs, self._next, self._count = np.unique(code[self._by_pair], return_index=True, return_counts=True)
        self._out, self._in = (pairs // tors).astype(np.int32), (pairs % tors).astype(np.int32)
        self.room_out, self.room_in = room_out, room_in
        self._left: Mask = np.asarray((room_out + room_in).any(axis=0))  # per spine: still to come
        self.spine = np.full(src.size, -1, dtype=np.int32)
        self.taken = 0
        """The number of spines that have taken their part."""

    def take(self, spine: int) -> bool:
        """Gives `spine` as much as fits, at least what the others cannot carry. False when that does not fit."""
        rest = self._left.copy()
        rest[spine] = False
        out, into = self.room_out, self.room_in
        elsewhere = np.minimum(out[self._out][:, rest], into[self._in][:, rest]).sum(axis=1)
        sent = np.bincount(self._out, self._count, minlength=len(out)).astype(np.int64)
        came = np.bincount(self._in, self._count, minlength=len(into)).astype(np.int64)
        share = _native.bounded_flow(
            self._out,
            self._in,
            (np.maximum(self._count - elsewhere, 0), self._count),
            (np.maximum(sent - out[:, rest].sum(axis=1), 0), out[:, spine]),
            (np.maximum(came - into[:, rest].sum(axis=1), 0), into[:, spine]),
        )
        if share is None:
            return False
        which = np.repeat(self._next - np.cumsum(share) + share, share) + np.arange(share.sum())
        self.spine[self._by_pair[which]] = spine
        self._next = self._next + share
        self._count = self._count - share
        self._left = rest
        self.taken += 1
        return True
