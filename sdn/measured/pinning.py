# SPDX-License-Identifier: Apache-2.0
"""Pairs pinned to planned paths whose ports were measured: discovery and plan together. No I/O.

Events in; out come the probes to send, and the pairs whose ports may have changed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from netmodel import IPPROTO_TCP, PortRef
from netmodel.flow import Address
from sdn.measured.discovery import ENOUGH, Ask, Discovery, Hop, PairKey
from sdn.measured.fabric import Links, MeasuredFabric, Way
from sdn.measured.hops import settled
from sdn.measured.known_paths import KnownPaths
from sdn.measured.lane_ports import lane_ports
from sdn.measured.lossy_links import Lossy, LossyLinks
from sdn.measured.pace import Pace
from sdn.measured.steering import Steering, Via
from sdn.measured.tables import MeasuredTables

MOST_MOVES = 16
"""Shares of pairs that move, at most, when a plan gets better."""
TRUST_S = 10.0
"""Seconds after which a host may again say that routes have changed for others too."""

_CONTRADICTIONS = 8  # of a pair, before its answers are not believed
_ELSEWHERE = "routers answer by addresses that are on none of the pair's paths"
_CONTRADICT = (
    "answers contradict each other: with parallel links, routers must name the port at which a probe comes in "
    "(net.ipv4.icmp_errors_use_inbound_ifaddr=1)"
)

Lanes = Literal["distinct", "together"]
"""Whether the lanes of a pair take several planned paths, or one."""

_Share = tuple[PairKey, int]  # of a pair's lanes, by number: those that take one path


class Share(NamedTuple):
    """A path, and the part of a pair's demand that takes it."""

    path: Links
    part: float


@dataclass(slots=True)
class _Pinned:
    """An announced pair."""

    shares: list[int]
    """The number of lanes of each share."""
    sought: Mapping[Way, int] = field(default_factory=dict)
    """By way: the ports that are wanted beside those of lanes."""
    given: list[int] = field(default_factory=list)
    """The ports of the lanes, as `ports` has returned them last."""
    taken: dict[int, Way] = field(default_factory=dict)
    """The way of each of them, as it was known last."""
    answered: dict[Way, tuple[Address, ...]] = field(default_factory=dict)
    """The addresses that answered for each way, at the hops of its `Sight`."""
    fits: int = 0
    """Ports whose answers, since it was announced, told a way."""
    elsewhere: bool = False
    """Whether those who answered last are on no path of the pair."""
    contradictions: int = 0
    """Ports whose answers cannot be of one way."""

    @property
    def contradictory(self) -> bool:
        """Whether answers cannot be believed. A change of routes between two of them makes few such ports."""
        return self.contradictions >= _CONTRADICTIONS and self.contradictions * 4 > self.fits


class MeasuredPinning:
    """Plans paths for each announced pair from those that probes have found, and gives the ports that take them.

    With `lanes` "distinct" the lanes of a pair are spread over up to `ENOUGH` planned paths, or evenly over all where
    there are no more, which needs few probes. With "together" they take one path. All links get the rates of the
    fabric's topology, and all pairs count alike. Times are in seconds, and never decrease.
    """

    def __init__(
        self, fabric: MeasuredFabric, *, lanes: Lanes = "distinct", pace: Pace | None = None, seed: int = 0
    ) -> None:
        self._fabric = fabric
        self._spread = ENOUGH if lanes == "distinct" else 1
        self._tables: MeasuredTables[Way] = MeasuredTables()
        self._discovery: Discovery[Way] = Discovery(self._tables, pace=pace, seed=seed)
        topology = fabric.topology
        self._rates = {
            port: topology.link_at(port).rate_bps
            for port in topology.linked_ports()
            if not topology.has_host(port.node) and not topology.has_host(topology.peer(port).node)
        }
        self._plan: KnownPaths[_Share, PortRef] = KnownPaths(self._rates)
        self._pairs: dict[PairKey, _Pinned] = {}
        self._steering = Steering()
        self._trusted_s: dict[int, float] = {}  # by source: since when its news count for others
        self._cut: set[PortRef] = set()
        self._lossy: LossyLinks[PortRef] = LossyLinks()
        self.moves = 0
        """Lanes whose port leads along another path than before, and lanes that have changed their port."""

    @property
    def congestion(self) -> float:
        """Pairs on the worst link, over its rate in bit/s."""
        return self._plan.congestion

    def announce(self, now_s: float, pair: PairKey, lanes: int, *, searches: bool = True) -> list[PairKey] | None:
        """A pair sends over so many lanes; with 0 it is in no plan, and only what `seek` asks for is probed.

        Its host `searches` if it knows `Ask.once` and `Ask.until`. Returns the pairs whose ports may have changed.
        None where it cannot be pinned; then its ports do not matter, or answers do not tell its path.
        """
        sight = self._fabric.sight(pair.src, pair.dst)
        if sight is None:
            return None
        shares = _shares(lanes, min(self._spread, sight.ways))
        pinned = self._pairs.get(pair)
        moved: list[PairKey] = []
        if pinned is None or pinned.shares != shares:
            if pinned is not None:
                moved += self._leave(pair, pinned)
            self._pairs[pair] = _Pinned(shares, sought={} if pinned is None else pinned.sought)
            for number, own in enumerate(shares):
                self._plan.arrive((pair, number), own / lanes, [], MOST_MOVES)
        else:
            pinned.fits = pinned.contradictions = 0
        self._discovery.announce(now_s, pair, sight, lanes=lanes, only_aims=not shares, searches=searches)
        return _distinct((*self._aim(now_s, moved), *self._update(now_s, pair)))

    def seek(self, now_s: float, pair: PairKey, paths: Mapping[Links, int], used: Iterable[int], urgent: bool) -> None:
        """Looks for so many ports along each of these paths of an announced pair, beside those of its lanes.

        Connections that cannot move have the ports that are `used`, which their host therefore cannot probe.
        """
        pinned = self._pairs[pair]
        ways = {self._links(pair, way): way for way in self._fabric.ways(pair.src, pair.dst)}
        pinned.sought = {ways[path]: ports for path, ports in paths.items()}
        if not pinned.shares:
            self._discovery.hold(pair, used)
        self._aim(now_s, [pair], urgent)

    def known(self, pair: PairKey) -> dict[int, Links]:
        """The path of every port of a pair that is known, by ascending ports."""
        return {port: self._links(pair, way) for port, way in self._tables.known(*pair).items()}

    def release(self, now_s: float, pair: PairKey) -> list[PairKey]:
        """A pair sends no more. Returns the others whose ports may have changed."""
        pinned = self._pairs.pop(pair, None)
        if pinned is None:
            return []
        self._discovery.release(now_s, pair)
        return self._aim(now_s, self._leave(pair, pinned))

    def due(self, now_s: float) -> list[Ask]:
        """What to probe now. `probed` has to follow for each, also where no answer came."""
        return self._discovery.due(now_s)

    def probed(
        self, now_s: float, ask: Ask, answers: Mapping[int, Address], left_out: Collection[int] = ()
    ) -> list[PairKey]:
        """What came of an `Ask`: the address that answered, by port. Returns the pairs whose ports may have changed.

        Ports that were `left_out` were not probed; the others without an address were, and nobody answered.
        Answers from addresses that are on no path of the pair count for none. If a port has moved, the routes have
        changed, maybe for all pairs behind the same switches, and for those with lanes over a link or a router of the
        path that the port has left, in either direction: their ports are probed again, and they may move to make room,
        unless the same host said so within `TRUST_S` seconds.
        """
        src, dst, *_ = ask.pair
        sight = self._fabric.sight(src, dst)
        assert sight is not None  # it is asked about
        told, further = settled(ask, sight.hops, answers, left_out)
        if further is not None:
            self._discovery.follow(now_s, further)
        self._discovery.leave_out(ask, left_out)
        if further is not None and not told:
            return []
        before = self._tables.known(*ask.pair)
        ways = {port: way for port, by in told.items() if (way := self._fabric.way(src, dst, by)) is not None}
        trusted = now_s >= self._trusted_s.get(src, 0.0)
        pinned = self._pairs.get(ask.pair)
        if pinned is not None:
            pinned.fits += len(ways)
            astray = [by for port, by in told.items() if by and port not in ways]
            clashes = sum(self._fabric.contradicts(src, dst, by) for by in astray)
            pinned.contradictions += clashes
            pinned.elsewhere = not ways and len(astray) > clashes
            if pinned.contradictory:
                self._tables.forget(*ask.pair)
                ways = {}
        news = self._discovery.answered(now_s, replace(ask, ports=tuple(told)), ways, trusted=trusted)
        if pinned is None:
            return []
        if any(hop.ttl == ask.ttl for hop in sight.hops):
            pinned.answered |= {way: told[port] for port, way in ways.items()}
        others: list[PairKey] = []
        if news and trusted:
            self._trusted_s[src] = now_s + TRUST_S
            others = self._discovery.doubt_beside(now_s, ask.pair)
            left = [(before[port], way) for port, way in ways.items() if before.get(port, way) != way]
            others += self._doubt_over(now_s, *self._left(ask.pair, left), (ask.pair, *others))
        most_moves = MOST_MOVES if trusted else 0
        return _distinct((ask.pair, *others, *self._update(now_s, ask.pair, most_moves)))

    def moved(self, now_s: float, pair: PairKey, answers: Mapping[int, Address]) -> list[PairKey]:
        """Other addresses than before have answered for `watched` ports of an announced pair, at any hop.

        Where one hop tells the way this is as `probed`; else the ports are probed at all hops, before anything else.
        Returns the pairs whose ports may have changed.
        """
        sight = self._fabric.sight(pair.src, pair.dst)
        assert sight is not None  # it is announced
        if len(sight.hops) == 1:
            return self.probed(now_s, Ask(pair, sight.hops[0].ttl, tuple(answers)), answers)
        for port in answers:
            self._discovery.check(now_s, pair, port)
        return []

    def doubt(self, now_s: float, pair: PairKey) -> None:
        """A port in use is not answered any more: the ports of the pair are probed again, if it is announced."""
        if pair in self._pairs:
            self._discovery.doubt(now_s, pair)

    def lost(self, now_s: float, pair: PairKey, port: int) -> None:
        """A lane of an announced pair has lost packets: its port is probed, and `blame` may name a link of its path."""
        pinned = self._pairs[pair]
        if port in pinned.given:
            links = self._links(pair, pinned.taken[port])
            self._lossy.report(now_s, (pair, port), self._fabric.nics[pair.src].node, links)
            self._discovery.check(now_s, pair, port)

    def blame(self, now_s: float) -> tuple[list[Lossy[PortRef]], list[PairKey]]:
        """Links that lose packets, by what lanes have lost, since the last call: plans avoid them for some time.

        Returns them, and the pairs whose ports may have changed.
        """
        over = set(self._lossy.over(now_s))
        moved = self._plan.mend(over - self._cut, MOST_MOVES)
        found: list[Lossy[PortRef]] = []
        if self._lossy.is_due(now_s):
            lanes = Counter(link for pair in self._pairs for path in self.paths(pair) for link in path)
            found = self._lossy.judge(now_s, lanes)
            over.update(link for each in found for link in each.links)
            moved += self._plan.cut({link for each in found for link in each.links}, MOST_MOVES)
        changed = self._replanned(now_s, over, moved) if over else []
        for pair in changed if found else ():
            self._discovery.hurry(now_s, pair)
        return found, changed

    def avoids(self, pair: PairKey) -> bool:
        """Whether a lane of an announced pair still takes a path that plans avoid."""
        return any(link in self._lossy.avoided for path in self.paths(pair) for link in path)

    @property
    def avoided(self) -> list[PortRef]:
        """The links that plans avoid because they lose packets."""
        return list(self._lossy.avoided)

    def cut(self, now_s: float, links: Iterable[PortRef]) -> list[PairKey]:
        """Links have died, named by their ports, one for each direction. Returns the pairs whose ports may change.

        Routers on the way hash over other members now, so the ports of all pairs whose ways have such a link are
        probed again.
        """
        dead = set(links)
        self._cut |= dead
        return self._rerouted(now_s, dead, self._plan.cut(dead, MOST_MOVES))

    def mend(self, now_s: float, links: Iterable[PortRef]) -> list[PairKey]:
        """Links are back. Returns the pairs whose ports may change; the ports of these are probed again."""
        back = set(links)
        self._cut -= back
        self._lossy.forget(back)
        return self._rerouted(now_s, back, self._plan.mend(back, MOST_MOVES))

    def steer(self, now_s: float, drained: Iterable[PortRef], pins: Mapping[tuple[int, int], Via]) -> list[PairKey]:
        """Plans over these drained links no more, and the pairs of these NICs over paths with the wanted links.

        The ports of planned paths are probed for where they are not known. Lanes keep theirs until then. Returns the
        pairs whose ports may have changed.
        """
        before, self._steering = self._steering, Steering(frozenset(drained), dict(pins))
        moved = [
            key
            for pair in self._steered(before)
            for key in self._replan(self._plan, pair, self._steering, most_moves=0)
        ]
        return self._aim(now_s, moved)

    def preview(
        self, drained: Iterable[PortRef], pins: Mapping[tuple[int, int], Via]
    ) -> dict[PairKey, tuple[list[Share], list[Share]]]:
        """The planned paths of every announced pair now, and after `steer`, with the part of its demand on each."""
        steering, plan = Steering(frozenset(drained), dict(pins)), self._plan.copied()
        before = {pair: self._planned(self._plan, pair) for pair in self._pairs}
        was, self._steering = self._steering, steering
        try:
            for pair in self._steered(was):
                self._replan(plan, pair, steering, most_moves=0)
        finally:
            self._steering = was
        return {pair: (paths, self._planned(plan, pair)) for pair, paths in before.items()}

    def paths(self, pair: PairKey) -> list[Links]:
        """The path that each of the `ports` takes, as the links between switches, where a port in doubt led before.

        Raises KeyError for a pair that is not announced.
        """
        ports, pinned = self.ports(pair), self._pairs[pair]
        return [self._links(pair, pinned.taken[port]) for port in ports]

    def shares(self, pair: PairKey) -> list[Share]:
        """The paths that the `ports` take, each with its part of them. Raises KeyError as `paths`."""
        paths = self.paths(pair)
        return [Share(path, lanes / len(paths)) for path, lanes in Counter(paths).items()]

    def ports(self, pair: PairKey) -> list[int]:
        """The ports of the pair's lanes; empty until as many are known as there are lanes.

        They are along the planned paths if such ports are known, and along any other until they are. While a pair is
        probed again its lanes keep the ports that they have. It is the same list object as long as the ports do not
        change. Raises KeyError as `paths`.
        """
        pinned = self._pairs[pair]
        if pinned.contradictory:
            if pinned.given:
                pinned.given = []
            return pinned.given
        known = self._tables.known(*pair)
        planned, doubted = self._lane_ways(pair, pinned), self._tables.doubted(*pair)
        before = pinned.given or [0] * len(planned)
        ports = lane_ports(before, planned, known, doubted, lambda way: self._is_alive(self._links(pair, way)))
        if not all(ports):
            ports = pinned.given if doubted or not self._discovery.idle(pair) else []
        if ports != pinned.given:
            self.moves += sum(port != was for port, was in zip(ports, pinned.given, strict=False))
            pinned.given = ports
            if pair.protocol == IPPROTO_TCP:
                self._discovery.hold(pair, ports)
            else:
                self._discovery.use(pair, ports)
        taken = {port: known[port] if port in known else pinned.taken[port] for port in pinned.given}
        self.moves += sum(pinned.taken.get(port, way) != way for port, way in taken.items())
        pinned.taken = taken
        return pinned.given

    def watched(self, pair: PairKey) -> list[tuple[Hop, list[tuple[int, Address]]]]:
        """What to watch of a pair that has ports: ports with the routers that answer for them, at each hop.

        These are a port of each path, which tells when the path dies, and ports that have moved: they tell when their
        former path is back. A host cannot probe the port of a connection, so of lanes over TCP it is a port that no
        lane has, if one is known on the path. Raises KeyError as `paths`.
        """
        pinned = self._pairs[pair]
        known = self._tables.known(*pair)
        moved = self._discovery.moved(pair)
        given = pinned.given
        if pair.protocol == IPPROTO_TCP:
            used = {known[port] for port in given if port in known}
            given = [port for port, way in known.items() if way in used and port not in given]
        found: dict[int, Way] = {}
        for port in (*moved, *given):
            way = known.get(port)
            if way is not None and (port in moved or way not in found.values()):
                found[port] = way
        sight = self._fabric.sight(pair.src, pair.dst)
        assert sight is not None  # it is announced
        by = {
            way: pinned.answered.get(way) or self._fabric.answering(pair.src, pair.dst, way) for way in found.values()
        }
        return [
            (hop, [(port, by[way][place]) for port, way in found.items() if by[way]])
            for place, hop in enumerate(sight.hops)
        ]

    def measuring(self, pair: PairKey) -> bool:
        """Whether probes of an announced pair are under way, or wait."""
        return not self._discovery.idle(pair)

    def given_up(self, pair: PairKey) -> str:
        """Why an announced pair that lacks paths or ports is not probed any more; empty for any other."""
        pinned, why = self._pairs[pair], self._discovery.given_up(pair)
        if pinned.contradictory:
            return _CONTRADICT
        return _ELSEWHERE if why and pinned.elsewhere else why

    def is_doubtful(self, pair: PairKey) -> bool:
        """Whether the routes of a pair may have changed, and ports of its lanes are still to be probed again."""
        return bool(self._discovery.doubtful(pair))

    def is_checked(self, pair: PairKey) -> bool:
        """Whether a port of a pair is probed once more, because it may have moved."""
        return self._discovery.checking(pair)

    def reached(self, pair: PairKey) -> tuple[int, int]:
        """How many of an announced pair's paths its ports reach, as far as that matters, and how many it has."""
        ways = len(list(self._fabric.paths(pair.src, pair.dst)))
        return (len(self._tables.ways(*pair)) if self._discovery.exhausted(pair) else ways), ways

    def oldest_s(self, pair: PairKey) -> float | None:
        """When the port in use was probed whose last probe is longest ago; None without ports."""
        times = (self._tables.seen_s(pair.src, pair.dst, port, *pair[2:]) for port in self._pairs[pair].given)
        return min((seen_s for seen_s in times if seen_s is not None), default=None)

    @property
    def known_pairs(self) -> int:
        """Pairs of which ports are known, whether they are announced or not."""
        return len(self._tables)

    def _links(self, pair: PairKey, way: Way) -> Links:
        return self._fabric.links(pair.src, pair.dst, way)

    def _left(self, pair: PairKey, moved: Iterable[tuple[Way, Way]]) -> tuple[set[PortRef], set[str]]:
        """The links, in both directions, and the routers that ports of a pair have left, by their ways before and now.

        A link may have died, or a router with all of its links.
        """
        links, routers = set[PortRef](), set[str]()
        for before, now in moved:
            was, kept = self._links(pair, before), {link.node for link in self._links(pair, now)}
            links.update(was, map(self._fabric.topology.peer, was))
            routers.update(link.node for link in was if link.node not in kept)
        return links, routers

    def _doubt_over(
        self, now_s: float, links: set[PortRef], routers: set[str], done: Iterable[PairKey]
    ) -> list[PairKey]:
        """Probes those pairs again, beside those that are `done`, that have lanes over one of these links or routers.

        Those over a link come first.
        """
        over: list[PairKey] = []
        through: list[PairKey] = []
        known = set(done)
        for pair in [pair for pair in self._pairs if pair not in known]:
            paths = self.paths(pair)
            if any(not links.isdisjoint(path) for path in paths):
                over.append(pair)
            elif any(link.node in routers for path in paths for link in path):
                through.append(pair)
        for pair in (*over, *through):
            self._discovery.doubt(now_s, pair)
        return [*over, *through]

    def _leave(self, pair: PairKey, pinned: _Pinned) -> list[PairKey]:
        moved = [self._plan.depart((pair, number), MOST_MOVES) for number in range(len(pinned.shares))]
        return _distinct(other for each in moved for other, _ in each if other != pair)

    def _rerouted(self, now_s: float, links: set[PortRef], moved: Iterable[_Share]) -> list[PairKey]:
        """Routes over the links have changed, and the plan moved shares. Returns the pairs whose ports may change."""
        for pair in self._pairs:
            if self._crosses(pair, links):
                self._discovery.doubt(now_s, pair)
        return self._replanned(now_s, links, moved)

    def _replanned(self, now_s: float, links: set[PortRef], moved: Iterable[_Share]) -> list[PairKey]:
        """Other paths are alive than before, and the plan moved shares. Returns the pairs whose ports may change."""
        hit = [pair for pair in self._pairs if self._crosses(pair, links)]
        others = [other for pair in hit for other in self._update(now_s, pair)]
        return _distinct((*self._aim(now_s, (pair for pair, _ in moved)), *others, *hit))

    def _lane_ways(self, pair: PairKey, pinned: _Pinned) -> list[Way | None]:
        """The planned way of each lane; None where it has none of which ports are known, or may still be."""
        ways = self._discovery.ways(pair)
        if self._steering:  # it may have planned a path of which no port is known yet
            ways += self._fabric.ways(pair.src, pair.dst)
        way_of = {self._links(pair, way): way for way in ways}
        found: list[Way | None] = []
        for number, lanes in enumerate(pinned.shares):
            path = self._plan.path((pair, number))
            found += [None if path is None else way_of.get(path)] * lanes
        return found

    def _is_alive(self, path: Links) -> bool:
        """Whether no link of a path is cut, drained, or avoided because it loses packets."""
        shut = self._cut | self._steering.drained
        return shut.isdisjoint(path) and not any(link in self._lossy.avoided for link in path)

    def _crosses(self, pair: PairKey, links: Set[PortRef]) -> bool:
        return any(not links.isdisjoint(path) for path in self._fabric.paths(pair.src, pair.dst))

    def _update(self, now_s: float, pair: PairKey, most_moves: int | None = None) -> list[PairKey]:
        """Gives the plan what is known of a pair now, for which at most so many others make room.

        Returns the pairs whose paths may have changed.
        """
        moves = MOST_MOVES if most_moves is None else most_moves
        return self._aim(now_s, (*self._replan(self._plan, pair, self._steering, moves), pair))

    def _replan(
        self, plan: KnownPaths[_Share, PortRef], pair: PairKey, steering: "Steering", most_moves: int
    ) -> list[PairKey]:
        """Gives a plan the paths that a pair may take now. Returns the pairs that moved."""
        paths = list(self._fabric.paths(pair.src, pair.dst))
        known = [self._links(pair, way) for way in self._discovery.ways(pair)]
        allowed = steering.allowed(pair, paths, known, self._is_alive)
        shares = len(self._pairs[pair].shares)
        alike = (
            all(map(self._is_alive, paths)) and len({tuple(map(self._rates.__getitem__, path)) for path in paths}) == 1
        )
        moved: list[PairKey] = []
        for number in range(shares):
            # A share for each of equal paths: no plan is more even than an equal part of every pair on each of them.
            own = [paths[number]] if shares == len(allowed) == len(paths) and alike else allowed
            gone = set(paths).difference(own)
            moved += (other for other, _ in plan.unlearn((pair, number), gone, most_moves))
            moved += (other for other, _ in plan.learn((pair, number), own, most_moves))
        return _distinct(moved)

    def _steered(self, before: "Steering") -> list[PairKey]:
        """The pairs for which it matters that the steering was this."""
        now = self._steering
        changed = before.drained ^ now.drained
        return [
            pair
            for pair in self._pairs
            if before.pins.get(pair[:2]) != now.pins.get(pair[:2]) or (changed and self._crosses(pair, changed))
        ]

    def _planned(self, plan: KnownPaths[_Share, PortRef], pair: PairKey) -> list[Share]:
        shares = self._pairs[pair].shares
        paths = (plan.path((pair, number)) for number in range(len(shares)))
        return [Share(path, own / sum(shares)) for path, own in zip(paths, shares, strict=True) if path is not None]

    def _aim(self, now_s: float, pairs: Iterable[PairKey], urgent: bool = False) -> list[PairKey]:
        """Looks for ports along the planned ways of pairs that know enough of these."""
        found = _distinct(pair for pair in pairs if pair in self._pairs)
        for pair in found:
            pinned = self._pairs[pair]
            aims = Counter(pinned.sought)
            planned = self._discovery.aimed(pair) or pair[:2] in self._steering.pins
            if pinned.shares and (planned or self._discovery.ready(pair) or self._discovery.idle(pair)):
                ways = self._lane_ways(pair, pinned)
                if None in ways:
                    continue
                own = Counter(way for way in ways if way is not None)
                if pair.protocol == IPPROTO_TCP:  # a port to watch
                    own.update(own.keys())
                aims += own
            elif pinned.shares:
                continue
            self._discovery.aim(now_s, pair, aims, urgent=urgent)
        return found


def _shares(lanes: int, paths: int) -> list[int]:
    """So many lanes, split over at most so many paths as evenly as possible."""
    parts = min(lanes, paths)
    return [lanes * (part + 1) // parts - lanes * part // parts for part in range(parts)]


def _distinct(pairs: Iterable[PairKey]) -> list[PairKey]:
    return list(dict.fromkeys(pairs))
