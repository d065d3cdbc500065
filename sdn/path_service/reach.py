# SPDX-License-Identifier: Apache-2.0
"""Plans over the ways that source ports can reach, for fabrics whose hash polarises.

Where a leaf chooses an uplink and the spine a parallel link down by the same affine hash (`netmodel.CrcHash`, and the
hashes of many ASICs), the second choice follows from the first one: no port at all takes some ways. `Incremental` plans
as if all were taken. `WithinReach` gives each commodity one of the ways that its ports do reach.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sdn import _planners
from sdn.path_service.planning import Ends
from sdn.path_service.ports import PortTables, Way
from sdn.planners import LOCAL, UNREACHABLE, Cabling, Clos, Commodities, Plan, Route, congestion_bound

_EFFORT = 2_000  # paths examined per change

Ways = Callable[[int, int], list[Way]]
"""The ways that ports reach from one NIC to another."""


@dataclass(frozen=True, slots=True)
class Polarised:
    """What ports reach between two leaves: `reached` of `ways` ways."""

    src: str
    dst: str
    reached: int
    ways: int

    @property
    def statement(self) -> str:
        """What is wrong and how to mend it, in one sentence."""
        return (
            f"the switches' hash is polarised: from {self.src} to {self.dst} ports reach {self.reached} of {self.ways} "
            "paths; give leaves and spines different hash functions, or one of them an offset of its hash bits"
        )


def polarised(cables: Cabling, tables: PortTables) -> Polarised | None:
    """The first pair of leaves between which ports do not reach every way; None where there is none.

    One pair is examined for each leaf: how many ways an affine hash reaches depends on the groups of the two switches,
    not on addresses.
    """
    fabric = cables.fabric
    if fabric.parallel == 1:
        return None  # the leaf alone chooses
    _, first = np.unique(fabric.nic_tor, return_index=True)
    for src, dst in zip(first.tolist(), np.roll(first, -1).tolist(), strict=True):
        reached, ways = len(tables.ways(src, dst)), tables.count(src, dst)
        if reached < ways:
            begin, end = (cables.tors[fabric.nic_tor[nic]] for nic in (src, dst))
            return Polarised(begin, end, reached, ways)
    return None


class WithinReach:
    """A `LivePlan` over the ways that ports reach: the least congested one, and single moves off the worst link."""

    def __init__(self, fabric: Clos, ways: Ways) -> None:
        self.max_reroutes: int | None = None
        self._ways = ways
        self._ends: dict[int, Ends] = {}
        self._next = 0
        self._load(fabric)

    @property
    def fabric(self) -> Clos:
        return self._fabric

    def arrive(self, src: int, dst: int) -> tuple[Route, tuple[Route, ...]]:
        number, self._next = self._next, self._next + 1
        self._ends[number] = src, dst
        self._place(number)
        moved = self._improve()
        return self.route(number), tuple(self.route(other) for other in moved if other != number)

    def depart(self, commodity: int) -> tuple[Route, ...]:
        del self._ends[commodity]
        placed = self._placed.pop(commodity, None)
        if placed is None:
            return ()
        del self._owner[placed]
        del self._choices[commodity]
        self._paths.remove(placed)
        return tuple(map(self.route, self._improve()))

    def refit(self, fabric: Clos) -> tuple[Route, ...]:
        before = {number: self.route(number) for number in self._ends}
        self._load(fabric)
        for number in self._ends:
            self._place(number)
        self.max_reroutes = None
        self._improve()
        after = map(self.route, self._ends)
        return tuple(route for route in after if route != before[route.commodity])

    def numbers(self) -> list[int]:
        return list(self._ends)

    def route(self, commodity: int) -> Route:
        """The route of a commodity. Raises KeyError for an unknown commodity."""
        src, dst = self._ends[commodity]
        placed = self._placed.get(commodity)
        if placed is not None:
            return Route(commodity, *self._choices[commodity][self._paths.chosen(placed)])
        tors = self._fabric.nic_tor
        return Route(commodity, LOCAL if tors[src] == tors[dst] else UNREACHABLE, -1, -1)

    def plan(self) -> Plan:
        ends = self._ends.values()
        asked = Commodities.of([src for src, _ in ends], [dst for _, dst in ends])
        routes = np.array([self.route(number)[1:] for number in self._ends], dtype=np.int32).reshape(-1, 3)
        spine, up, down = np.ascontiguousarray(routes.T)
        bound = congestion_bound(self._fabric, asked)
        return Plan(self._fabric, asked, "within reach", spine, up, down, bound.congestion, bound.why)

    def _load(self, fabric: Clos) -> None:
        self._fabric = fabric
        rate = fabric.link_rate_bps.ravel()
        # Dead links are in no way that ports reach; their rates only have to be numbers.
        both = np.tile(np.where(rate > 0, rate, 1.0), 2)
        self._paths = _planners.ListedPaths(both)
        self._placed: dict[int, int] = {}  # commodity -> its number in `_paths`
        self._owner: dict[int, int] = {}
        self._choices: dict[int, list[Way]] = {}

    def _place(self, number: int) -> None:
        src, dst = self._ends[number]
        tors, shape = self._fabric.nic_tor, self._fabric.link_rate_bps.shape
        if tors[src] == tors[dst] or not (ways := self._ways(src, dst)):
            return
        size = self._fabric.link_rate_bps.size
        paths = [
            [
                int(np.ravel_multi_index((tors[src], spine, up), shape)),
                size + int(np.ravel_multi_index((tors[dst], spine, down), shape)),
            ]
            for spine, up, down in ways
        ]
        placed = self._paths.insert(1.0, paths)
        self._placed[number], self._owner[placed], self._choices[number] = placed, number, ways

    def _improve(self) -> list[int]:
        """Moves commodities off the worst link. Returns those that moved."""
        return [self._owner[placed] for placed in self._paths.improve(0.0, self.max_reroutes, _EFFORT)]
