# SPDX-License-Identifier: Apache-2.0
"""The optimum by integer programming, as a reference: commodities aggregated by pair of ToRs, solved by HiGHS.

Commodities of one pair of ToRs and one demand are interchangeable, so the program counts them: x[pair, spine] of them
use each spine, y[ToR, spine, link] each of several parallel links, and the largest load per rate is minimised. This
needs about a hundred times fewer unknowns than one per commodity and path, with which solvers fail from about 800
commodities on. When all demands are equal, equal spines are counted together too: see `spine_bisection`.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sdn.planners.bounds import Bound, congestion_bound, joined
from sdn.planners.greedy import greedy
from sdn.planners.grouping import Mask, groups
from sdn.planners.model import LOCAL, SAME, UNREACHABLE, Clos, Commodities, Floats, Ints, Plan, tors_of
from sdn.planners.order import largest_first
from sdn.planners.spine_bisection import SEARCHED, bisected

_Counts = npt.NDArray[np.int64]
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
    reached, counts, _ = program.solve(bound.congestion, True, time_limit_s, seed)
    if reached is False:
        _, counts, proved = program.solve(bound.congestion, False, max(end - time.monotonic(), 0.0), seed)
        bound = bound if proved <= bound.congestion else Bound(proved, SEARCHED)
    return None if counts is None else program.dealt(counts), bound


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """lower <= sum of values[i] * column[columns[i]] <= upper."""

    columns: list[int]
    values: list[float]
    lower: float
    upper: float


class _Program:
    """The integer program. Column 0 is the congestion in units of the largest demand on the fastest link."""

    def __init__(self, fabric: Clos, src: Ints, dst: Ints, demand: Floats) -> None:
        self._fabric = fabric
        self._src, self._dst = src, dst
        self._unit = float(demand.max() / fabric.link_rate_bps.max())
        kinds = np.stack((src, dst, demand), axis=1)
        self._kinds, self._kind, self._sizes = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
        self._kind = self._kind.ravel()
        live = fabric.link_rate_bps > 0
        reach: Mask = np.asarray(live.any(axis=2))
        self._rows: list[_Row] = []
        self._most: list[float] = [np.inf]  # the upper bound of each column
        self._by_spine: dict[tuple[int, int], int] = {}  # (kind, spine) -> column
        for kind, (tor, goal, _) in enumerate(self._kinds):
            spines = np.flatnonzero(reach[int(tor)] & reach[int(goal)])
            columns = [self._column(self._sizes[kind]) for _ in spines]
            self._by_spine.update({(kind, int(spine)): column for spine, column in zip(spines, columns, strict=True)})
            self._rows.append(_Row(columns, [1.0] * len(columns), self._sizes[kind], self._sizes[kind]))
        self._by_link: dict[tuple[int, int, int, int, float], int] = {}  # way, ToR, spine, link, demand -> column
        for way in (0, 1):
            for tor in np.unique(self._kinds[:, way]).astype(int):
                mine = np.flatnonzero(self._kinds[:, way] == tor)
                for spine in np.flatnonzero(reach[tor]).tolist():
                    self._limit(way, int(tor), spine, [k for k in mine.tolist() if (k, spine) in self._by_spine])

    def _column(self, most: float) -> int:
        self._most.append(float(most))
        return len(self._most) - 1

    def _limit(self, way: int, tor: int, spine: int, kinds: list[int]) -> None:
        """The links between a ToR and a spine carry no more than their rates allow."""
        if not kinds:
            return
        rate = self._fabric.link_rate_bps[tor, spine] * self._unit  # the demand of congestion 1 on this link
        links = np.flatnonzero(rate > 0)
        if links.size == 1:
            self._load([(self._by_spine[kind, spine], float(self._kinds[kind, 2])) for kind in kinds], rate[links[0]])
            return
        demands = sorted({float(self._kinds[kind, 2]) for kind in kinds})
        for demand in demands:
            alike = [kind for kind in kinds if self._kinds[kind, 2] == demand]
            total = float(self._sizes[alike].sum())
            for link in links.tolist():
                self._by_link[way, tor, spine, link, demand] = self._column(total)
            columns = [self._by_link[way, tor, spine, link, demand] for link in links.tolist()]
            spread = [self._by_spine[kind, spine] for kind in alike]
            self._rows.append(_Row(columns + spread, [1.0] * len(columns) + [-1.0] * len(spread), 0.0, 0.0))
        for link in links.tolist():
            self._load([(self._by_link[way, tor, spine, link, demand], demand) for demand in demands], rate[link])

    def _load(self, terms: list[tuple[int, float]], rate: float) -> None:
        """Limits the load of these columns on a link to its rate times the congestion."""
        columns, demands = [column for column, _ in terms], [demand for _, demand in terms]
        scale = max(demands)
        self._rows.append(_Row([*columns, 0], [d / scale for d in demands] + [-rate / scale], -np.inf, 0.0))

    def solve(
        self, congestion: float, exactly: bool, time_limit_s: float, seed: int
    ) -> tuple[bool | None, _Counts | None, float]:
        """Solves for a plan of exactly this congestion, or of the least congestion from there.

        Returns whether there is one, None if time ran out first; the columns of the best plan found, if any; and the
        congestion proved necessary.
        """
        import highspy  # imported here, because loading it takes as long as many plans

        least = congestion / self._unit
        first = np.eye(1, len(self._most)).ravel()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._most), len(self._rows)
        lp.col_cost_ = 0 * first if exactly else first
        lp.col_lower_ = first * least * (1 - SAME)
        lp.col_upper_ = np.array([least * (1 + SAME) if exactly else np.inf, *self._most[1:]])
        lp.row_lower_ = np.array([row.lower for row in self._rows])
        lp.row_upper_ = np.array([row.upper for row in self._rows])
        lp.integrality_ = [highspy.HighsVarType.kContinuous] + [highspy.HighsVarType.kInteger] * (lp.num_col_ - 1)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(row.columns) for row in self._rows])
        lp.a_matrix_.index_ = np.concatenate([row.columns for row in self._rows])
        lp.a_matrix_.value_ = np.concatenate([row.values for row in self._rows])
        solver = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("time_limit", time_limit_s),
            ("threads", 1),
            ("random_seed", seed),
            ("mip_rel_gap", SAME),
        ):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        info, status = solver.getInfo(), solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return False, None, congestion
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        counts = np.rint(solver.getSolution().col_value).astype(np.int64) if found else None
        if exactly:
            return found or None, counts, congestion
        proved = info.mip_dual_bound * self._unit if np.isfinite(info.mip_dual_bound) else 0.0
        return status == highspy.HighsModelStatus.kOptimal or None, counts, proved

    def dealt(self, counts: _Counts) -> _Routes:
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
                for one in np.unique(demand):
                    columns = [self._by_link[way, tor, at, k, float(one)] for k in live]
                    link[members[demand == one]] = np.repeat(live, counts[columns])
            ranks.append(link)
        return spine, ranks[0], ranks[1]
