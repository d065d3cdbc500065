# SPDX-License-Identifier: Apache-2.0
"""`optimal` on three tiers, kept up while commodities arrive and depart: two of `sdn.planners.Incremental`.

One plans between leaves and aggs, the other between aggs and cores. An arrival moves a chain of commodities to other
aggs, as on two tiers. It and each of these then arrives at the cores of its agg, and moves a chain there.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sdn.planners.incremental import Incremental, Route
from sdn.planners.model import LOCAL, UNREACHABLE, Commodities, tors_of
from sdn.planners.pods.bounds import pod_bound
from sdn.planners.pods.model import PodClos, PodPlan
from sdn.planners.pods.optimal import optimal


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

    A change replans everything only where dead links leave an agg, which a chain has chosen, without a way to the other
    pod.
    """

    def __init__(self, fabric: PodClos, commodities: Commodities | None = None) -> None:
        """Starts from the optimal plan for `commodities`, numbered from 0, or without any."""
        asked = Commodities.of((), ()) if commodities is None else commodities
        self._load(optimal(fabric, asked), range(len(asked)))
        self._next = len(asked)

    @property
    def fabric(self) -> PodClos:
        return self._fabric

    def arrive(
        self, src: int, dst: int, demand: float = 1.0, job: int = 0, phase: int = 0
    ) -> tuple[PodRoute, tuple[PodRoute, ...]]:
        """Adds a commodity: its route, and the new routes of others. Raises ValueError as `Incremental.arrive` does."""
        route, moved = self._low.arrive(src, dst, demand, job, phase)
        number, self._next = self._next, self._next + 1
        self._low_number[number], self._number[route.commodity] = route.commodity, number
        self._asked[number] = (src, dst, demand, job, phase)
        changed = self._lift([number, *(self._number[route.commodity] for route in moved)]) | {number}
        changed |= self._without_dead_ends()
        return self.route(number), tuple(self.route(other) for other in sorted(changed - {number}))

    def depart(self, commodity: int) -> tuple[PodRoute, ...]:
        """Removes a commodity. Returns the new routes of others. Raises KeyError for an unknown commodity."""
        if commodity not in self._asked:
            raise KeyError(f"there is no commodity {commodity}")
        del self._asked[commodity]
        changed = self._lower(commodity)
        low = self._low_number.pop(commodity)
        del self._number[low]
        changed |= self._lift([self._number[route.commodity] for route in self._low.depart(low)])
        changed |= self._without_dead_ends()
        return tuple(self.route(other) for other in sorted(changed))

    def refit(self, fabric: PodClos) -> tuple[PodRoute, ...]:
        """Changes to the same fabric with other links dead. Returns the routes that changed."""
        before = {number: self.route(number) for number in self._asked}
        self._fabric = fabric
        moved = self._low.refit(fabric.low)
        self._high.refit(fabric.high)
        self._lift([self._number[route.commodity] for route in moved])
        self._without_dead_ends()
        after = map(self.route, self._asked)
        return tuple(route for route in after if route != before[route.commodity])

    def route(self, commodity: int) -> PodRoute:
        """The route of a commodity. Raises KeyError for an unknown commodity."""
        low = self._low.route(self._low_number[commodity])
        if commodity not in self._high_number:
            return PodRoute(commodity, *low[1:], LOCAL, -1, -1)
        high = self._high.route(self._high_number[commodity])
        if high.spine < 0:
            return PodRoute(commodity, UNREACHABLE, -1, -1, LOCAL, -1, -1)
        return PodRoute(commodity, *low[1:], *high[1:])

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan()`."""
        return list(self._asked)

    def plan(self) -> PodPlan:
        """The present routes, with their bound."""
        commodities = Commodities.of(*(list(zip(*self._asked.values(), strict=True)) or [()] * 5))
        src, dst = tors_of(self._fabric.low, commodities)
        reached = (src != dst) & self._fabric.ways(src, dst).any(axis=1)
        bound = pod_bound(self._fabric, commodities, src, dst, reached)
        routes = np.array([self.route(number)[1:] for number in self._asked], dtype=np.int32).reshape(-1, 6)
        return PodPlan.of(self._fabric, commodities, "optimal", routes, bound)

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

    def _lift(self, numbers: Iterable[int]) -> set[int]:
        """Lets commodities arrive at the cores of the aggs that they have now. Returns all whose routes changed."""
        changed: set[int] = set()
        fabric = self._fabric
        for number in numbers:
            changed.add(number)
            low = self._low.route(self._low_number[number])
            src, dst, demand, job, phase = self._asked[number]
            near, far = (int(fabric.leaf_pod[fabric.nic_tor[nic]]) for nic in (src, dst))
            wanted = low.spine if near != far and low.spine >= 0 else None
            if self._agg.get(number) == wanted:
                continue
            changed |= self._lower(number)
            if wanted is None:
                continue
            begin, end = (pod * fabric.aggs + wanted for pod in (near, far))
            high, moved = self._high.arrive(begin, end, demand, job, phase)
            self._high_number[number], self._owner[high.commodity] = high.commodity, number
            self._agg[number] = wanted
            changed |= self._owners(moved)
        return changed

    def _lower(self, number: int) -> set[int]:
        """Lets a commodity depart from the cores, if it is there. Returns the others whose routes changed."""
        high = self._high_number.pop(number, None)
        if high is None:
            return set()
        del self._agg[number], self._owner[high]
        return self._owners(self._high.depart(high))

    def _owners(self, routes: Iterable[Route]) -> set[int]:
        return {self._owner[route.commodity] for route in routes}

    def _without_dead_ends(self) -> set[int]:
        """Plans all anew if a commodity has no core by its agg and would have one by another. Returns what changed."""
        fabric = self._fabric
        if fabric.joined.all():
            return set()
        for number, high in self._high_number.items():
            if self._high.route(high).spine == UNREACHABLE:
                src, dst = (fabric.nic_tor[[nic]] for nic in self._asked[number][:2])
                if fabric.ways(src, dst).any():
                    break
        else:
            return set()
        before = {number: self.route(number) for number in self._asked}
        self._load(optimal(fabric, self.plan().commodities), list(self._asked))
        return {number for number, was in before.items() if self.route(number) != was}
