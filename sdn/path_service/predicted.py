# SPDX-License-Identifier: Apache-2.0
"""Pinning by prediction: ports by the switches' hash, for a plan that is kept up, and plans for failures. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from netmodel import EcmpHash, Path, PortRef
from sdn.path_service.as_read import AsRead
from sdn.path_service.constraints import Constraints
from sdn.path_service.failover import Failover
from sdn.path_service.next_hops import NextHops
from sdn.path_service.parties import Client, Pair
from sdn.path_service.pinning import HostProbes, Move, Preview, Rerouted, Sends, distinct
from sdn.path_service.routing import Routing
from sdn.path_service.work import Work
from sdn.planners import UNREACHABLE, links
from sdn.planners.links import Way, reversed_way
from sdn.planners.model import Floats
from sdn.planners.planner import AnyCabling


class Predicted:
    """A `Pinning` that computes which ports take a path. Without a hash it plans paths, and knows no ports."""

    offers_probes = False

    def __init__(self, cables: AnyCabling, planner: str, ecmp_hash: EcmpHash | None, counts: Counter[str]) -> None:
        self._cables = cables
        self._counts = counts
        self._routing = Routing(cables, planner, ecmp_hash, counts)
        self._failover = Failover(self._routing, counts)
        self._constraints = Constraints()

    @property
    def pairs(self) -> Mapping[int, Pair]:
        return self._routing.pairs

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        moved = self._routing.arrive(now_s, pair)
        self._failover.note_arrival(pair)
        return self._moved(moved)

    def expect(self, now_s: float, pair: Pair) -> list[Pair]:
        return self._moved(self._routing.expect(now_s, pair))

    def has_sent(self, now_s: float, pair: Pair, sent: int, port: int | None) -> list[Pair]:
        return self._moved(self._routing.has_sent(now_s, pair, sent, port))

    def depart(self, now_s: float, number: int) -> list[Pair]:
        return self._moved(self._routing.depart(now_s, number))

    def ports(self, pair: Pair) -> list[int]:
        return self._routing.ports(pair, pair.way)

    def ports_back(self, back: Pair, pair: Pair) -> list[int]:
        """The lanes lead back over the links of the data."""
        return self._routing.ports(back, reversed_way(pair.way))

    def is_settled(self, pair: Pair) -> bool:
        return True

    def leave(self, now_s: float, client: Client) -> list[Pair]:
        return []

    def constrain(self, now_s: float, constraints: Constraints) -> Rerouted:
        return self._constrained(constraints) if constraints != self._constraints else Rerouted([], [])

    def next_hops(self, now_s: float, constraints: Constraints, next_hops: NextHops) -> Rerouted:
        """From now on ports are predicted by these groups; until then by groups in the order of ports."""
        return self._constrained(constraints, AsRead(self._cables, next_hops))

    def keep(self, pair: Pair, path: Path) -> None:
        try:
            taken = self._links(path[1:-1])
        except KeyError:  # there is no such link any more
            return
        self._routing.put(pair, taken)

    def begins_on(self, pair: Pair) -> tuple[Path | None, bool]:
        """The path on which a connection begins that has no port yet, and whether the plan has made room there."""
        way, planned = self._routing.begins_on(pair)
        return self._cables.path_by(pair.client.nic, pair.peer.nic, *way), planned

    def is_shared(self, pair: Pair) -> bool:
        """Whether a connection shares its place of the plan with another one."""
        return self._routing.is_shared(pair)

    def best(self, pair: Pair, paths: Iterable[Iterable[PortRef]]) -> int | None:
        """Which of these paths between switches is loaded least for a pair; None where none is alive."""
        return self._routing.best(pair, map(self._links, paths))

    def preview(self, constraints: Constraints) -> Work[Preview]:
        """Tried on a copy of the routing."""
        was, before, numbers = self._constraints, self._routing.plan(), self._routing.numbers()
        pairs = [self._routing.pairs[number] for number in numbers]
        ways = [pair.way for pair in pairs]
        then = yield from self._routing.copied()
        yield
        self._rerouted(then, was, constraints)
        yield
        after = then.plan()
        yield
        rates_before = before.rates.tolist()
        yield
        rates_after = after.rates.tolist()
        yield
        tried = [then.pairs[number].way for number in numbers]
        moves = [
            Move(pair, self._paths(pair, own), self._paths(pair, other))
            for pair, own, other in zip(pairs, ways, tried, strict=True)
            if own != other
        ]
        return Preview(pairs, moves, rates_before, rates_after, links.loads(before), links.loads(after))

    def heard(self, now_s: float, client: Client, message: HostProbes) -> list[Pair]:
        """Nothing is measured, so no host was asked."""
        return []

    def due(self, now_s: float) -> tuple[Sends, list[Pair]]:
        return [], []

    def prepare(self) -> bool:
        return self._routing.is_incremental and self._failover.prepare()

    def rates_bps(self) -> Iterator[tuple[Pair, float]]:
        rates = self._routing.plan().rates.tolist()
        for number, rate_bps in zip(self._routing.numbers(), rates, strict=True):
            yield self._routing.pairs[number], rate_bps

    def paths(self, pair: Pair) -> list[Path]:
        return self._paths(pair, pair.way)

    def known_paths(self, pair: Pair) -> list[Path]:
        way = self._routing.taken(pair)
        return [] if way is None else self._paths(pair, way)

    def _paths(self, pair: Pair, way: Way) -> list[Path]:
        path = self._cables.path_by(pair.client.nic, pair.peer.nic, *way)
        return [] if path is None else [path]

    def loads(self) -> Floats:
        """With connections that are left on drained links."""
        loads = links.loads(self._routing.plan()).copy()
        for pair, way in self._routing.left_on_drained():
            for at, link in enumerate(links.on_way(self._routing.fabric, pair.client.nic, pair.peer.nic, way)):
                loads[at % 2, link] += 1
        return loads

    def status(self) -> dict[str, Any]:
        plan, polarised = self._routing.plan(), self._routing.polarised
        return {
            "unreachable": sum(way[0] == UNREACHABLE for way in links.ways(plan)),
            "slowest_bps": plan.fairness.minimum if self._routing.pairs else None,
            "gap": plan.gap,
            "polarised": None if polarised is None else polarised.statement,
            "prepared_failures": len(self._failover),
            "measured": None,
        }

    def _links(self, path: Iterable[PortRef]) -> list[int]:
        """The numbers of the links by which a path leaves switches."""
        return [self._cables.link_number(self._cables.topology.link_at(port)) for port in path]

    def _moved(self, moved: list[Pair]) -> list[Pair]:
        self._failover.age()
        if moved:
            self._failover.note(moved)
        return moved

    def _constrained(self, constraints: Constraints, choices: AsRead | None = None) -> Rerouted:
        """Changes to these constraints, and to the groups of switches, if they were read."""
        dead, was = constraints.dead, self._constraints
        before, gone = self._routing.hashed, frozenset(map(self._cables.link_number, dead - was.dead))
        ahead = bool(gone) and self._routing.is_incremental and constraints == replace(was, dead=dead | was.dead)
        detours = self._failover.plan_for(gone) if ahead else None
        hashed = self._cables.without(dead).fabric
        cut = [pair for pair in self._routing.pairs.values() if self._crosses(pair, gone)] if gone else []
        if choices is not None:
            self._routing.follow(choices)
        moved: list[Pair] = []
        if detours is not None:
            fabric = self._cables.without(constraints.avoided).fabric
            moved = self._failover.apply(detours, fabric, hashed, cut)
        else:
            moved = self._rerouted(self._routing, was, constraints)
            self._failover.note(moved)
        self._constraints = constraints
        if choices is not None:
            self._routing.follow(choices.around(hashed))
        self._failover.restart()
        self._failover.age()
        # Switches around links that changed hash over other members now, whatever the paths.
        touched = links.touched_nics(before, hashed).tolist()
        rest = [
            pair
            for pair in self._routing.pairs.values()
            if choices is not None or touched[pair.client.nic] or touched[pair.peer.nic]
        ]
        return Rerouted(cut, [*moved, *rest])

    def _rerouted(self, routing: Routing, was: Constraints, constraints: Constraints) -> list[Pair]:
        """Changes a routing from some constraints to others. Returns the pairs that were rerouted.

        A drain moves the elephants on the drained links, and no others where the planner can keep them.
        """
        moved: list[Pair] = []
        if constraints.avoided != was.avoided or constraints.dead != was.dead:
            fabric, hashed = (self._cables.without(some).fabric for some in (constraints.avoided, constraints.dead))
            drains_only = constraints.dead == was.dead and constraints.drained > was.drained
            moved = routing.refit(fabric, hashed, 0 if drains_only else None)
        if constraints.pins != was.pins:
            moved = distinct((*moved, *routing.pin(constraints.pins)))
        return moved

    def _crosses(self, pair: Pair, gone: frozenset[int]) -> bool:
        way = links.on_way(self._routing.fabric, pair.client.nic, pair.peer.nic, pair.way)
        return not gone.isdisjoint(way)
