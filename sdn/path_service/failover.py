# SPDX-License-Identifier: Apache-2.0
"""Failover plans of a path service: for every single failure, the routes and ports to change to. Pure.

A plan names the commodities that it reroutes by client and peer, with the way that each had. So it stays right while
the same commodities come and go along the same ways. It is discarded when a commodity arrives, or is rerouted, whose
way the failure would cut and which the plan does not know.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sdn.failover import Failure, Precomputed, failures, plan_after, repaired
from sdn.path_service.parties import Pair
from sdn.path_service.ports import Peer, PortTables
from sdn.path_service.routing import Routing
from sdn.planners import links
from sdn.planners.links import AnyClos, Way

_MOST_PLANS = 8192  # failures that get a plan, those first that would cut most
_MOST_CHANGES = 10_000  # changed pairs that are remembered; when there are more, all plans are made anew
_CHECKED = 256  # changed pairs that are checked in one step
_PORTS_AHEAD = 16  # rerouted commodities of a plan whose ports are looked up ahead


@dataclass(frozen=True, slots=True)
class Detours:
    """The changes after one failure: the routes of some commodities, and all port tables."""

    ways: dict[tuple[tuple[str, str], Peer], tuple[Way, Way]]
    """By client's key and peer: the way that the commodity had, and the way to take instead."""
    tables: PortTables

    def of(self, pair: Pair) -> Way | None:
        """The way to take instead; None when there is no plan for a commodity on this pair's present way."""
        known = self.ways.get((pair.client.key, pair.peer.at))
        return known[1] if known is not None and known[0] == pair.way else None


class Failover:
    """The failover plans for a routing, made a step at a time."""

    def __init__(self, routing: Routing, counts: Counter[str]) -> None:
        self._routing = routing
        self._counts = counts
        self._plans = Precomputed[Failure, Detours](self._failures, self._plan_for)
        # Arguments of `PortTables.ports`.
        self._lookups: deque[tuple[PortTables, int, int, Way, int, int, int]] = deque()
        self._changed: deque[Pair] = deque(maxlen=_MOST_CHANGES)  # pairs that arrived or were rerouted, unchecked
        self._switches: dict[int, list[Failure]] | None = None  # by link: the failures of whole switches that have it

    def __len__(self) -> int:
        """The number of failures that have a plan."""
        return len(self._plans)

    def note(self, pairs: Iterable[Pair]) -> None:
        """Remember pairs whose commodities have arrived or were rerouted, until `prepare` has checked them."""
        self._changed.extend(pairs)

    def note_arrival(self, pair: Pair) -> None:
        """As `note`, for one pair."""
        self._changed.append(pair)

    def age(self) -> None:
        """Have `prepare` recompute all plans: commodities have come or gone, so that plans may be suboptimal."""
        self._plans.aged = True

    def restart(self) -> None:
        """Discard all plans, because links have changed."""
        self._plans.restart()
        self._lookups.clear()
        self._switches = None

    def prepare(self) -> bool:
        """Does one step of the work ahead of failures. False, with nothing done, when there is none left."""
        return self._look_up_ports() or self._check_changes() or self._plans.step()

    def plan_for(self, failure: Failure) -> Detours | None:
        """The plan for the failure of exactly these links; None where there is none."""
        return self._plans.for_failure(failure)

    def apply(self, detours: Detours, fabric: AnyClos, hashed: AnyClos, cut: list[Pair]) -> list[Pair]:
        """Changes the routing to a plan, repaired if it lacks some of `cut`. Returns the pairs that were rerouted.

        `fabric` and `hashed` are those of `Routing` after the failure.
        """
        now = self._routing.plan()
        pairs = [self._routing.pairs[number] for number in self._routing.numbers()]
        ways = [detours.of(pair) or pair.way for pair in pairs]
        ready = sum(detours.of(pair) is not None for pair in cut)
        if ready == len(cut):
            plan = links.with_ways(now, fabric, ways)
            self._counts["prepared plans used"] += 1
        else:
            plan = repaired(links.with_ways(now, now.fabric, ways), fabric)
            self._counts["prepared plans mended"] += 1
        self._counts["elephants cut, path ready"] += ready
        return self._routing.adopt(plan, hashed, detours.tables)

    def _failures(self) -> list[Failure]:
        return failures(self._routing.fabric, self._routing.plan())[:_MOST_PLANS]

    def _plan_for(self, failure: Failure) -> Detours:
        now = self._routing.plan()
        plan = plan_after(now, failure)
        tables = self._routing.tables.around(links.without(self._routing.hashed, failure))
        numbers = self._routing.numbers()
        ways = {}
        both = zip(links.ways(now), links.ways(plan), numbers, strict=True)
        moved = ((way, number) for was, way, number in both if was != way)
        for done, (way, number) in enumerate(moved):
            pair = self._routing.pairs[number]
            client, peer = pair.client, pair.peer
            ways[client.key, peer.at] = pair.way, way
            if done < _PORTS_AHEAD:
                self._lookups.append((tables, client.nic, peer.nic, way, client.lanes, *peer.at[1:]))
                for receiver in peer.receivers.values():
                    back = peer.nic, client.nic, links.reversed_way(way), receiver.lanes, *client.endpoint.at[1:]
                    self._lookups.append((tables, *back))
        return Detours(ways, tables)

    def _look_up_ports(self) -> bool:
        """Looks up ports of a plan ahead, so that the tables have them. Returns whether there were any to look up.

        One lookup may hash thousands of ports.
        """
        if not self._lookups:
            return False
        tables, src, dst, way, lanes, port, protocol = self._lookups.popleft()
        tables.ports(src, dst, way, lanes, port, protocol)
        return True

    def _check_changes(self) -> bool:
        """Discards plans that lack some changed commodities. Returns whether any had changed."""
        if len(self._changed) == _MOST_CHANGES:
            self._changed.clear()
            self._plans.restart()
        some = min(_CHECKED, len(self._changed))
        for _ in range(some):
            pair = self._changed.popleft()
            if pair.commodity is None or pair.way[0] < 0:
                continue
            for failure in self._cutting(pair):
                detours = self._plans.for_failure(failure)
                if detours is not None and detours.of(pair) is None:
                    self._plans.discard(failure)
        return some > 0

    def _cutting(self, pair: Pair) -> Iterator[Failure]:
        """The single failures that would cut a pair's way; some of them several times."""
        if self._switches is None:
            self._switches = {}
            for switch in map(frozenset, links.of_switches(self._routing.fabric)):
                for link in switch:
                    self._switches.setdefault(link, []).append(switch)
        for link in links.on_way(self._routing.fabric, pair.client.nic, pair.peer.nic, pair.way):
            yield frozenset((link,))
            yield from self._switches.get(link, ())
