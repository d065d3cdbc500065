# SPDX-License-Identifier: Apache-2.0
"""The optimum by integer programming, as a reference: commodities aggregated by pair of ToRs, solved by HiGHS.

Commodities of one pair of ToRs and one demand are interchangeable, so the program counts them: x[pair, spine] of them
use each spine, y[ToR, spine, link] each of several parallel links, and the largest load per rate is minimised. This
needs about a hundred times fewer unknowns than one per commodity and path, with which solvers fail from about 800
commodities on. When all demands are equal, equal spines are counted together too: see `spine_bisection`.
"""

import time

import numpy as np

from sdn.planners.bounds import Bound, congestion_bound, joined
from sdn.planners.congestion_program import CongestionProgram, Counts, Term
from sdn.planners.greedy import greedy
from sdn.planners.grouping import Mask, groups
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, tors_of
from sdn.planners.order import largest_first
from sdn.planners.spine_bisection import SEARCHED, bisected

_Routes = tuple[Ints, Ints, Ints]  # spine, up and down of each commodity


def ilp(fabric: Clos, commodities: Commodities, *, time_limit_s: float = 60.0, seed: int = 0) -> Plan:
    """A plan of least congestion, proved by integer programming, or the best found in time with the bound proved.

    It takes any demands, rates and failures. It first tests whether the lower bound can be reached, which is much
    faster than minimising; with equal demands it then tests the next level, and so on.

    *Equal demands, all ToRs alike at every spine:* linear programs only, with integer vertices, one for each bisection
    of the spines. With links of one rate the plan is optimal for every ToR at once.

    *Equal demands, single links dead or of several rates:* branch and bound over classes of alike spines, then the same
    within each class.

    *Unequal demands:* branch and bound over single spines and links.

    It uses one thread, so that the result depends on the arguments alone while time suffices. `time_limit_s` limits
    branch and bound. When that finds no plan in time, the plan is that of `greedy`, the largest demands first.
    """
    src, dst = tors_of(fabric, commodities)
    cross = src != dst
    across = np.flatnonzero(cross & joined(fabric, src, dst))
    spine = np.where(cross, UNREACHABLE, LOCAL).astype(np.int32)
    up, down = np.full_like(spine, -1), np.full_like(spine, -1)
    bound = congestion_bound(fabric, commodities)
    if across.size:
        demand = commodities.demand[across]
        solved = bisected if demand.min() == demand.max() else _minimised
        routes, bound = solved(fabric, src[across], dst[across], demand, bound, time_limit_s, seed)
        if routes is None:
            plan = greedy(fabric, commodities, order=largest_first(commodities))
            return Plan(fabric, commodities, "ilp", plan.spine, plan.up, plan.down, bound.congestion, bound.why)
        spine[across], up[across], down[across] = routes
    return Plan(fabric, commodities, "ilp", spine, up, down, bound.congestion, bound.why)


def _minimised(
    fabric: Clos, src: Ints, dst: Ints, demand: Floats, bound: Bound, time_limit_s: float, seed: int
) -> tuple[_Routes | None, Bound]:
    """For any demands: the best plan, or the best found in time, or None; and the bound that is proved."""
    end = time.monotonic() + time_limit_s
    program = _Program(fabric, src, dst, demand)
    reached, counts, _ = program.program.solve(bound.congestion, True, time_limit_s, seed)
    if reached is False:
        left_s = max(end - time.monotonic(), 0.0)
        _, counts, proved = program.program.solve(bound.congestion, False, left_s, seed)
        bound = bound if proved <= bound.congestion else Bound(proved, SEARCHED)
    return None if counts is None else program.dealt(counts), bound


class _Program:
    """The program of a fabric of two tiers."""

    def __init__(self, fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> None:
        self._fabric = fabric
        self._src, self._dst = src, dst
        self.program = CongestionProgram(float(demand.max() / fabric.link_rate_bps.max()))
        kinds = np.stack((src, dst, demand), axis=1)
        self._kinds, self._kind, sizes = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
        self._kind = self._kind.ravel()
        live = fabric.link_rate_bps > 0
        reach: Mask = np.asarray(live.any(axis=2))
        self._by_spine: dict[tuple[int, int], int] = {}  # (kind, spine) -> column
        for kind, (tor, goal, _) in enumerate(self._kinds):
            spines = np.flatnonzero(reach[int(tor)] & reach[int(goal)])
            columns = [self.program.column(sizes[kind]) for _ in spines]
            self._by_spine.update({(kind, int(spine)): column for spine, column in zip(spines, columns, strict=True)})
            self.program.total(columns, sizes[kind])
        self._by_link: dict[tuple[int, int, int, int, float], int] = {}  # way, ToR, spine, link, demand -> column
        for way in (0, 1):
            for tor in np.unique(self._kinds[:, way]).astype(int):
                mine = np.flatnonzero(self._kinds[:, way] == tor)
                for spine in np.flatnonzero(reach[tor]).tolist():
                    terms = [
                        Term(self._by_spine[kind, spine], float(sizes[kind]), float(self._kinds[kind, 2]))
                        for kind in mine.tolist()
                        if (kind, spine) in self._by_spine
                    ]
                    for (link, value), column in self.program.limit(fabric.link_rate_bps[tor, spine], terms).items():
                        self._by_link[way, int(tor), spine, link, value] = column

    def dealt(self, counts: Counts) -> _Routes:
        """Spine, up and down of each commodity: interchangeable ones get the counted routes in their order."""
        spine = np.full(self._kind.size, -1, dtype=np.int32)
        for kind, members in enumerate(groups(self._kind)):
            spines = [s for s in range(self._fabric.spines) if (kind, s) in self._by_spine]
            spine[members] = np.repeat(spines, [counts[self._by_spine[kind, s]] for s in spines])
        ranks = []
        for way, tors in enumerate((self._src, self._dst)):
            link = np.zeros_like(spine)
            for members in groups(tors.astype(np.int64) * self._fabric.spines + spine):
                tor, at = int(tors[members[0]]), int(spine[members[0]])
                live = np.flatnonzero(self._fabric.link_rate_bps[tor, at] > 0).tolist()
                if len(live) == 1:
                    link[members] = live[0]
                    continue
                demand = self._kinds[self._kind[members], 2]
                for value in np.unique(demand):
                    columns = [self._by_link[way, tor, at, k, float(value)] for k in live]
                    link[members[demand == value]] = np.repeat(live, counts[columns])
            ranks.append(link)
        return spine, ranks[0], ranks[1]
