# SPDX-License-Identifier: Apache-2.0
"""Planners kept up while commodities arrive and depart: one interface for all of `sdn.planners.PLANNERS`."""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Protocol

import numpy as np

from sdn.planners import LOCAL, PLANNERS, Clos, Commodities, Incremental, Plan, Route, ecmp

Ends = tuple[int, int]
"""Source and destination NIC of a commodity."""


class LivePlan(Protocol):
    """A plan that is kept up, such as `sdn.planners.Incremental`. Commodity numbers are never reused."""

    max_reroutes: int | None
    """The most other commodities that the next arrival or departure may reroute. Only incremental planners use it."""

    @property
    def fabric(self) -> Clos: ...

    def arrive(self, src: int, dst: int) -> tuple[Route, tuple[Route, ...]]:
        """Adds a commodity from NIC `src` to NIC `dst`, of the same demand as all others.

        Returns its route, and the new routes of commodities that made room.
        """
        ...

    def depart(self, commodity: int) -> tuple[Route, ...]:
        """Removes a commodity. Returns the routes of others that changed."""
        ...

    def refit(self, fabric: Clos) -> tuple[Route, ...]:
        """Replans for the same fabric with other links dead. Returns the routes that changed."""
        ...

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan()`."""
        ...

    def plan(self) -> Plan: ...


class _Commodities:
    """The commodities in order of arrival, by number."""

    def __init__(self) -> None:
        self.ends: dict[int, Ends] = {}
        self._next = 0

    def enter(self, src: int, dst: int) -> int:
        number, self._next = self._next, self._next + 1
        self.ends[number] = src, dst
        return number

    def commodities(self) -> Commodities:
        ends = self.ends.values()
        return Commodities.of([src for src, _ in ends], [dst for _, dst in ends])


class FullReplan:
    """Plans all commodities again at every change, in order of arrival: greedy, annealing, ilp.

    A change takes time linear in the number of commodities, or more: use it for hundreds, not for thousands.
    """

    def __init__(self, planner: Callable[[Clos, Commodities], Plan], fabric: Clos) -> None:
        self.max_reroutes: int | None = None
        self._planner = planner
        self._fabric = fabric
        self._book = _Commodities()
        self._routes: dict[int, Route] = {}

    @property
    def fabric(self) -> Clos:
        return self._fabric

    def arrive(self, src: int, dst: int) -> tuple[Route, tuple[Route, ...]]:
        number = self._book.enter(src, dst)
        changed = self._replan()
        route = self._routes[number]
        return route, tuple(other for other in changed if other is not route)

    def depart(self, commodity: int) -> tuple[Route, ...]:
        del self._book.ends[commodity]
        return self._replan()

    def exchange(self, departing: Iterable[int], arriving: Iterable[Ends]) -> tuple[list[int], tuple[Route, ...]]:
        """As the function `exchange`, with one plan for all changes."""
        for commodity in departing:
            del self._book.ends[commodity]
        numbers = [self._book.enter(src, dst) for src, dst in arriving]
        return numbers, self._replan()

    def refit(self, fabric: Clos) -> tuple[Route, ...]:
        self._fabric = fabric
        return self._replan()

    def numbers(self) -> list[int]:
        return list(self._book.ends)

    def plan(self) -> Plan:
        return self._planner(self._fabric, self._book.commodities())

    def _replan(self) -> tuple[Route, ...]:
        plan = self.plan()
        columns = (plan.spine.tolist(), plan.up.tolist(), plan.down.tolist())
        fresh = {n: Route(n, *way) for n, way in zip(self._book.ends, zip(*columns, strict=True), strict=True)}
        changed = tuple(route for n, route in fresh.items() if self._routes.get(n) != route)
        self._routes = fresh
        return changed


class AtRandom:
    """ECMP: a random equal-cost path for every commodity. Only a commodity whose path has died is rerouted."""

    def __init__(self, fabric: Clos) -> None:
        self.max_reroutes: int | None = None
        self._fabric = fabric
        self._book = _Commodities()
        self._routes: dict[int, Route] = {}

    @property
    def fabric(self) -> Clos:
        return self._fabric

    def arrive(self, src: int, dst: int) -> tuple[Route, tuple[Route, ...]]:
        return self._place(self._book.enter(src, dst)), ()

    def depart(self, commodity: int) -> tuple[Route, ...]:
        del self._book.ends[commodity], self._routes[commodity]
        return ()

    def refit(self, fabric: Clos) -> tuple[Route, ...]:
        self._fabric = fabric
        return tuple(self._place(number) for number, route in self._routes.items() if not self._works(number, route))

    def numbers(self) -> list[int]:
        return list(self._book.ends)

    def plan(self) -> Plan:
        asked = self._book.commodities()
        plan = ecmp(self._fabric, asked)
        spine, up, down = np.array([route[1:] for route in self._routes.values()], dtype=np.int32).reshape(-1, 3).T
        return Plan(self._fabric, asked, "ecmp", spine, up, down, plan.bound, plan.why)

    def _place(self, number: int) -> Route:
        alone = ecmp(self._fabric, Commodities.of(*([end] for end in self._book.ends[number])), seed=number)
        route = self._routes[number] = Route(number, int(alone.spine[0]), int(alone.up[0]), int(alone.down[0]))
        return route

    def _works(self, number: int, route: Route) -> bool:
        if route.spine < 0:
            return route.spine == LOCAL
        src, dst = (int(self._fabric.nic_tor[end]) for end in self._book.ends[number])
        rate = self._fabric.link_rate_bps
        return bool(rate[src, route.spine, route.up] > 0 and rate[dst, route.spine, route.down] > 0)


def exchange(plan: LivePlan, departing: Iterable[int], arriving: Iterable[Ends]) -> tuple[list[int], tuple[Route, ...]]:
    """Lets some commodities depart and others arrive at the same time.

    Returns the numbers that the arriving commodities get, and one route for each commodity whose route changed. A
    commodity whose route changed several times has its last one.
    """
    if isinstance(plan, FullReplan):
        return plan.exchange(departing, arriving)
    changed: dict[int, Route] = {}
    for commodity in departing:
        changed |= {route.commodity: route for route in plan.depart(commodity)}
    numbers = []
    for src, dst in arriving:
        route, others = plan.arrive(src, dst)
        numbers.append(route.commodity)
        changed |= {planned.commodity: planned for planned in (*others, route)}
    return numbers, tuple(changed.values())


_OWN: MappingProxyType[str, Callable[[Clos], LivePlan]] = MappingProxyType({"optimal": Incremental, "ecmp": AtRandom})
"""Planners that keep their plan up to date by themselves. For others all is planned again."""


def live_plan(planner: str, fabric: Clos) -> LivePlan:
    """An empty plan of that planner. Raises KeyError for an unknown one."""
    own = _OWN.get(planner)
    return FullReplan(PLANNERS[planner], fabric) if own is None else own(fabric)
