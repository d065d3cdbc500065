# SPDX-License-Identifier: Apache-2.0
"""Pairs pinned to planned paths whose ports were measured: discovery and plan together. No I/O.

Events in; out come the probes to send, and the pairs whose ports have changed.
"""

from collections.abc import Iterable, Mapping

from netmodel import PortRef
from netmodel.flow import Address
from sdn.measured.discovery import Ask, Discovery, PairKey
from sdn.measured.fabric import MeasuredFabric, Way
from sdn.measured.known_paths import KnownPaths
from sdn.measured.pace import Pace
from sdn.measured.tables import MeasuredTables

MOST_MOVES = 16
"""Pairs that move, at most, when a plan gets better."""


class MeasuredPinning:
    """Plans a path for each announced pair from those that probes have found, and gives the ports that take it.

    All links get the rates of the fabric's topology, and all pairs count alike. Times are in seconds, and never
    decrease.
    """

    def __init__(self, fabric: MeasuredFabric, *, pace: Pace | None = None, seed: int = 0) -> None:
        self._fabric = fabric
        self._tables: MeasuredTables[Way] = MeasuredTables()
        self._discovery: Discovery[Way] = Discovery(self._tables, pace=pace, seed=seed)
        topology = fabric.topology
        self._plan: KnownPaths[PairKey, PortRef] = KnownPaths(
            {
                port: topology.link_at(port).rate_bps
                for port in topology.linked_ports()
                if not topology.has_host(port.node) and not topology.has_host(topology.peer(port).node)
            }
        )
        self._lanes: dict[PairKey, int] = {}

    @property
    def congestion(self) -> float:
        """Pairs on the worst link, over its rate in bit/s."""
        return self._plan.congestion

    def announce(self, now_s: float, pair: PairKey, lanes: int) -> bool:
        """A pair sends over so many lanes. Returns whether it can be pinned; where not, its ports do not matter."""
        sight = self._fabric.sight(pair.src, pair.dst)
        if sight is None:
            return False
        if pair not in self._lanes:
            self._plan.arrive(pair, 1.0, [], MOST_MOVES)
        self._lanes[pair] = lanes
        self._discovery.announce(now_s, pair, sight)
        self._update(now_s, pair)
        return True

    def release(self, now_s: float, pair: PairKey) -> list[PairKey]:
        """A pair sends no more. Returns the others that moved."""
        if self._lanes.pop(pair, None) is None:
            return []
        self._discovery.release(now_s, pair)
        return self._aim(now_s, self._plan.depart(pair, MOST_MOVES))

    def due(self, now_s: float) -> list[Ask]:
        """What to probe now. `probed` has to follow for each, also where no answer came."""
        return self._discovery.due(now_s)

    def probed(self, now_s: float, ask: Ask, answers: Mapping[int, Address]) -> list[PairKey]:
        """What came of an `Ask`: the address that answered, by port. Returns the pairs whose ports may have changed.

        Answers from addresses that are on no path of the pair count for none. If a port has moved, the routes have
        changed, maybe for all pairs behind the same switches: their ports are probed again. So a host that watches a
        port in use tells what it sees by this function too.
        """
        src, dst, _ = ask.pair
        ways = {port: way for port, one in answers.items() if (way := self._fabric.way(src, dst, one)) is not None}
        news = self._discovery.answered(now_s, ask, ways)
        if ask.pair not in self._lanes:
            return []
        own = [ask.pair, *self._discovery.doubt_beside(now_s, ask.pair)] if news else []
        return list(dict.fromkeys((*own, *self._update(now_s, ask.pair))))

    def cut(self, now_s: float, links: Iterable[PortRef]) -> list[PairKey]:
        """Links have died, named by their ports, one for each direction. Returns the pairs whose ports may change.

        Routers on the way hash over other members now, so the ports of all pairs whose ways have such a link are
        probed again.
        """
        dead = set(links)
        return self._rerouted(now_s, dead, self._plan.cut(dead, MOST_MOVES))

    def mend(self, now_s: float, links: Iterable[PortRef]) -> list[PairKey]:
        """Links are back. Returns the pairs whose ports may change; the ports of these are probed again."""
        back = set(links)
        return self._rerouted(now_s, back, self._plan.mend(back, MOST_MOVES))

    def path(self, pair: PairKey) -> tuple[PortRef, ...] | None:
        """The links between switches of the planned path; None while none is known. Raises KeyError as `ports`."""
        return self._plan.path(pair)

    def ports(self, pair: PairKey) -> list[int]:
        """The ports of the pair's lanes, all on the planned path, ascending; empty until enough are known.

        Raises KeyError for a pair that is not announced.
        """
        way = self._planned(pair)
        return [] if way is None else self._tables.ports(pair.src, pair.dst, way, self._lanes[pair], pair.dst_port)

    def _rerouted(self, now_s: float, links: set[PortRef], moved: Iterable[PairKey]) -> list[PairKey]:
        """Routes over the links have changed, and the plan moved pairs. Returns the pairs whose ports may change."""
        hit = [pair for pair in self._lanes if self._crosses(pair, links)]
        for pair in hit:
            self._discovery.doubt(now_s, pair)
        return list(dict.fromkeys((*self._aim(now_s, moved), *hit)))

    def _planned(self, pair: PairKey) -> Way | None:
        path = self._plan.path(pair)
        ways = self._tables.ways(*pair)
        return next((way for way in ways if self._fabric.links(pair.src, pair.dst, way) == path), None)

    def _crosses(self, pair: PairKey, links: set[PortRef]) -> bool:
        return any(not links.isdisjoint(path) for path in self._fabric.paths(pair.src, pair.dst))

    def _update(self, now_s: float, pair: PairKey) -> list[PairKey]:
        """Gives the plan what is known of a pair now."""
        known = [self._fabric.links(pair.src, pair.dst, way) for way in self._tables.ways(*pair)]
        moved: list[PairKey] = []
        if not self._tables.doubtful(*pair):  # what is doubtful may still be right
            unknown = set(self._fabric.paths(pair.src, pair.dst)) - set(known)
            moved += self._plan.unlearn(pair, unknown, MOST_MOVES)
        moved += self._plan.learn(pair, known, MOST_MOVES)
        if self._discovery.ready(pair) or self._discovery.idle(pair):
            moved.append(pair)
        return self._aim(now_s, dict.fromkeys(moved))

    def _aim(self, now_s: float, moved: Iterable[PairKey]) -> list[PairKey]:
        """Looks for ports along the planned ways of pairs that know enough of these."""
        pairs = list(moved)
        for pair in pairs:
            way = self._planned(pair)
            if way is not None and (self._discovery.ready(pair) or self._discovery.idle(pair)):
                self._discovery.aim(now_s, pair, way, self._lanes[pair])
        return pairs
