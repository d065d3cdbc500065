# SPDX-License-Identifier: Apache-2.0
"""Pinning by prediction: ports by the switches' hash, for a plan that is kept up, and plans for failures. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from netmodel import EcmpHash, Link, Path
from sdn.path_service.as_read import AsRead
from sdn.path_service.failover import Failover
from sdn.path_service.next_hops import NextHops
from sdn.path_service.parties import Client, Pair
from sdn.path_service.pinning import HostProbes, Rerouted, Sends
from sdn.path_service.routing import Routing
from sdn.planners import UNREACHABLE, links
from sdn.planners.links import reversed_way
from sdn.planners.model import Floats
from sdn.planners.planner import AnyCabling


class Predicted:
    """A `Pinning` that computes which ports take a path."""

    offers_probes = False

    def __init__(self, cables: AnyCabling, planner: str, ecmp_hash: EcmpHash, counts: Counter[str]) -> None:
        self._cables = cables
        self._counts = counts
        self._routing = Routing(cables, planner, ecmp_hash, counts)
        self._failover = Failover(self._routing, counts)
        self._dead: frozenset[Link] = frozenset()

    @property
    def pairs(self) -> Mapping[int, Pair]:
        return self._routing.pairs

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        moved = self._routing.arrive(now_s, pair)
        self._failover.note_arrival(pair)
        return self._moved(moved)

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

    def links(self, now_s: float, dead: frozenset[Link]) -> Rerouted:
        return self._with_dead(dead) if dead != self._dead else Rerouted([], [])

    def next_hops(self, now_s: float, dead: frozenset[Link], next_hops: NextHops) -> Rerouted:
        """From now on ports are predicted by these groups; until then by groups in the order of ports."""
        return self._with_dead(dead, AsRead(self._cables, next_hops))

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
        path = self._cables.path_by(pair.client.nic, pair.peer.nic, *pair.way)
        return [] if path is None else [path]

    def loads(self) -> Floats:
        return links.loads(self._routing.plan())

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

    def _moved(self, moved: list[Pair]) -> list[Pair]:
        self._failover.age()
        if moved:
            self._failover.note(moved)
        return moved

    def _with_dead(self, dead: frozenset[Link], choices: AsRead | None = None) -> Rerouted:
        """Changes to these dead links, and to the groups of switches, if they were read."""
        changed = dead ^ self._dead
        before, gone = self._routing.fabric, frozenset(map(self._cables.link_number, dead - self._dead))
        detours = self._failover.plan_for(gone) if gone and dead > self._dead else None
        fabric = self._cables.without(dead).fabric
        cut = [pair for pair in self._routing.pairs.values() if self._crosses(pair, gone)] if gone else []
        self._dead = dead
        if choices is not None:
            self._routing.follow(choices)
        moved: list[Pair] = []
        if detours is not None:
            moved = self._failover.apply(detours, fabric, cut)
        elif changed:
            moved = self._routing.refit(fabric)
            self._failover.note(moved)
        if choices is not None:
            self._routing.follow(choices.around(fabric))
        self._failover.restart()
        self._failover.age()
        # Switches around links that changed hash over other members now, whatever the paths.
        touched = links.touched_nics(before, fabric).tolist()
        rest = [
            pair
            for pair in self._routing.pairs.values()
            if choices is not None or touched[pair.client.nic] or touched[pair.peer.nic]
        ]
        return Rerouted(cut, [*moved, *rest])

    def _crosses(self, pair: Pair, gone: frozenset[int]) -> bool:
        way = links.on_way(self._routing.fabric, pair.client.nic, pair.peer.nic, pair.way)
        return not gone.isdisjoint(way)
