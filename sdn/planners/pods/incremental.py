# SPDX-License-Identifier: Apache-2.0
"""`optimal` on three tiers, kept up while commodities arrive and depart: two of `sdn.planners.Incremental`.

One plans between leaves and aggs, the other between aggs and cores. An arrival moves a chain of commodities to other
aggs, as on two tiers. It and each of these then arrives at the cores of its agg, and moves a chain there.

Where dead links leave an agg without a way to the other pod, a chain may lead a commodity there. It then takes the
least congested path, which need not be optimal.
"""

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

import numpy as np

from sdn.planners import incremental
from sdn.planners.incremental import Incremental, Route
from sdn.planners.model import LOCAL, SAME, UNREACHABLE, Commodities, Floats, Ints, Plan, tors_of
from sdn.planners.pods.bounds import pod_bound
from sdn.planners.pods.model import PodClos, PodPlan, lifted
from sdn.planners.pods.optimal import improved, optimal

_REPAIR_EFFORT = 100_000  # paths that single moves examine after a failure: a few milliseconds


class PodRoute(NamedTuple):
    """The links that one commodity takes: its number, and the columns of a `PodPlan`."""

    commodity: int
    agg: int
    up: int
    down: int
    core: int
    core_up: int
    core_down: int


class IncrementalPods:
    """Commodities on a fabric of three tiers, each with a number that is never reused.

    `max_reroutes` limits how many others an arrival or departure may reroute, at both tiers together; None: as many as
    the chains need. A commodity that a chain has moved to another agg, which dead links leave without a way, moves once
    more.
    """

    def __init__(
        self, fabric: PodClos, commodities: Commodities | None = None, *, max_reroutes: int | None = None
    ) -> None:
        """Starts from the optimal plan for `commodities`, numbered from 0, or without any."""
        self.max_reroutes = max_reroutes
        self._left: int | None = None  # reroutes that the present change may still make
        asked = Commodities.of((), ()) if commodities is None else commodities
        self._load(optimal(fabric, asked), range(len(asked)))
        self._next = len(asked)

    @classmethod
    def of(cls, plan: PodPlan, *, max_reroutes: int | None = None) -> "IncrementalPods":
        """Starts from any plan; its commodities are numbered from 0."""
        made = cls(plan.fabric, max_reroutes=max_reroutes)
        made._load(plan, range(len(plan.commodities)))
        made._next = len(plan.commodities)
        return made

    @property
    def fabric(self) -> PodClos:
        return self._fabric

    def arrive(
        self, src: int, dst: int, demand: float = 1.0, job: int = 0, phase: int = 0
    ) -> tuple[PodRoute, tuple[PodRoute, ...]]:
        """Adds a commodity: its route, and the new routes of others. Raises ValueError as `Incremental.arrive` does."""
        self._low.max_reroutes = self._left = self.max_reroutes
        arrived, moved = self._low.arrive(src, dst, demand, job, phase)
        number, self._next = self._next, self._next + 1
        self._low_number[number], self._number[arrived.commodity] = arrived.commodity, number
        self._asked[number] = (src, dst, demand, job, phase)
        others = [self._number[route.commodity] for route in moved]
        self._spend(others)
        changed = self._lift([number, *others])
        changed.discard(number)
        return self.route(number), tuple(self.route(other) for other in sorted(changed))

    def depart(self, commodity: int) -> tuple[PodRoute, ...]:
        """Removes a commodity. Returns the new routes of others. Raises KeyError for an unknown commodity."""
        if commodity not in self._asked:
            raise KeyError(f"there is no commodity {commodity}")
        self._left = self.max_reroutes
        del self._asked[commodity]
        changed = self._lower(commodity)
        low = self._low_number.pop(commodity)
        del self._number[low]
        self._low.max_reroutes = self._left
        others = [self._number[route.commodity] for route in self._low.depart(low)]
        self._spend(others)
        changed |= self._lift(others)
        return tuple(self.route(other) for other in sorted(changed))

    def put(self, commodity: int, agg: int, up: int, down: int, core: int, core_up: int, core_down: int) -> None:
        """Moves a commodity that has a path to these live links, whatever that does to the congestion.

        Raises KeyError for an unknown commodity, ValueError for one without a path.
        """
        self._left = 0
        self._lower(commodity)
        self._low.put(self._low_number[commodity], agg, up, down)
        if core >= 0:
            self._raise(commodity, agg)
            self._high.put(self._high_number[commodity], core, core_up, core_down)

    def refit(self, fabric: PodClos) -> tuple[PodRoute, ...]:
        """Changes to the same fabric with other links dead. Returns the routes that changed. See `repair`."""
        numbers = self.numbers()
        before = self.plan()
        after = repair(before, fabric, max_reroutes=self.max_reroutes)
        self._load(after, numbers)
        changed = np.flatnonzero((before.routes != after.routes).any(axis=1))
        return tuple(self.route(numbers[at]) for at in changed.tolist())

    def route(self, commodity: int) -> PodRoute:
        """The route of a commodity. Raises KeyError for an unknown commodity."""
        low = self._low.route(self._low_number[commodity])
        if commodity not in self._high_number:
            return PodRoute(commodity, *low[1:], LOCAL, -1, -1)
        high = self._high.route(self._high_number[commodity])
        if high.spine < 0:
            return PodRoute(commodity, UNREACHABLE, -1, -1, LOCAL, -1, -1)
        return PodRoute(commodity, *low[1:], *high[1:])

    def copied(self) -> "IncrementalPods":
        """A plan of its own, with the same commodities on the same routes."""
        made = copy(self)
        made._low, made._high = self._low.copied(), self._high.copied()
        made._asked, made._agg = dict(self._asked), dict(self._agg)
        made._low_number, made._number = dict(self._low_number), dict(self._number)
        made._high_number, made._owner = dict(self._high_number), dict(self._owner)
        return made

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan()`."""
        return list(self._asked)

    def plan(self) -> PodPlan:
        """The present routes, with their bound."""
        low, high = self._low.plan(), self._high.plan()  # `low` has the commodities in the order of `numbers`
        place = {number: at for at, number in enumerate(self._asked)}
        across = np.array([place[self._owner[number]] for number in self._high.numbers()], dtype=np.intp)
        routes = np.full((len(place), 6), -1, dtype=np.int32)
        routes[:, :3] = np.stack((low.spine, low.up, low.down), axis=1)
        routes[across, 3:] = np.stack((high.spine, high.up, high.down), axis=1)
        routes[across[high.spine < 0]] = (UNREACHABLE, -1, -1, LOCAL, -1, -1)
        return _planned(self._fabric, low.commodities, "optimal", routes)

    def _load(self, plan: PodPlan, numbers: Iterable[int]) -> None:
        """Takes over a plan's fabric, commodities and routes."""
        self._fabric = plan.fabric
        own = list(numbers)
        self._low, self._high = Incremental.of(plan.low), Incremental.of(plan.high)
        c = plan.commodities
        columns = (c.src.tolist(), c.dst.tolist(), c.demand.tolist(), c.job.tolist(), c.phase.tolist())
        self._asked: dict[int, tuple[int, int, float, int, int]] = dict(
            zip(own, zip(*columns, strict=True), strict=True)
        )
        self._low_number = dict(zip(own, range(len(own)), strict=True))
        self._number = dict(enumerate(own))  # by that of `_low`
        self._high_number = {own[at]: n for n, at in enumerate(plan.across.tolist())}
        self._owner = {n: number for number, n in self._high_number.items()}
        self._agg = {own[at]: int(plan.agg[at]) for at in plan.across.tolist()}  # by which each is in `_high`
        self._nic_pod: list[int] = plan.fabric.leaf_pod[plan.fabric.nic_tor].tolist()

    def _lift(self, numbers: Iterable[int]) -> set[int]:
        """Lets commodities arrive at the cores of the aggs that they have now. Returns all whose routes changed."""
        changed: set[int] = set()
        for number in numbers:
            changed.add(number)
            low = self._low.route(self._low_number[number])
            src, dst = self._asked[number][:2]
            across = self._nic_pod[src] != self._nic_pod[dst]
            wanted = low.spine if across and low.spine >= 0 else None
            if self._agg.get(number) == wanted:
                continue
            changed |= self._lower(number)
            if wanted is None:
                continue
            reached, moved = self._raise(number, wanted)
            changed |= moved
            if not reached and (way := self._least_congested(number)) is not None:
                changed |= self._lower(number)
                self._low.put(self._low_number[number], *way)
                changed |= self._raise(number, way[0])[1]
        return changed

    def _raise(self, number: int, agg: int) -> tuple[bool, set[int]]:
        """Lets a commodity arrive at the cores of an agg. Returns whether one has a way, and the others that moved."""
        src, dst, demand, job, phase = self._asked[number]
        begin, end = (self._nic_pod[nic] * self._fabric.aggs + agg for nic in (src, dst))
        self._high.max_reroutes = self._left
        high, moved = self._high.arrive(begin, end, demand, job, phase)
        self._high_number[number], self._owner[high.commodity] = high.commodity, number
        self._agg[number] = agg
        return high.spine >= 0, self._moved(moved)

    def _lower(self, number: int) -> set[int]:
        """Lets a commodity depart from the cores, if it is there. Returns the others whose routes changed."""
        high = self._high_number.pop(number, None)
        if high is None:
            return set()
        del self._agg[number], self._owner[high]
        self._high.max_reroutes = self._left
        return self._moved(self._high.depart(high))

    def _moved(self, routes: Iterable[Route]) -> set[int]:
        moved = {self._owner[route.commodity] for route in routes}
        self._spend(moved)
        return moved

    def _spend(self, moved: Iterable[int]) -> None:
        if self._left is not None:
            self._left = max(self._left - sum(1 for _ in moved), 0)

    def _least_congested(self, number: int) -> tuple[int, int, int] | None:
        """Agg, up and down of the least congested path between pods for a commodity; None where there is no path."""
        fabric = self._fabric
        src, dst, demand = self._asked[number][:3]
        leaves = fabric.nic_tor[[src]], fabric.nic_tor[[dst]]
        aggs = np.flatnonzero(fabric.ways(*leaves)[0])
        if not aggs.size:
            return None
        low, high = _with(self._low.plan(), demand), _with(self._high.plan(), demand)
        near, far = low[0, leaves[0][0]], low[1, leaves[1][0]]  # [agg, parallel link]
        begin, end = (high[way, self._nic_pod[nic] * fabric.aggs + aggs] for way, nic in enumerate((src, dst)))
        cores = np.maximum(begin.min(axis=2), end.min(axis=2)).min(axis=1)
        worst = np.maximum(np.maximum(near[aggs].min(axis=1), far[aggs].min(axis=1)), cores)
        agg = int(aggs[worst.argmin()])
        return agg, int(near[agg].argmin()), int(far[agg].argmin())


def repair(plan: PodPlan, fabric: PodClos, *, max_reroutes: int | None = None) -> PodPlan:
    """A plan for the same commodities on the same fabric with other links dead, with few routes changed.

    `sdn.planners.repair` for leaves and aggs, then for aggs and cores, each with so many moves of others. Where an agg
    has no way to the other pod then, `optimal` plans anew; otherwise single commodities move off the worst link, unless
    moves are limited. Raises ValueError when the fabrics differ in shape.
    """
    asked = plan.commodities
    low = incremental.repair(plan.low, fabric.low, max_reroutes=max_reroutes)
    routes = np.stack((low.spine, low.up, low.down, *np.full((3, len(asked)), -1, dtype=np.int32)), axis=1)
    pods = fabric.leaf_pod[fabric.nic_tor]
    across = np.flatnonzero((low.spine >= 0) & (pods[asked.src] != pods[asked.dst]))
    kept = (low.spine == plan.agg)[across]
    core, core_up, core_down = (
        np.where(kept, was[across], nothing).astype(np.int32)
        for was, nothing in ((plan.core, UNREACHABLE), (plan.core_up, -1), (plan.core_down, -1))
    )
    asked_above = lifted(fabric, asked, across, low.spine[across])
    known = Plan(plan.fabric.high, asked_above, plan.planner, core, core_up, core_down, plan.bound, plan.why)
    high = incremental.repair(known, fabric.high, max_reroutes=max_reroutes)
    routes[across, 3:] = np.stack((high.spine, high.up, high.down), axis=1)
    stuck = across[high.spine < 0]
    src, dst = tors_of(fabric.low, asked)
    if stuck.size and fabric.ways(src[stuck], dst[stuck]).any():
        return optimal(fabric, asked)
    routes[stuck] = (UNREACHABLE, -1, -1, LOCAL, -1, -1)
    mended = _planned(fabric, asked, plan.planner, routes)
    if mended.proved or max_reroutes is not None:
        return mended
    moved = _planned(fabric, asked, plan.planner, improved(mended, src, dst, _REPAIR_EFFORT))
    return moved if moved.congestion < mended.congestion * (1 - SAME) else mended


def _planned(fabric: PodClos, asked: Commodities, planner: str, routes: Ints) -> PodPlan:
    src, dst = tors_of(fabric.low, asked)
    reached = (src != dst) & fabric.ways(src, dst).any(axis=1)
    return PodPlan.of(fabric, asked, planner, routes, pod_bound(fabric, asked, src, dst, reached))


def _with(plan: Plan, demand: float) -> Floats:
    """[0 up, 1 down; ToR, spine, parallel link]: the congestion of every link with this demand more."""
    with np.errstate(divide="ignore"):
        return (plan.loads + demand) / plan.fabric.link_rate_bps
