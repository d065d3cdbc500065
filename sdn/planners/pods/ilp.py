# SPDX-License-Identifier: Apache-2.0
"""The optimum on three tiers by integer programming, as a reference: one program for both tiers, solved by HiGHS.

Commodities of one pair of leaves and one demand are interchangeable, so the program counts them: x[pair, agg, core] of
them take each path between switches, and y[.., link] each of several parallel links. The plan of `optimal` is the
start. It is the answer where it is proved, and where time runs out.
"""

import time
from collections import defaultdict
from dataclasses import replace

import numpy as np

from sdn.planners.bounds import Bound
from sdn.planners.congestion_program import CongestionProgram, Counts, Term
from sdn.planners.grouping import Index, groups
from sdn.planners.model import LOCAL, SAME, Commodities, Floats, Ints, tors_of
from sdn.planners.pods.model import PodClos, PodPlan
from sdn.planners.pods.optimal import optimal
from sdn.planners.spine_bisection import SEARCHED

_Bundle = tuple[int, ...]  # 0 below aggs or 1 above, 0 up or 1 down, and the two switches that it joins


def ilp(fabric: PodClos, commodities: Commodities, *, time_limit_s: float = 60.0, seed: int = 0) -> PodPlan:
    """A plan of least congestion, proved by integer programming, or the best found in time with the bound proved.

    It uses one thread, so that the result depends on the arguments alone while time suffices. `time_limit_s` limits
    branch and bound.
    """
    end = time.monotonic() + time_limit_s
    plan = replace(optimal(fabric, commodities), planner="ilp")
    if plan.proved:
        return plan
    program = _Program(fabric, commodities, np.flatnonzero(plan.agg >= 0))
    bound = Bound(plan.bound, plan.why)
    reached, counts, _ = program.solver.solve(bound.congestion, True, time_limit_s, seed)
    if reached is False:
        left_s = max(end - time.monotonic(), 0.0)
        _, counts, proved = program.solver.solve(bound.congestion, False, left_s, seed)
        bound = bound if proved <= bound.congestion else Bound(proved, SEARCHED)
    if counts is not None:
        found = PodPlan.of(fabric, commodities, "ilp", program.dealt(counts, plan.routes), bound)
        if found.congestion < plan.congestion * (1 - SAME):
            return found
    return replace(plan, bound=bound.congestion, why=bound.why)


class _Program:
    """The program for those commodities that have a path."""

    def __init__(self, fabric: PodClos, commodities: Commodities, which: Index) -> None:
        self._which = which
        leaves = np.stack(tors_of(fabric.low, commodities), axis=1)[which]
        demand = commodities.demand[which]
        fastest = max(fabric.low.link_rate_bps.max(), fabric.core_rate_bps.max())
        self.solver = CongestionProgram(float(demand.max() / fastest))
        kinds, self._kind, sizes = np.unique(
            np.column_stack((leaves, demand)), axis=0, return_inverse=True, return_counts=True
        )
        self._kind = self._kind.ravel()
        self._demand = demand
        self._ways: list[list[tuple[int, int, int]]] = []  # by kind: agg, core and column
        terms: defaultdict[_Bundle, list[Term]] = defaultdict(list)
        self._rates: dict[_Bundle, Floats] = {}
        self._bundles: list[list[_Bundle]] = []  # by column, from 1: what it crosses
        for (src, dst, size), count in zip(kinds, sizes.tolist(), strict=True):
            mine = []
            for agg, core, crossed in _paths(fabric, int(src), int(dst)):
                column = self.solver.column(count)
                mine.append((agg, core, column))
                self._bundles.append(list(crossed))
                self._rates |= crossed
                for bundle in crossed:
                    terms[bundle].append(Term(column, count, float(size)))
            self.solver.total([column for *_, column in mine], count)
            self._ways.append(mine)
        self._by_link = {bundle: self.solver.limit(self._rates[bundle], terms[bundle]) for bundle in terms}

    def dealt(self, counts: Counts, routes: Ints) -> Ints:
        """The routes, in place of those of the same commodities: interchangeable ones get the counted ones in order."""
        table = routes.copy()
        crossing: defaultdict[_Bundle, list[int]] = defaultdict(list)
        for kind, members in enumerate(groups(self._kind)):
            columns = np.array([column for *_, column in self._ways[kind]])
            chosen = np.repeat(np.arange(columns.size), counts[columns])
            for member, way in zip(members.tolist(), chosen.tolist(), strict=True):
                agg, core, column = self._ways[kind][way]
                table[self._which[member]] = (agg, 0, 0, core, 0, 0) if core != LOCAL else (agg, 0, 0, LOCAL, -1, -1)
                for bundle in self._bundles[column - 1]:
                    crossing[bundle].append(member)
        for bundle, crossed in crossing.items():
            live = np.flatnonzero(self._rates[bundle] > 0)
            place = 3 * bundle[0] + 1 + bundle[1]
            here = np.array(crossed)
            if live.size == 1:
                table[self._which[here], place] = live[0]
                continue
            for value in np.unique(self._demand[here]):
                shares = [self._by_link[bundle][link, float(value)] for link in live.tolist()]
                mine = here[self._demand[here] == value]
                table[self._which[mine], place] = np.repeat(live, counts[shares])
        return table


def _paths(fabric: PodClos, src: int, dst: int) -> list[tuple[int, int, dict[_Bundle, Floats]]]:
    """Agg, core and crossed bundles, with their rates, of every live path between two leaves."""
    near, far = int(fabric.leaf_pod[src]), int(fabric.leaf_pod[dst])
    low, high = fabric.low.link_rate_bps, fabric.core_rate_bps
    found = []
    for agg in range(fabric.aggs):
        below: dict[_Bundle, Floats] = {(0, 0, src, agg): low[src, agg], (0, 1, dst, agg): low[dst, agg]}
        if near == far:
            found.append((agg, LOCAL, below))
            continue
        for core in range(fabric.cores):
            above = {(1, 0, near, agg, core): high[near, agg, core], (1, 1, far, agg, core): high[far, agg, core]}
            found.append((agg, core, below | above))
    return [path for path in found if all(rates.max() > 0 for rates in path[2].values())]
