# SPDX-License-Identifier: Apache-2.0
"""The routes of all commodities, kept up by a planner, and the source ports that take them. Pure.

An arrival or departure may reroute other commodities. How many is limited, because every reroute holds up a running
elephant for a moment.

Connections that cannot move (`Hello.fixed`) share places of the plan (`places`). A change that would reroute a place
that stays reroutes nothing: a part of a chain of moves would leave the plan worse than none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy

from netmodel import EcmpHash
from sdn.path_service.constraints import PinnedPair, Via
from sdn.path_service.groups import Choices
from sdn.path_service.manual_pins import ManualPins
from sdn.path_service.parties import Pair
from sdn.path_service.pinning import distinct
from sdn.path_service.places import SENT, Place, Places, least_congested
from sdn.path_service.planning import AnyRoute, LivePlan, live_plan
from sdn.path_service.ports import PortTables
from sdn.path_service.reach import WithinReach, polarised
from sdn.path_service.work import Work
from sdn.planners import Incremental, Plan, links
from sdn.planners.links import AnyClos, AnyPlan, Way, reversed_way
from sdn.planners.planner import AnyCabling
from sdn.planners.pods import IncrementalPods

REROUTES_PER_S = 1000.0
"""Running elephants that arrivals and departures of others may reroute, on average."""
_COPIED = 1024  # pairs in one step, and places
BESIDE = 1 << 48
"""The first number of commodities beside the plan: of connections that share the place of another one, or have none."""
MAX_REROUTES = 16
"""The most of these by one arrival or departure. With one commodity per link the optimum takes up to ToRs - 1."""


class Routing:
    """The plan, and the pair of every commodity in it."""

    def __init__(self, cables: AnyCabling, planner: str, ecmp_hash: EcmpHash | None, counts: Counter[str]) -> None:
        self.pairs: dict[int, Pair] = {}
        """Pairs that have a commodity, by its number. From `BESIDE` on it is not in the plan."""
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
        self._places = Places(cables.fabric)
        self._had: dict[Pair, int] = {}  # the port of each connection that had another than it was given here
        self._shut: dict[Pair, Way] = {}  # the way of the port that a connection has, while links of it are avoided
        self._next_beside = BESIDE
        self._reroutes = REROUTES_PER_S  # allowed now; at most those of one second
        self._reroutes_s = 0.0  # when `_reroutes` was computed

    @property
    def fabric(self) -> AnyClos:
        """The fabric with the links that elephants may take."""
        return self._live.fabric

    @property
    def is_incremental(self) -> bool:
        """Whether the planner can go on from a plan that was made in advance."""
        return isinstance(self._live, Incremental | IncrementalPods) and not self._places

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
        if self._had and (had := self._had.get(pair)) is not None:
            if pair.ports != [had] * pair.client.lanes:
                pair.ports = [had] * pair.client.lanes
            pair.ports_table = None  # these are no ports of the table
            return pair.ports
        if (pair.ports_way is not way and pair.ports_way != way) or pair.ports_table is not self.tables:
            client, peer = pair.client, pair.peer
            find = self.tables.ports_both_ways if client.fixed else self.tables.ports
            ports = find(client.nic, peer.nic, way, client.lanes, *peer.at[1:])
            if ports != pair.ports:
                pair.ports = ports
            pair.ports_way, pair.ports_table = way, self.tables
        return pair.ports

    def taken(self, pair: Pair) -> Way | None:
        """The way that the ports of a pair take, wherever it counts; None where nobody knows."""
        if (had := self._had.get(pair)) is None:
            return pair.way
        return self.tables.way(pair.client.nic, pair.peer.nic, had, *pair.peer.at[1:])

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        """Adds the commodity of a pair. Returns the other pairs that were rerouted."""
        if pair.client.fixed:
            self._begin(now_s, pair)
            return []
        self._live.max_reroutes = self._allowed(now_s, reserve=0.0)
        route, moved = self._live.arrive(pair.client.nic, pair.peer.nic)
        pair.commodity, pair.way, pair.since_s = route.commodity, route[1:], now_s
        self.pairs[route.commodity] = pair
        self._snapshot = None
        if moved and self._undone(moved):
            self._put(pair, self._least_congested(pair, route[1:]))
            moved = ()
        if self._pins and pair in self._pins:
            self._keep_pinned(pair)
        return self._rerouted(moved) if moved else []

    def depart(self, now_s: float, number: int) -> list[Pair]:
        """Removes a commodity. Returns the other pairs that were rerouted."""
        pair = self.pairs.pop(number)
        if pair.client.fixed and not self._end(pair, number):
            return []
        # Half of the reroutes are reserved for arrivals: after a departure there is room, and balance can wait.
        self._live.max_reroutes = self._allowed(now_s, reserve=REROUTES_PER_S / 2)
        moved = self._live.depart(number)
        self._snapshot = None
        return self._rerouted(moved) if moved and not self._undone(moved) else []

    def expect(self, now_s: float, pair: Pair) -> list[Pair]:
        """Makes room in the plan for connections that cannot move and will carry data, in either direction.

        Those of the pair's two NICs that begin later take it, whichever of the two opens them. Returns the pairs that
        were rerouted.
        """
        self._places.mirror(pair)
        self._begin(now_s, pair)
        place = self._places.of(pair)
        assert place is not None  # the pair has joined
        place.both_ways = True
        return self._give_place(now_s, pair, place) if place.holder is None else []

    def has_sent(self, now_s: float, pair: Pair, sent: int, port: int | None = None) -> list[Pair]:
        """The connection of a pair that cannot move has lasted, and has sent so many bytes; 0: it has just begun.

        Where it has this port already, it counts where that leads. Returns the pairs that were rerouted.
        """
        place = self._places.of(pair)
        assert place is not None  # the pair has arrived
        if port is not None:
            self._keep_port(pair, port)
        elif not sent:
            self._had.pop(pair, None)
        if sent < SENT:
            place.sent.discard(pair)
        if not sent:
            self._shut.pop(pair, None)
            return []
        is_first = sent >= SENT and not place.sent
        if sent >= SENT:
            place.sent.add(pair)
        if place.holder is None:
            return self._give_place(now_s, pair, place)
        if is_first:
            self._put_place(place, place.seen_by(pair, pair.way))
        return []

    def left_on_drained(self) -> Iterator[tuple[Pair, Way]]:
        """The connections that carry data over drained links, since they cannot move, and their ways."""
        for pair, way in self._shut.items():
            place = self._places.of(pair)
            if place is not None and pair in place.sent and self._is_alive(pair, way, self.hashed):
                yield pair, way

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
        self._live.max_reroutes = most_moves
        routes = self._live.refit(fabric)
        self._snapshot = None
        self._pins.forget()
        moved = self._rerouted(routes)
        self._mirror()
        return [*moved, *self._off_dead_links(), *self._repinned()]

    def pin(self, pins: Mapping[PinnedPair, Via]) -> list[Pair]:
        """Pins these pairs, and no others, to ways with the wanted links. Returns the pairs that were rerouted.

        A pair that is pinned no more stays where it is until the planner has reason to move it.
        """
        self._pins.change(pins)
        return self._repinned()

    def put(self, pair: Pair, taken: Collection[int]) -> None:
        """Moves a pair to the way over these links, by number, if they are its and neither dead nor drained."""
        way = self._way_over(pair, taken)
        if way is not None and pair.commodity is not None and self._is_alive(pair, way):
            self._put(pair, way)

    def begins_on(self, pair: Pair) -> tuple[Way, bool]:
        """The way on which a connection begins that has no port yet, and whether the plan has made room there."""
        place = self._places.of(pair)
        assert place is not None  # the pair has arrived
        return place.seen_by(pair, place.way), place.holder is not None

    def is_shared(self, pair: Pair) -> bool:
        """Whether a connection shares its place with another one."""
        place = self._places.of(pair)
        return place is not None and len(place.members) > 1

    def best(self, pair: Pair, taken: Iterable[Collection[int]]) -> int | None:
        """Which of the ways over these links, by number, is loaded least for a pair; None where none is alive.

        A pair that is alone in its place does not count there.
        """
        ways = [self._way_over(pair, each) for each in taken]
        place = self._places.of(pair)
        own = place.seen_by(pair, place.way) if place is not None and len(place.members) == 1 else None
        best = least_congested(pair, filter(None, ways), self.fabric, self.plan(), self._places, own)
        return ways.index(best) if best in ways else None

    def copied(self) -> Work["Routing"]:
        """A routing of its own, with copies of the pairs in the same order, to try changes on.

        It is as this one was at the first step.
        """
        made = copy(self)
        made._live, made._pins, made._counts = self._live.copied(), self._pins.copied(), Counter()
        made._places = self._places.copied()
        were = [(number, pair, pair.way) for number, pair in self.pairs.items()]
        had, shut = [*self._had.items()], [*self._shut.items()]
        copies: dict[Pair, Pair] = {}
        made.pairs = {}
        for done, (number, pair, way) in enumerate(were, 1):
            copies[pair] = made.pairs[number] = pair.routed_alike(number, way)
            if done % _COPIED == 0:
                yield
        for done, _ in enumerate(made._places.replace(copies), 1):
            if done % _COPIED == 0:
                yield
        made._had = {copies[pair]: port for pair, port in had}
        made._shut = {copies[pair]: way for pair, way in shut}
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
        """Takes over new routes, except of pinned pairs and of places that cannot move, which are put back.

        Returns the pairs whose routes changed. Those of places do not.
        """
        moved = []
        for route in routes:
            pair = self.pairs[route.commodity]
            before = pair.way
            place = self._places.of(pair) if pair.client.fixed else None
            if place is not None:
                if not (place.stays and self._put_place(place, place.way)):
                    self._places.put(place, route[1:])
                    if not pair.elephants:  # it is expected, and has not begun anywhere
                        pair.way = before = place.seen_by(pair, place.way)
            elif not (self._pins and pair in self._pins and self._keep_pinned(pair)):
                pair.way = route[1:]
            if pair.way != before:
                moved.append(pair)
        self._counts["moved"] += len(moved)
        self._reroutes -= len(moved)
        return moved

    def _repinned(self) -> list[Pair]:
        """Puts all pinned pairs that can move on their ways. Returns those whose way has changed."""
        if not self._pins:
            return []
        pinned = [(pair, pair.way) for pair in self.pairs.values() if not pair.client.fixed and pair in self._pins]
        moved = [pair for pair, before in pinned if self._keep_pinned(pair) and pair.way != before]
        self._counts["moved"] += len(moved)
        return moved

    def _keep_pinned(self, pair: Pair) -> bool:
        """Puts a pinned pair on its way. Returns whether it has one."""
        way = self._pins.way(pair, self.tables, self.fabric, self.plan)
        if way is None or pair.commodity is None:
            return False
        self._put(pair, way)
        return True

    def _put(self, pair: Pair, way: Way) -> None:
        """Moves a pair, and its place with it, to a way over live links."""
        place = self._places.of(pair) if pair.client.fixed else None
        planned = way if place is None else place.seen_by(pair, way)
        if pair.commodity is not None and pair.commodity < BESIDE:
            self._live.put(pair.commodity, *planned)
            self._snapshot = None
        if place is not None and place.holder in (None, pair):
            self._places.put(place, planned)
        pair.way = way

    # -- of connections that cannot move -------------------------------------------------------------------------------

    def _begin(self, now_s: float, pair: Pair) -> None:
        """A connection begins: on the way of its place, or where there is none on the least congested one."""
        place = self._places.of(pair)
        way = place.seen_by(pair, place.way) if place else self._least_congested(pair)
        self._places.join(pair, way)
        pair.commodity, pair.way, pair.since_s = self._next_beside, way, now_s
        self._next_beside += 1
        self.pairs[pair.commodity] = pair
        if self._pins and pair in self._pins:
            self._keep_pinned(pair)

    def _give_place(self, now_s: float, pair: Pair, place: Place) -> list[Pair]:
        """Puts a place into the plan, and makes room for it if it may move. Returns the pairs that were rerouted."""
        self._live.max_reroutes = 0 if place.stays else self._allowed(now_s, reserve=0.0)
        route, moved = self._live.arrive(pair.client.nic, pair.peer.nic)
        began = pair.way
        self._places.hold(place, pair)
        self._places.put(place, route[1:])
        self._hold(pair, route.commodity)
        self._snapshot = None
        undone = bool(moved) and self._undone(moved, place)
        if place.stays or (self._pins and pair in self._pins):
            self._put_place(place, began)
        elif undone:
            self._put_place(place, self._least_congested(pair, place.way))
        return [] if undone else self._rerouted(moved)

    def _keep_port(self, pair: Pair, port: int) -> None:
        """A connection has this port. It may be none that it was given here: it may have begun before this service."""
        if pair not in self._had and port in self.ports(pair, pair.way):
            return
        way = self.tables.way(pair.client.nic, pair.peer.nic, port, *pair.peer.at[1:])
        if way is None:
            return
        self._had[pair] = port
        if way != pair.way and self._is_alive(pair, way):
            self._put(pair, way)

    def _undone(self, routes: Iterable[AnyRoute], newcomer: Place | None = None) -> bool:
        """Puts all back if one of these new routes is of a place that stays. Returns whether it did.

        A place that will carry data makes room for another such newcomer alone: most others never carry any.
        """
        if not self._places:
            return False
        pairs = [self.pairs[route.commodity] for route in routes]
        places = [self._places.of(pair) if pair.client.fixed else None for pair in pairs]
        expects = newcomer is not None and newcomer.both_ways
        if not any(place is not None and (place.stays or place.both_ways > expects) for place in places):
            return False
        for pair, place in zip(pairs, places, strict=True):
            assert pair.commodity is not None
            self._live.put(pair.commodity, *(pair.way if place is None else place.way))
        self._snapshot = None
        return True

    def _least_congested(self, pair: Pair, own: Way | None = None) -> Way:
        ways = self.tables.ways(pair.client.nic, pair.peer.nic)
        return least_congested(pair, ways, self.fabric, self.plan(), self._places, own)

    def _hold(self, pair: Pair, number: int) -> None:
        """This pair holds its place's commodity from now on."""
        assert pair.commodity is not None
        del self.pairs[pair.commodity]
        pair.commodity, self.pairs[number] = number, pair

    def _end(self, pair: Pair, number: int) -> bool:
        """A connection has ended. Returns whether the commodity of its place ends with it."""
        place = self._places.leave(pair)
        self._had.pop(pair, None)
        self._shut.pop(pair, None)
        if place.holder is not pair:
            return False
        heir = next(iter(place.members), None)
        if heir is not None:
            self._places.hold(place, heir)
            self._hold(heir, number)
        return heir is None

    def _put_place(self, place: Place, way: Way) -> bool:
        """Puts a place that is in the plan on a way. Returns whether that is alive."""
        holder = place.holder
        assert holder is not None
        assert holder.commodity is not None
        if not self._is_alive(holder, place.seen_by(holder, way)):
            return False
        self._live.put(holder.commodity, *way)
        self._places.put(place, way)
        self._snapshot = None
        return True

    def _way_over(self, pair: Pair, taken: Collection[int]) -> Way | None:
        """The way of a pair over these links, by number."""
        src, dst = pair.client.nic, pair.peer.nic
        for way in self.tables.ways(src, dst) if taken else ():
            if sorted(links.on_way(self.fabric, src, dst, way)) == sorted(taken):
                return way
        return None

    def _is_alive(self, pair: Pair, way: Way, fabric: AnyClos | None = None) -> bool:
        """Whether a way has links, and none is dead or drained."""
        taken = links.on_way(self.fabric, pair.client.nic, pair.peer.nic, way)
        return bool(taken) and bool((links.rates(fabric or self.fabric)[[*taken]] > 0).all())

    def _mirror(self) -> None:
        """Puts places that count the same connections on the same links, after the planner has moved them apart."""
        for place, other in self._places.mirrors():
            way = reversed_way(place.way)
            if other.way != way and self._put_place(other, way):
                holder = other.holder
                assert holder is not None
                if not holder.elephants:
                    holder.way = other.seen_by(holder, way)

    def _off_dead_links(self) -> list[Pair]:
        """Counts connections whose way is dead or drained on that of their place until it is neither.

        They keep their ports, so they are back on their own way then.
        """
        moved = [pair for pair, way in self._shut.items() if self._is_alive(pair, way)]
        for pair in moved:
            pair.way = self._shut.pop(pair)
            place = self._places.of(pair)
            assert place is not None  # the pair has arrived
            if pair in place.sent and not any(place.seen_by(one, one.way) == place.way for one in place.sent):
                self._put_place(place, place.seen_by(pair, pair.way))
        for place in self._places:
            for pair in place.members:
                if place.holder is None and not self._is_alive(pair, place.way):
                    self._places.put(place, self._least_congested(pair))
                way = place.seen_by(pair, place.way)
                if pair.way != way and not self._is_alive(pair, pair.way):
                    if pair.way[0] >= 0:  # it began on a path
                        self._shut.setdefault(pair, pair.way)
                    pair.way = way
                    moved.append(pair)
        self._counts["moved"] += len(moved)
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
