# SPDX-License-Identifier: Apache-2.0
"""Which ports of which pairs to probe next, so that every pair that sends can soon be pinned. No I/O.

Only pairs that were announced are probed. A pair is probed until `ENOUGH` of its ways are known, or all that it has;
and, once a plan has chosen a way, until enough ports are known to lead along it. Of some pairs nothing else is wanted
than ports along chosen ways. Where routes may have changed, the ports in use come first. Of other doubtful ports only
those are probed that would bring back a way, or a planned port.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from netmodel import IPPROTO_UDP
from netmodel.flow import Address
from netmodel.probing.affine import FIRST_PORT, PORT_BITS, probes_of_model
from sdn.measured.models import Models
from sdn.measured.other_hops import OtherHops
from sdn.measured.pace import Pace, Schedule
from sdn.measured.tables import MeasuredTables

Way = TypeVar("Way", bound=Hashable)

ENOUGH = 8
"""Ways that a plan should be able to choose from."""
_BATCH = 8  # ports probed at a time, per pair
_AT_ONCE = 6  # that a Linux router answers; what is more waits half a second or longer
_FEW = 2  # the same where nothing but aims is wanted: more of them might not be needed
_SOUGHT = 16  # the same until one leads along a planned way: an ask and its answer take long on a busy host
_IN_VAIN = 64  # probes since the last that found a new way: there is no other one, or hardly
_AIMED_IN_VAIN = 8  # times the number of ways, since the last port on the planned one: the chance of that is e^-8
_LEARNING_TRIES = 3  # asks of a pair that learns a model, none of them answered
_TRIES = 5  # asks of any other pair


class PairKey(NamedTuple):
    """A pair of NICs by their numbers, the port at which the destination receives, and the IP protocol."""

    src: int
    dst: int
    dst_port: int
    protocol: int = IPPROTO_UDP


class Hop(NamedTuple):
    """A hop of a pair's paths."""

    ttl: int
    routers: Hashable
    """The set of routers that may answer there, by name; sets do not overlap."""
    router_count: int


@dataclass(frozen=True, slots=True)
class Sight(Generic[Way]):
    """What is known of a pair before it is probed."""

    hops: tuple[Hop, ...]
    """Those whose routers together tell the way. The first is that of the topmost tier, which mostly tells it alone."""
    ways: int
    """The number of equal-cost paths."""
    group: Hashable
    """Pairs of one group have the same switches and ways: those from one leaf to one leaf, or to one pod."""
    other: Hop | None = None
    """A hop behind the topmost tier whose routers may tell the way as well, each by itself, if there is one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ports to probe from a pair's source, each once."""

    pair: PairKey
    ttl: int
    ports: tuple[int, ...]
    urgent: bool = False
    """Lanes wait for it: what comes of each port should be told at once, in an `Ask` of its own."""
    once: bool = False
    """Ports along planned ways are sought: one that is not answered is replaced, and need not be probed again."""
    until: tuple[Hashable, ...] = ()
    """Ports need not be probed any more when one along one of these ways is found."""
    told: Mapping[int, tuple[Address, ...]] = field(default_factory=dict)
    """By port: the addresses that have answered at the hops before this one, in the order of `Sight.hops`."""
    trial: bool = False
    """The ways of the ports are known. It is tried whether the routers at `Sight.other` tell the same."""
    changes: int | None = None
    """The changes of the pair's routes that were known when the first hop was asked; None if it was not."""


@dataclass(slots=True)
class _State(Generic[Way]):
    sight: Sight[Way]
    only_aims: bool = False  # nothing is wanted beside ports along `aims`
    searches: bool = False  # its host ends an ask with `until`
    first: int = _BATCH  # ports probed at a time while lanes have none
    drawn: int = 0  # random ports so far
    in_vain: int = 0  # probes since the last one of use
    silent: int = 0  # asks since the last answer
    heard: bool = False  # something was answered of the one that is under way
    changes: int = 0  # of routes that are known
    beside: set[int] = field(default_factory=set)  # ports whose ways the other hop has told
    asked: Ask | None = None  # that is under way, or waits until the pace permits it
    sent: bool = False  # it is under way
    out: set[int] = field(default_factory=set)  # its ports of which nothing was told yet
    checks: dict[int, None] = field(default_factory=dict)  # ports to probe once more, before anything else
    urgent: bool = False  # lanes wait for ports along their planned ways
    exhausted: bool = False  # probes found no more ways, before any was planned
    aims: Mapping[Way, int] = field(default_factory=dict)  # ports needed along each planned way
    proposed: dict[int, Way] = field(default_factory=dict)
    used: tuple[int, ...] = ()  # ports of lanes
    homes: dict[int, Way] = field(default_factory=dict)  # former ways of ports that have moved
    held: frozenset[int] = frozenset()  # ports that cannot be probed


class Discovery(Generic[Way]):
    """Fills `tables` with what probes of announced pairs find. Times are in seconds, and never decrease."""

    def __init__(self, tables: MeasuredTables[Way], *, pace: Pace | None = None, seed: int = 0) -> None:
        self.tables = tables
        self.models: Models[Hashable, Way] = Models(seed)
        self._schedule: Schedule[Hashable, Ask] = Schedule(pace)
        self._pairs: dict[PairKey, _State[Way]] = {}
        self._members: dict[Hashable, dict[PairKey, None]] = {}  # pairs of each group
        self._learners: dict[Hashable, PairKey] = {}
        self._others: OtherHops[int, PairKey, Way] = OtherHops()
        self._seed = seed

    def __len__(self) -> int:
        """The number of pairs that are announced."""
        return len(self._pairs)

    @property
    def waiting(self) -> int:
        """The number of asks that the pace holds back."""
        return len(self._schedule)

    def announce(
        self,
        now_s: float,
        pair: PairKey,
        sight: Sight[Way],
        *,
        lanes: int = _BATCH,
        only_aims: bool = False,
        searches: bool = True,
    ) -> None:
        """A pair sends over so many lanes, or will soon.

        A pair that did not answer is tried once more when it is announced again. With `only_aims` nothing is probed but
        what `aim` asks for. Its host `searches` if it knows `Ask.once` and `Ask.until`; else few ports are asked for at
        a time, without these.
        """
        state = self._pairs.get(pair)
        if state is None:
            state = self._pairs[pair] = _State(sight)
            self._members.setdefault(sight.group, {})[pair] = None
        state.silent, state.only_aims, state.searches = 0, only_aims, searches
        if len(sight.hops) > 1:  # one router answers for all ports, and all lanes wait for the last of the first batch
            state.first = max(_AT_ONCE, lanes)
        self._ask(now_s, pair)

    def release(self, now_s: float, pair: PairKey) -> None:
        """A pair sends no more. What is known of it stays in the tables."""
        state = self._pairs.pop(pair, None)
        if state is not None:
            self._others.forget(pair)
            group = state.sight.group
            del self._members[group][pair]
            if not self._members[group]:
                del self._members[group]
            if self._learners.get(group) == pair:
                del self._learners[group]
                self._wake(now_s, group)

    def aim(self, now_s: float, pair: PairKey, aims: Mapping[Way, int], *, urgent: bool = False) -> None:
        """A plan has chosen these ways for an announced pair, which needs so many ports along each.

        What is `urgent` is so until nothing more is asked of the pair.
        """
        state = self._pairs[pair]
        if state.only_aims and not state.sent and (state.aims != aims or (urgent and not state.urgent)):
            state.out.difference_update(state.asked.ports if state.asked else ())
            state.asked = None  # what waits is asked for anew, if it is wanted still
        state.urgent |= urgent
        if state.aims != aims:
            state.aims, state.in_vain = dict(aims), 0
        self._ask(now_s, pair)

    def use(self, pair: PairKey, ports: Iterable[int]) -> None:
        """The lanes of an announced pair have these ports, which are probed first where routes may have changed."""
        self._pairs[pair].used = tuple(ports)

    def doubtful(self, pair: PairKey) -> list[int]:
        """Those of an announced pair's ports in use, and of its `moved` ones, that need another probe.

        All that do where none is in use, unless nothing but aims is wanted.
        """
        ports, state = self.tables.doubtful(*pair), self._pairs[pair]
        if state.only_aims:
            return []
        return [port for port in ports if port in state.used or port in state.homes] if state.used else ports

    def moved(self, pair: PairKey) -> list[int]:
        """Ports of an announced pair that have moved: when the links of their former ways come back, they return.

        Those in use, and one for each way of which no port is known any more.
        """
        return list(self._pairs[pair].homes)

    def ways(self, pair: PairKey) -> list[Way]:
        """The ways of an announced pair of which ports are known, or were before routes may have changed.

        Without those that a port has left since.
        """
        known = self.tables.ways(*pair)
        left = self._left(self._pairs[pair], known)
        return list(dict.fromkeys((*known, *(way for way in self.tables.doubted(*pair).values() if way not in left))))

    def hold(self, pair: PairKey, ports: Iterable[int]) -> None:
        """An announced pair has connections from these ports, which its host therefore cannot probe.

        Where they are in doubt they are forgotten, and others are found.
        """
        self._pairs[pair].held = held = frozenset(ports)
        if not held.isdisjoint(self._others.under_way(pair)):
            self._others.forget(pair)  # other ports are tried

    def doubt(self, now_s: float, pair: PairKey) -> None:
        """The routes of a pair may have changed: its ports in use are probed again, before anything else."""
        self.tables.doubt(*pair)
        if pair in self._pairs:
            self._changed(pair, self._pairs[pair])
            self._pairs[pair].in_vain = self._pairs[pair].silent = 0
            self._pairs[pair].exhausted = False
            self._ask(now_s, pair)

    def check(self, now_s: float, pair: PairKey, port: int) -> None:
        """A port of an announced pair is probed once more, before anything else: it may have moved."""
        self._pairs[pair].checks[port] = None
        self._ask(now_s, pair)

    def checking(self, pair: PairKey) -> bool:
        """Whether such probes of an announced pair are under way, or wait."""
        state = self._pairs[pair]
        return bool(state.checks) and state.asked is not None

    def hurry(self, now_s: float, pair: PairKey) -> None:
        """What an announced pair lacks is urgent, until nothing more is asked of it."""
        self._pairs[pair].urgent = True
        self._ask(now_s, pair)

    def doubt_beside(self, now_s: float, pair: PairKey) -> list[PairKey]:
        """As `doubt`, for the other pairs behind the same switches as an announced one. Returns these."""
        others = [other for other in self._members[self._pairs[pair].sight.group] if other != pair]
        for other in others:
            self.doubt(now_s, other)
        return others

    def due(self, now_s: float) -> list[Ask]:
        """What to probe now. Each is to be followed by `answered`, also where no answer came."""
        found = []
        for ask in self._schedule.due(now_s, self._is_wanted):
            state = self._pairs[ask.pair]
            if not (ask.told or ask.trial):
                state.sent = True
            found.append(ask if ask.told else replace(ask, changes=state.changes))
        return found

    def _is_wanted(self, ask: Ask) -> bool:
        """Whether an ask that waits has not been given up or replaced, and its pair is still announced."""
        if ask.trial:
            return self._others.under_way(ask.pair) == ask.ports
        state = self._pairs.get(ask.pair)
        return state is not None and (bool(ask.told) or state.asked is ask)

    def follow(self, now_s: float, ask: Ask) -> None:
        """Asks about a further hop, before `answered` is called for these ports, if their pair is still announced."""
        if (state := self._pairs.get(ask.pair)) is not None:
            hop = next(hop for hop in state.sight.hops if hop.ttl == ask.ttl)
            self._schedule.add(
                now_s, hop.routers, hop.router_count, ask.pair.src, ask, len(ask.ports), urgent=ask.urgent
            )

    def leave_out(self, ask: Ask, ports: Collection[int]) -> None:
        """Ports of an `Ask` were not probed, before `answered` is called for the others, or for none.

        Nothing is concluded from that, and they may be asked for again.
        """
        state = self._pairs.get(ask.pair)
        if state is not None and not ask.trial:
            state.out.difference_update(ports)
            for port in ports:
                state.proposed.pop(port, None)

    def answered(self, now_s: float, ask: Ask, ways: dict[int, Way], *, trusted: bool = True) -> bool:
        """What came of an `Ask`: the way of each of its ports that was answered. Other ports are ignored.

        A host tells what came of several ports when it knows of the last, and of hops one after another: if a change of
        routes has become known since it was asked first, the answers count for nothing, and the ports may be asked for
        again. Returns whether there is news: a port that was not doubtful has moved. Then the model of its group is
        dropped, but not because of a host that is not `trusted`.
        """
        pair, changed, news = ask.pair, False, False
        known = self.tables.known(*pair)
        state = self._pairs.get(pair)
        if ask.trial:
            if not ask.ports:
                self._others.forget(pair)
            elif state is not None and ask.changes == state.changes:
                self._others.end(pair, known, ways)
            return False
        doubtful = set(self.tables.doubtful(*pair))
        homes = {} if state is None else state.homes
        heard = not ways.keys().isdisjoint(ask.ports)
        gathered = len(ask.ports) > 1 or bool(ask.told)
        late = gathered and state is not None and ask.changes not in (None, state.changes)
        if late:
            ways = {}
        for port in ask.ports:
            if port in ways:
                former = self.tables.saw(now_s, pair.src, pair.dst, port, ways[port], pair.dst_port, pair.protocol)
                if former is not None and homes.setdefault(port, former) == ways[port]:
                    del homes[port]
                changed |= former is not None
                news |= former is not None and port not in doubtful
                if state is not None and (other := state.sight.other) is not None:
                    if ask.ttl == other.ttl:
                        state.beside.add(port)
                    elif port in state.beside:
                        state.beside.remove(port)
                        if former is not None:
                            self._others.anew(other.routers)
            elif port in doubtful and not late and (ways or (state is not None and state.heard)):
                # Others are answered, so this one costs less to replace.
                self.tables.drop(pair.src, pair.dst, port, pair.dst_port, pair.protocol)
                homes.pop(port, None)
            if state is not None and (predicted := state.proposed.pop(port, None)) is not None and port in ways:
                self.models.checked(state.sight.group, predicted == ways[port])
        if state is None:
            return news
        state.out.difference_update(ask.ports)
        state.heard |= heard
        if news:
            self._changed(pair, state)
        if not state.out:
            state.asked, state.sent = None, False
        for port in ask.ports:
            state.checks.pop(port, None)
        self._forget_homes(pair, state)
        group = state.sight.group
        if changed and trusted:
            self.models.forget(group)
            self._learners.pop(group, None)
        found = {ways[port] for port in ask.ports if port in ways}
        missing = _lacking(state.aims, known) if state.aims else found - set(known.values())
        of_use = changed or not found.isdisjoint(missing)
        state.in_vain = 0 if of_use else state.in_vain + (0 if late else len(ask.ports))
        if not state.out:
            state.silent, state.heard = 0 if state.heard else state.silent + 1, False
        learns = self._learners.get(group) == pair and self.models.affine(group) is None
        if learns and state.silent >= _LEARNING_TRIES:
            self.models.refuse(group)
        self._ask(now_s, pair)
        if learns and self.models.affine(group) is not None:
            self._wake(now_s, group)
        return news

    def _changed(self, pair: PairKey, state: _State[Way]) -> None:
        """Another change of a pair's routes is known."""
        state.changes += 1
        self._others.forget(pair)
        if state.sight.other is not None:
            self._others.changed(state.sight.other.routers)

    def ready(self, pair: PairKey) -> bool:
        """Whether enough is known of an announced pair: enough ways to plan, or the ports of the planned one."""
        state = self._pairs[pair]
        known = self.tables.known(*pair)
        if state.aims or state.only_aims:
            return not _lacking(state.aims, known)
        return len(set(known.values())) >= min(ENOUGH, state.sight.ways)

    def aimed(self, pair: PairKey) -> bool:
        """Whether ways were planned for an announced pair."""
        return bool(self._pairs[pair].aims)

    def idle(self, pair: PairKey) -> bool:
        """Whether nothing is asked of an announced pair, because all that it needs is known or cannot be found."""
        return self._pairs[pair].asked is None

    def given_up(self, pair: PairKey) -> str:
        """Why an announced pair that lacks ways or ports is not probed any more; empty for any other."""
        state = self._pairs[pair]
        if state.asked:
            return ""
        if state.silent >= _TRIES:
            return "probes are not answered"
        return "" if self.ready(pair) else "probes find nothing new"

    def exhausted(self, pair: PairKey) -> bool:
        """Whether so many probes of an announced pair found no more ways that ports hardly reach any other."""
        return self._pairs[pair].exhausted

    def _wake(self, now_s: float, group: Hashable) -> None:
        """Goes on with the pairs of a group, which may have waited for its model."""
        for pair in list(self._members.get(group, ())):
            self._ask(now_s, pair)

    def _ask(self, now_s: float, pair: PairKey) -> None:
        """Schedules the next ports of a pair, if it needs some and none are under way."""
        state, sight = self._pairs[pair], self._pairs[pair].sight
        self._try(now_s, pair, state)
        if state.silent >= _TRIES:
            return
        for port in state.held.intersection(self.tables.doubtful(*pair)):
            self.tables.drop(pair.src, pair.dst, port, pair.dst_port, pair.protocol)
        urgent = dict.fromkeys((*state.checks, *self.doubtful(pair)))
        most = _FEW if state.only_aims else _BATCH
        more = state.urgent and state.sent and len(state.out) < most  # those that are not answered take long
        if state.asked is not None and state.out.issuperset(urgent) and not more:
            return
        if state.asked is not None and not state.sent:  # something more urgent has come
            state.out.difference_update(state.asked.ports)
        ports = [port for port in urgent or self._wanted(pair, state) if port not in state.out]
        until = tuple(_lacking(state.aims, self.tables.known(*pair))) if self._seeks(state) and not urgent else ()
        ports = ports[: _SOUGHT if until else _BATCH if state.used else min(_BATCH, state.first)]
        if ports:
            hurries = state.urgent or bool(urgent)
            # Until a pair can be planned its lanes share links with others.
            waited_for = hurries or not (state.only_aims or state.aims)
            asks_first = waited_for and not until
            hop = self._hop(now_s, pair, state, len(ports), moved=bool(urgent)) if asks_first else sight.hops[0]
            once = state.only_aims and state.searches
            state.asked, state.sent = Ask(pair, hop.ttl, tuple(ports), hurries, once, until), False
            state.out.update(ports)
            count: float = min(len(ports), sight.ways) if until else len(ports)  # as many as it takes
            count = count / 2 if state.only_aims else count  # no connection's port is watched
            self._schedule.add(now_s, hop.routers, hop.router_count, pair.src, state.asked, count, urgent=waited_for)
        elif not state.out:
            state.urgent = False

    def _hop(self, now_s: float, pair: PairKey, state: _State[Way], ports: int, moved: bool) -> Hop:
        """Where so many ports are probed for which lanes wait: at the hop whose routers a host may ask first.

        The other one must answer so many at once: on two tiers it has a single router, the far leaf. Of equal hops it
        is left to ports that may have `moved`: after a change of routes fewer routers may be left at the topmost hop,
        and other probes use up what they answer.
        """
        top, other = state.sight.hops[0], state.sight.other
        if other is None or state.silent or ports > _AT_ONCE * other.router_count:
            return top
        if not self._others.believed(pair.src, other.routers):
            return top
        at_s = {hop: self._schedule.free_s(now_s, hop.routers, pair.src) for hop in (top, other)}
        return min((other, top) if moved else (top, other), key=at_s.__getitem__)

    def _try(self, now_s: float, pair: PairKey, state: _State[Way]) -> None:
        """Tries whether the routers of the other hop tell ways, on ports whose ways others have told."""
        hop = state.sight.other
        if hop is not None and not state.only_aims and self._others.missing(pair.src, hop.routers):
            without = state.held | state.beside
            free = {port: way for port, way in self.tables.known(*pair).items() if port not in without}
            if ports := self._others.begin(pair.src, pair, hop.routers, free):
                ask = Ask(pair, hop.ttl, ports, trial=True)
                self._schedule.add(now_s, hop.routers, hop.router_count, pair.src, ask, len(ports))

    @staticmethod
    def _seeks(state: _State[Way]) -> bool:
        """Whether the host can seek a port along a planned way, for which a connection waits."""
        return state.only_aims and state.urgent and state.searches

    def _wanted(self, pair: PairKey, state: _State[Way]) -> list[int]:
        group = state.sight.group
        known = self.tables.known(*pair)
        if state.only_aims and self.ready(pair):
            return []
        if again := self._again(pair, state, known):
            return again
        if not state.only_aims and self.models.affine(group) is None and self._is_worth_learning(state):
            if self._learners.setdefault(group, pair) != pair:
                if known:
                    return []  # until the model is there, or it is known that there is none
            elif wanted := self.models.wanted(group, known):
                return list(wanted)
        most = max(_IN_VAIN, _AIMED_IN_VAIN * state.sight.ways) if state.aims else _IN_VAIN
        if self.ready(pair):
            return []
        if state.in_vain >= most:
            state.exhausted |= not state.aims
            return []
        if state.aims:
            targets = _lacking(state.aims, known)
        else:
            reached = set(known.values())
            missing = [way for way in self.models.ways(group, known) if way not in reached]
            targets = dict.fromkeys(missing[: ENOUGH - len(reached)], 1)
        proposed: dict[int, Way] = {}
        for way, ports in targets.items():
            proposed |= dict.fromkeys(self.models.proposed(group, known, way, ports), way)
        if proposed:
            state.proposed |= proposed
            return list(proposed)
        return self._random(pair, state, known)

    def _forget_homes(self, pair: PairKey, state: _State[Way]) -> None:
        """Keeps what `moved` says."""
        known = self.tables.ways(*pair)
        first = {home: port for port, home in reversed(state.homes.items()) if home not in known}
        state.homes = {
            port: home for port, home in state.homes.items() if port in state.used or first.get(home) == port
        }

    def _left(self, state: _State[Way], known: Iterable[Way]) -> set[Way]:
        """The ways from which ports have moved, and of which none is known since."""
        return set(state.homes.values()).difference(known)

    def _again(self, pair: PairKey, state: _State[Way], known: dict[int, Way]) -> list[int]:
        """Doubtful ports that may bring back a way of which no port is known, or ports of planned ways."""
        has, left, found = Counter(known.values()), self._left(state, known.values()), list[int]()
        for port, way in self.tables.doubted(*pair).items():
            if has[way] < state.aims.get(way, 0 if way in left or state.only_aims else 1):
                has[way] += 1
                found.append(port)
        return found

    def _is_worth_learning(self, state: _State[Way]) -> bool:
        """Whether a model would save the pairs of a group more probes than it takes."""
        ways = state.sight.ways
        enough = min(ENOUGH, ways)
        aimed = max(state.aims.values(), default=0)
        sampled = sum(ways / (ways - found) for found in range(enough)) + aimed * ways
        proposed = 1 + enough + aimed
        return len(self._members[state.sight.group]) * (sampled - proposed) > probes_of_model(ways)

    def _random(self, pair: PairKey, state: _State[Way], known: dict[int, Way]) -> list[int]:
        """Ports that are not known, drawn by chance: about as many as it takes to find one on a way that is missing."""
        ways = state.sight.ways
        missing = len(_lacking(state.aims, known)) or min(ENOUGH, ways) - len(set(known.values()))
        most = min(_BATCH, max(missing, ways // missing))
        if state.only_aims:
            most = min(_SOUGHT, 4 * ways) if self._seeks(state) else _FEW
        found: list[int] = []
        while len(found) < most and state.drawn >> PORT_BITS == 0:
            port = FIRST_PORT | _mixed(self._seed, pair, state.drawn)
            state.drawn += 1
            if port not in known and port not in found:
                found.append(port)
        return found


def _lacking(aims: Mapping[Way, int], known: Mapping[int, Way]) -> dict[Way, int]:
    """How many ports are missing along each way that lacks some."""
    has = Counter(known.values())
    return {way: ports - has[way] for way, ports in aims.items() if has[way] < ports}


def _mixed(seed: int, pair: PairKey, number: int) -> int:
    """A number of `PORT_BITS` bits without order: SplitMix64 of the pair's `number`-th draw."""
    z = (seed + (pair.src << 40) + (pair.dst << 16) + pair.dst_port + number * 0x9E3779B97F4A7C15) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & ((1 << PORT_BITS) - 1)
