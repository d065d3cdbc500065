# SPDX-License-Identifier: Apache-2.0
"""Plans over the ways that source ports can reach, for fabrics whose hash polarises.

Where a leaf chooses an uplink, and the spine a parallel link down or the agg an uplink, by the same affine hash
(`netmodel.CrcHash`, and the hashes of many ASICs), the second choice follows from the first one: no port at all takes
some ways. `Incremental` plans as if all were taken. `WithinReach` gives each commodity one of the ways that its ports
do reach.
"""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from netmodel import ENTROPY_PORTS
from sdn import _native
from sdn.path_service.planning import AnyRoute, Ends, route_of
from sdn.path_service.ports import PortTables
from sdn.planners import LOCAL, UNREACHABLE, Clos, Commodities, Plan, congestion_bound, links
from sdn.planners.links import AnyClos, AnyPlan, Way
from sdn.planners.model import tors_of
from sdn.planners.planner import AnyCabling
from sdn.planners.pods import PodPlan
from sdn.planners.pods.bounds import pod_bound

_EFFORT = 2_000  # paths examined per change
_SURE_WAYS = 512  # 32 ports for each: an independent hash misses none

Ways = Callable[[int, int], list[Way]]
"""The ways that ports reach from one NIC to another."""


@dataclass(frozen=True, slots=True)
class Polarised:
    """What ports reach between two leaves: `reached` of `ways` ways."""

    src: str
    dst: str
    reached: int
    ways: int
    switches: str
    """The switches on a path that choose alike, in words."""

    @property
    def what(self) -> str:
        """What is wrong."""
        return (
            f"the switches' hash is polarised: from {self.src} to {self.dst} ports reach {self.reached} of {self.ways} "
            "paths"
        )

    @property
    def remedy(self) -> str:
        """How to mend it."""
        return f"give {self.switches} different hash functions, or one of them an offset of its hash bits"

    @property
    def statement(self) -> str:
        """What is wrong and how to mend it, in one sentence."""
        return f"{self.what}; {self.remedy}"


def polarised(cables: AnyCabling, tables: PortTables) -> Polarised | None:
    """The first pair of leaves between which ports do not reach every way; None where there is none.

    One pair is examined for each leaf, or for each pod of three tiers: how many ways an affine hash reaches depends on
    the groups of the switches, not on addresses.
    """
    fabric = cables.fabric
    if isinstance(fabric, Clos):
        if fabric.parallel == 1:
            return None  # the leaf alone chooses
        parts, switches = fabric.nic_tor, "leaves and spines"
    else:
        parts, switches = fabric.leaf_pod[fabric.nic_tor], "leaves, aggs and cores"
    _, first = np.unique(parts, return_index=True)
    for src, dst in zip(first.tolist(), np.roll(first, -1).tolist(), strict=True):
        reached, ways = len(tables.ways(src, dst)), tables.count(src, dst)
        if reached < _least_reached(ways):
            begin, end = (cables.topology.peer(cables.nics[nic]).node for nic in (src, dst))
            return Polarised(begin, end, reached, ways, switches)
    return None


def _least_reached(ways: int) -> float:
    """How many of so many ways a sound hash reaches at least: all, unless there are too few ports."""
    if ways <= _SURE_WAYS:
        return ways
    return 0.9 * ways * -math.expm1(-len(ENTROPY_PORTS) / ways)


class WithinReach:
    """A `LivePlan` over the ways that ports reach: the least congested one, and single moves off the worst link."""

    def __init__(self, fabric: AnyClos, ways: Ways) -> None:
        self.max_reroutes: int | None = None
        self._ways = ways
        self._ends: dict[int, Ends] = {}
        self._next = 0
        self._load(fabric)

    @property
    def fabric(self) -> AnyClos:
        return self._fabric

    def arrive(self, src: int, dst: int) -> tuple[AnyRoute, tuple[AnyRoute, ...]]:
        number, self._next = self._next, self._next + 1
        self._ends[number] = src, dst
        self._place(number)
        moved = self._improve()
        return self.route(number), tuple(self.route(other) for other in moved if other != number)

    def depart(self, commodity: int) -> tuple[AnyRoute, ...]:
        del self._ends[commodity]
        placed = self._placed.pop(commodity, None)
        if placed is None:
            return ()
        del self._owner[placed]
        del self._choices[commodity]
        self._paths.remove(placed)
        return tuple(map(self.route, self._improve()))

    def put(self, commodity: int, *way: int) -> None:
        placed = self._placed.pop(commodity, None)
        if placed is not None:
            del self._owner[placed]
            self._paths.remove(placed)
        self._place(commodity, way)

    def copied(self) -> "WithinReach":
        made = copy(self)
        made._ends, made._paths = dict(self._ends), self._paths.copied()
        made._placed, made._owner, made._choices = dict(self._placed), dict(self._owner), dict(self._choices)
        return made

    def refit(self, fabric: Any) -> tuple[AnyRoute, ...]:
        before = {number: self.route(number) for number in self._ends}
        self._load(fabric)
        for number in self._ends:
            self._place(number, None if self.max_reroutes is None else before[number][1:])
        self._improve()
        after = map(self.route, self._ends)
        return tuple(route for route in after if route != before[route.commodity])

    def numbers(self) -> list[int]:
        return list(self._ends)

    def route(self, commodity: int) -> AnyRoute:
        """The route of a commodity. Raises KeyError for an unknown commodity."""
        src, dst = self._ends[commodity]
        placed = self._placed.get(commodity)
        if placed is not None:
            return route_of(commodity, self._choices[commodity][self._paths.chosen(placed)])
        fabric = self._fabric
        local = fabric.nic_tor[src] == fabric.nic_tor[dst]
        no_core = () if isinstance(fabric, Clos) else (LOCAL, -1, -1)
        return route_of(commodity, (LOCAL if local else UNREACHABLE, -1, -1, *no_core))

    def plan(self) -> AnyPlan:
        ends, fabric = self._ends.values(), self._fabric
        asked = Commodities.of([src for src, _ in ends], [dst for _, dst in ends])
        ways = [self.route(number)[1:] for number in self._ends]
        if isinstance(fabric, Clos):
            spine, up, down = np.array(ways, dtype=np.int32).reshape(-1, 3).T
            bound = congestion_bound(fabric, asked)
            return Plan(fabric, asked, "within reach", spine, up, down, bound.congestion, bound.why)
        src, dst = tors_of(fabric.low, asked)
        reached = (src != dst) & fabric.ways(src, dst).any(axis=1)
        bound = pod_bound(fabric, asked, src, dst, reached)
        return PodPlan.of(fabric, asked, "within reach", np.array(ways, dtype=np.int32).reshape(-1, 6), bound)

    def _load(self, fabric: AnyClos) -> None:
        self._fabric = fabric
        rate = links.rates(fabric)
        # Dead links are in no way that ports reach; their rates only have to be numbers.
        both = np.tile(np.where(rate > 0, rate, 1.0), 2)
        self._paths = _native.ListedPaths(both)
        self._placed: dict[int, int] = {}  # commodity -> its number in `_paths`
        self._owner: dict[int, int] = {}
        self._choices: dict[int, list[Way]] = {}

    def _place(self, number: int, wanted: Way | None = None) -> None:
        """Gives a commodity the way that is wanted, if ports take it, and otherwise the least congested one."""
        src, dst = self._ends[number]
        tors, rates = self._fabric.nic_tor, links.rates(self._fabric)
        if tors[src] == tors[dst]:
            return
        # Ports also take ways over links that are alive and that the plan avoids.
        ways = [way for way in self._ways(src, dst) if all(rates[[*links.on_way(self._fabric, src, dst, way)]] > 0)]
        if not ways:
            return
        size = rates.size
        # Links up and, beyond all of these, links down: `on_way` has them alternately.
        paths = [
            [link + size * (at % 2) for at, link in enumerate(links.on_way(self._fabric, src, dst, way))]
            for way in ways
        ]
        placed = self._paths.insert(1.0, paths, ways.index(wanted) if wanted in ways else None)
        self._placed[number], self._owner[placed], self._choices[number] = placed, number, ways

    def _improve(self) -> list[int]:
        """Moves commodities off the worst link. Returns those that moved."""
        return [self._owner[placed] for placed in self._paths.improve(0.0, self.max_reroutes, _EFFORT)]
