# SPDX-License-Identifier: Apache-2.0
"""The routes of all commodities, kept up by a planner, and the source ports that take them. Pure.

An arrival or departure may reroute other commodities. How many is limited, because every reroute holds up a running
elephant for a moment. None is rerouted while there are commodities that cannot move (`Hello.fixed`): a chain of moves
that ends at one of them would leave the plan worse than no moves.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from copy import copy

from netmodel import EcmpHash
from sdn.path_service.constraints import PinnedPair, Via
from sdn.path_service.groups import Choices
from sdn.path_service.manual_pins import ManualPins
from sdn.path_service.parties import Pair
from sdn.path_service.pinning import distinct
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
        self.hashed: AnyClos = cables.fabric
        """The fabric with the links that switches hash over: those of `fabric`, and drained ones."""
        self._pins = ManualPins(cables)
        self._snapshot: AnyPlan | None = None
        self._counts = counts
        self._fixed = 0  # commodities that cannot move
        self._reroutes = REROUTES_PER_S  # allowed now; at most those of one second
        self._reroutes_s = 0.0  # when `_reroutes` was computed

    @property
    def fabric(self) -> AnyClos:
        """The fabric with the links that elephants may take."""
        return self._live.fabric

    @property
    def is_incremental(self) -> bool:
        """Whether the planner can go on from a plan that was made in advance."""
        return isinstance(self._live, Incremental | IncrementalPods) and not self._fixed

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
        self._fixed += pair.client.fixed
        self._live.max_reroutes = 0 if self._fixed else self._allowed(now_s, reserve=0.0)
        route, moved = self._live.arrive(pair.client.nic, pair.peer.nic)
        pair.commodity, pair.way, pair.since_s = route.commodity, route[1:], now_s
        self.pairs[route.commodity] = pair
        self._snapshot = None
        if self._pins and pair in self._pins:
            self._keep_pinned(pair)
        return self._rerouted(moved) if moved else []

    def depart(self, now_s: float, number: int) -> list[Pair]:
        """Removes a commodity. Returns the other pairs that were rerouted."""
        # Half of the reroutes are reserved for arrivals: after a departure there is room, and balance can wait.
        self._live.max_reroutes = 0 if self._fixed else self._allowed(now_s, reserve=REROUTES_PER_S / 2)
        self._fixed -= self.pairs.pop(number).client.fixed
        moved = self._live.depart(number)
        self._snapshot = None
        return self._rerouted(moved) if moved else []

    def follow(self, choices: Choices) -> None:
        """Predict ports by these groups from now on."""
        self.tables = self.tables.by(choices)

    def refit(self, fabric: AnyClos, hashed: AnyClos, most_moves: int | None = None) -> list[Pair]:
        """Replans for the same fabric with other links dead or drained. Returns the pairs that were rerouted.

        `hashed` is the fabric with drained links alive. `most_moves` limits the moves of those whose path stays good,
        where the planner can keep them.
        """
        self.tables = self.tables.around(hashed)
        self.hashed = hashed
        self._live.max_reroutes = 0 if self._fixed else most_moves
        routes = self._live.refit(fabric)
        self._snapshot = None
        self._pins.forget()
        return [*self._rerouted(routes), *self._repinned()]

    def pin(self, pins: Mapping[PinnedPair, Via]) -> list[Pair]:
        """Pins these pairs, and no others, to ways with the wanted links. Returns the pairs that were rerouted.

        A pair that is pinned no more stays where it is until the planner has reason to move it.
        """
        self._pins.change(pins)
        return self._repinned()

    def put(self, pair: Pair, taken: Collection[int]) -> None:
        """Moves a pair to the way over these links, by number, if they are its and neither dead nor drained."""
        src, dst, rates = pair.client.nic, pair.peer.nic, links.rates(self.fabric)
        for way in self.tables.ways(src, dst) if taken else ():
            own = links.on_way(self.fabric, src, dst, way)
            if pair.commodity is not None and sorted(own) == sorted(taken) and all(rates[[*own]] > 0):
                self._live.put(pair.commodity, *way)
                pair.way = way
                self._snapshot = None
                return

    def copied(self) -> "Routing":
        """A routing of its own, with copies of the pairs in the same order, to try changes on."""
        made = copy(self)
        made._live, made._pins, made._counts = self._live.copied(), self._pins.copied(), Counter()
        made.pairs = {number: copy(pair) for number, pair in self.pairs.items()}
        return made

    def adopt(self, plan: AnyPlan, hashed: AnyClos, tables: PortTables) -> list[Pair]:
        """Goes on from a plan of the same commodities in the order of `numbers`. Returns the pairs that were rerouted.

        Numbers the commodities anew, from 0. Only for planners that are incremental.
        """
        pairs = [self.pairs[number] for number in self._live.numbers()]
        self.tables, self.hashed = tables, hashed
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
        self._pins.forget()
        return distinct((*moved, *self._repinned()))

    def _rerouted(self, routes: Iterable[AnyRoute]) -> list[Pair]:
        """Takes over new routes, except of pinned pairs and of those that cannot move, which are put back.

        Returns the pairs whose routes changed.
        """
        moved = []
        for route in routes:
            pair = self.pairs[route.commodity]
            before = pair.way
            if not ((self._pins and pair in self._pins and self._keep_pinned(pair)) or self._keep_fixed(pair)):
                pair.way = route[1:]
            if pair.way != before:
                moved.append(pair)
        self._counts["moved"] += len(moved)
        self._reroutes -= len(moved)
        return moved

    def _repinned(self) -> list[Pair]:
        """Puts all pinned pairs on their ways. Returns those whose way has changed."""
        if not self._pins:
            return []
        pinned = [(pair, pair.way) for pair in self.pairs.values() if pair in self._pins]
        moved = [pair for pair, before in pinned if self._keep_pinned(pair) and pair.way != before]
        self._counts["moved"] += len(moved)
        return moved

    def _keep_pinned(self, pair: Pair) -> bool:
        """Puts a pinned pair on its way. Returns whether it has one."""
        way = self._pins.way(pair, self.tables, self.fabric, self.plan)
        if way is None or pair.commodity is None:
            return False
        self._live.put(pair.commodity, *way)
        pair.way = way
        self._snapshot = None
        return True

    def _keep_fixed(self, pair: Pair) -> bool:
        """Puts a pair that cannot move back on its way. Returns whether that is one, and its way is alive."""
        if not pair.client.fixed or pair.commodity is None:
            return False
        taken = links.on_way(self.fabric, pair.client.nic, pair.peer.nic, pair.way)
        if not taken or not all(links.rates(self.fabric)[[*taken]] > 0):
            return False
        self._live.put(pair.commodity, *pair.way)
        self._snapshot = None
        return True

    def _allowed(self, now_s: float, reserve: float) -> int:
        """The number of other commodities that may be rerouted now, when `reserve` is kept for later."""
        left = self._reroutes
        if now_s > self._reroutes_s:
            left += (now_s - self._reroutes_s) * REROUTES_PER_S
            self._reroutes = left = left if left < REROUTES_PER_S else REROUTES_PER_S
            self._reroutes_s = now_s
        left -= reserve
        return MAX_REROUTES if left >= MAX_REROUTES else int(left) if left > 0 else 0
