# SPDX-License-Identifier: Apache-2.0
"""Planners kept up while commodities arrive and depart: one interface for all of `sdn.planners.PLANNERS`."""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Protocol, Self, TypeAlias

from sdn.planners import LOCAL, PLANNERS, Clos, Commodities, Incremental, Route, links
from sdn.planners.links import AnyClos, AnyPlan, Way
from sdn.planners.pods import IncrementalPods, PodRoute

Ends = tuple[int, int]
"""Source and destination NIC of a commodity."""

AnyRoute: TypeAlias = Route | PodRoute
"""The number of a commodity, and then its way."""


class LivePlan(Protocol):
    """A plan that is kept up, such as `sdn.planners.Incremental`. Commodity numbers are never reused.

    Its fabric has two tiers or three, and its routes and plans are of that kind.
    """

    max_reroutes: int | None
    """The most other commodities that the next change may reroute. Planners that plan all anew do not use it."""

    @property
    def fabric(self) -> AnyClos: ...

    def arrive(self, src: int, dst: int) -> tuple[AnyRoute, tuple[AnyRoute, ...]]:
        """Adds a commodity from NIC `src` to NIC `dst`, of the same demand as all others.

        Returns its route, and the new routes of commodities that made room.
        """
        ...

    def depart(self, commodity: int) -> tuple[AnyRoute, ...]:
        """Removes a commodity. Returns the routes of others that changed."""
        ...

    @property
    def put(self) -> Callable[..., None]:
        """Called with a commodity that has a path, and the columns of a way over live links, it moves the one there.

        A later change may move it away again.
        """
        ...

    def refit(self, fabric: Any) -> tuple[AnyRoute, ...]:
        """Replans for the same fabric with other links dead. Returns the routes that changed."""
        ...

    def copied(self) -> "LivePlan":
        """A plan of its own, with the same commodities on the same routes."""
        ...

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan()`."""
        ...

    def plan(self) -> AnyPlan: ...


class _Commodities:
    """The commodities in order of arrival, by number."""

    def __init__(self) -> None:
        self.ends: dict[int, Ends] = {}
        self._next = 0

    def enter(self, src: int, dst: int) -> int:
        number, self._next = self._next, self._next + 1
        self.ends[number] = src, dst
        return number

    def copied(self) -> "_Commodities":
        made = _Commodities()
        made.ends, made._next = dict(self.ends), self._next
        return made

    def commodities(self) -> Commodities:
        ends = self.ends.values()
        return Commodities.of([src for src, _ in ends], [dst for _, dst in ends])


_PlannerOf: TypeAlias = Callable[[Any, Commodities], AnyPlan]


class _Routed:
    """A fabric, its commodities, and the route of each: what planners keep that are not kept up by themselves."""

    def __init__(self, fabric: AnyClos) -> None:
        self.max_reroutes: int | None = None
        self._fabric = fabric
        self._book = _Commodities()
        self._routes: dict[int, AnyRoute] = {}

    @property
    def fabric(self) -> AnyClos:
        return self._fabric

    def numbers(self) -> list[int]:
        return list(self._book.ends)

    def put(self, commodity: int, *way: int) -> None:
        self._routes[commodity] = route_of(commodity, way)

    def copied(self) -> Self:
        made = copy(self)
        made._book, made._routes = self._book.copied(), dict(self._routes)
        return made


class FullReplan(_Routed):
    """Plans all commodities again at every change, in order of arrival: greedy, annealing, ilp.

    A change takes time linear in the number of commodities, or more: use it for hundreds, not for thousands.
    """

    def __init__(self, planner: _PlannerOf, fabric: AnyClos) -> None:
        super().__init__(fabric)
        self._planner = planner

    def arrive(self, src: int, dst: int) -> tuple[AnyRoute, tuple[AnyRoute, ...]]:
        number = self._book.enter(src, dst)
        changed = self._replan()
        route = self._routes[number]
        return route, tuple(other for other in changed if other is not route)

    def depart(self, commodity: int) -> tuple[AnyRoute, ...]:
        del self._book.ends[commodity]
        return self._replan()

    def exchange(self, departing: Iterable[int], arriving: Iterable[Ends]) -> tuple[list[int], tuple[AnyRoute, ...]]:
        """As the function `exchange`, with one plan for all changes."""
        for commodity in departing:
            del self._book.ends[commodity]
        numbers = [self._book.enter(src, dst) for src, dst in arriving]
        return numbers, self._replan()

    def refit(self, fabric: Any) -> tuple[AnyRoute, ...]:
        self._fabric = fabric
        return self._replan()

    def plan(self) -> AnyPlan:
        ways: list[Way] = [self._routes[number][1:] for number in self._book.ends]
        return links.with_ways(self._planned(), self._fabric, ways)

    def _planned(self) -> AnyPlan:
        return self._planner(self._fabric, self._book.commodities())

    def _replan(self) -> tuple[AnyRoute, ...]:
        own = links.ways(self._planned())
        fresh = {number: route_of(number, way) for number, way in zip(self._book.ends, own, strict=True)}
        changed = tuple(route for n, route in fresh.items() if self._routes.get(n) != route)
        self._routes = fresh
        return changed


class AtRandom(_Routed):
    """ECMP: a random equal-cost path for every commodity. Only a commodity whose path has died is rerouted."""

    def __init__(self, planner: Callable[..., AnyPlan], fabric: AnyClos) -> None:
        super().__init__(fabric)
        self._planner = planner

    def arrive(self, src: int, dst: int) -> tuple[AnyRoute, tuple[AnyRoute, ...]]:
        return self._place(self._book.enter(src, dst)), ()

    def depart(self, commodity: int) -> tuple[AnyRoute, ...]:
        del self._book.ends[commodity], self._routes[commodity]
        return ()

    def refit(self, fabric: Any) -> tuple[AnyRoute, ...]:
        self._fabric = fabric
        return tuple(self._place(number) for number, route in self._routes.items() if not self._works(number, route))

    def plan(self) -> AnyPlan:
        bounded = self._planner(self._fabric, self._book.commodities())
        return links.with_ways(bounded, self._fabric, [route[1:] for route in self._routes.values()])

    def _place(self, number: int) -> AnyRoute:
        asked = Commodities.of(*([end] for end in self._book.ends[number]))
        (way,) = links.ways(self._planner(self._fabric, asked, seed=number))
        route = self._routes[number] = route_of(number, way)
        return route

    def _works(self, number: int, route: AnyRoute) -> bool:
        if route[1] < 0:
            return route[1] == LOCAL
        taken = links.on_way(self._fabric, *self._book.ends[number], route[1:])
        return bool((links.rates(self._fabric)[list(taken)] > 0).all())


def route_of(number: int, way: Way) -> AnyRoute:
    """A commodity's route, by the number of tiers of its way."""
    return Route(number, *way) if len(way) == 3 else PodRoute(number, *way)


def exchange(
    plan: LivePlan, departing: Iterable[int], arriving: Iterable[Ends]
) -> tuple[list[int], tuple[AnyRoute, ...]]:
    """Lets some commodities depart and others arrive at the same time.

    Returns the numbers that the arriving commodities get, and one route for each commodity whose route changed. A
    commodity whose route changed several times has its last one.
    """
    if isinstance(plan, FullReplan):
        return plan.exchange(departing, arriving)
    changed: dict[int, AnyRoute] = {}
    for commodity in departing:
        changed |= {route.commodity: route for route in plan.depart(commodity)}
    numbers = []
    for src, dst in arriving:
        route, others = plan.arrive(src, dst)
        numbers.append(route.commodity)
        changed |= {planned.commodity: planned for planned in (*others, route)}
    return numbers, tuple(changed.values())


def live_plan(planner: str, fabric: AnyClos) -> LivePlan:
    """An empty plan of that planner. Raises KeyError for an unknown one.

    `optimal` and `ecmp` keep their plan up to date by themselves. For others all is planned again.
    """
    if planner == "optimal":
        return Incremental(fabric) if isinstance(fabric, Clos) else IncrementalPods(fabric)
    of = PLANNERS[planner].plan if isinstance(fabric, Clos) else PLANNERS[planner].in_pods
    assert of is not None  # see `Planner.cabling`
    return AtRandom(of, fabric) if planner == "ecmp" else FullReplan(of, fabric)
