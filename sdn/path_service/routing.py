# SPDX-License-Identifier: Apache-2.0
"""The routes of all commodities, kept up by a planner, and the source ports that take them. Pure.

An arrival or departure may reroute other commodities. How many is limited, because every reroute holds up a running
elephant for a moment.
"""

from collections import Counter
from collections.abc import Iterable

from netmodel import EcmpHash
from sdn.path_service.groups import Choices
from sdn.path_service.parties import Pair
from sdn.path_service.planning import AnyRoute, LivePlan, live_plan
from sdn.path_service.ports import PortTables
from sdn.path_service.reach import WithinReach, polarised
from sdn.planners import Incremental, Plan, links
from sdn.planners.links import AnyClos, AnyPlan, Way
from sdn.planners.planner import AnyCabling
from sdn.planners.pods import IncrementalPods

REROUTES_PER_S = 1000.0
"""Running elephants that arrivals and departures of others may reroute, on average."""
MAX_REROUTES = 16
"""The most of these by one arrival or departure. With one commodity per link the optimum takes up to ToRs - 1."""


class Routing:
    """The plan, and the pair of every commodity in it."""

    def __init__(self, cables: AnyCabling, planner: str, ecmp_hash: EcmpHash, counts: Counter[str]) -> None:
        self.pairs: dict[int, Pair] = {}
        """Pairs that have a commodity, by its number."""
        self.tables = PortTables(cables, ecmp_hash)
        self.polarised = polarised(cables, self.tables)
        """What ports do not reach; None on most fabrics."""
        self._live: LivePlan
        if self.polarised is None:
            self._live = live_plan(planner, cables.fabric)
        else:  # no other planner knows what ports reach
            self._live = WithinReach(cables.fabric, lambda src, dst: self.tables.ways(src, dst))
        self._snapshot: AnyPlan | None = None
        self._counts = counts
        self._reroutes = REROUTES_PER_S  # allowed now; at most those of one second
        self._reroutes_s = 0.0  # when `_reroutes` was computed

    @property
    def fabric(self) -> AnyClos:
        """The fabric with the links that are alive."""
        return self._live.fabric

    @property
    def is_incremental(self) -> bool:
        """Whether the planner can go on from a plan that was made in advance."""
        return isinstance(self._live, Incremental | IncrementalPods)

    def plan(self) -> AnyPlan:
        """The routes as they are, in the order of `numbers`."""
        if self._snapshot is None:
            self._snapshot = self._live.plan()
        return self._snapshot

    def numbers(self) -> list[int]:
        """The commodities' numbers, in the order of `plan`."""
        return self._live.numbers()

    def ports(self, pair: Pair, way: Way) -> list[int]:
        """The ports of the pair's lanes along a way: the same list object as long as they do not change."""
        if (pair.ports_way is not way and pair.ports_way != way) or pair.ports_table is not self.tables:
            client, peer = pair.client, pair.peer
            ports = self.tables.ports(client.nic, peer.nic, way, client.lanes, *peer.at[1:])
            if ports != pair.ports:
                pair.ports = ports
            pair.ports_way, pair.ports_table = way, self.tables
        return pair.ports

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        """Adds the commodity of a pair. Returns the other pairs that were rerouted."""
        self._live.max_reroutes = self._allowed(now_s, reserve=0.0)
        route, moved = self._live.arrive(pair.client.nic, pair.peer.nic)
        pair.commodity, pair.way, pair.since_s = route.commodity, route[1:], now_s
        self.pairs[route.commodity] = pair
        self._snapshot = None
        return self._rerouted(moved) if moved else []

    def depart(self, now_s: float, number: int) -> list[Pair]:
        """Removes a commodity. Returns the other pairs that were rerouted."""
        del self.pairs[number]
        # Half of the reroutes are reserved for arrivals: after a departure there is room, and balance can wait.
        self._live.max_reroutes = self._allowed(now_s, reserve=REROUTES_PER_S / 2)
        moved = self._live.depart(number)
        self._snapshot = None
        return self._rerouted(moved) if moved else []

    def follow(self, choices: Choices) -> None:
        """Predict ports by these groups from now on."""
        self.tables = self.tables.by(choices)

    def refit(self, fabric: AnyClos) -> list[Pair]:
        """Replans for the same fabric with other links dead. Returns the pairs that were rerouted, without limit."""
        self.tables = self.tables.around(fabric)
        self._live.max_reroutes = None
        moved = self._live.refit(fabric)
        self._snapshot = None
        return self._rerouted(moved)

    def adopt(self, plan: AnyPlan, tables: PortTables) -> list[Pair]:
        """Goes on from a plan of the same commodities in the order of `numbers`. Returns the pairs that were rerouted.

        Numbers the commodities anew, from 0. Only for planners that are incremental.
        """
        pairs = [self.pairs[number] for number in self._live.numbers()]
        self.tables = tables
        self._live = Incremental.of(plan) if isinstance(plan, Plan) else IncrementalPods.of(plan)
        self._snapshot = None
        self.pairs = dict(enumerate(pairs))
        moved = []
        for number, (pair, way) in enumerate(zip(pairs, links.ways(plan), strict=True)):
            pair.commodity = number
            if pair.way != way:
                pair.way = way
                moved.append(pair)
        self._counts["moved"] += len(moved)
        return moved

    def _rerouted(self, routes: Iterable[AnyRoute]) -> list[Pair]:
        """Takes over new routes. Returns the pairs that they belong to."""
        moved = []
        for route in routes:
            pair = self.pairs[route.commodity]
            pair.way = route[1:]
            moved.append(pair)
        self._counts["moved"] += len(moved)
        self._reroutes -= len(moved)
        return moved

    def _allowed(self, now_s: float, reserve: float) -> int:
        """The number of other commodities that may be rerouted now, when `reserve` is kept for later."""
        left = self._reroutes
        if now_s > self._reroutes_s:
            left += (now_s - self._reroutes_s) * REROUTES_PER_S
            self._reroutes = left = left if left < REROUTES_PER_S else REROUTES_PER_S
            self._reroutes_s = now_s
        left -= reserve
        return MAX_REROUTES if left >= MAX_REROUTES else int(left) if left > 0 else 0
