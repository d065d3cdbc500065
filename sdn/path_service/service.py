# SPDX-License-Identifier: Apache-2.0
"""The path service: who is connected, which elephants are open, where each goes. Pure: events in, messages out.

It reads no clock and opens nothing. Every event comes with its time in seconds, which never runs backwards; the same
events give the same messages, which is what a replay of the event log rests on. `sdn.path_service.server` carries the
messages.

Connections are numbers that the caller gives; messages come back as (connection, message). A commodity is what one
device sends to one peer; its lanes all go along one path, by ports that the switches' hash sends there.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from itertools import islice
from sys import intern
from typing import Any, TypeAlias

import numpy as np

from netmodel import ROCE_PORT, EcmpHash, Link, OvsHash, Topology
from sdn.failover import Failure, Precomputed, failures, plan_after
from sdn.forecast import Announced, Forecast
from sdn.path_service.messages import (
    Announce,
    Assign,
    Error,
    Hello,
    HostMessage,
    Measured,
    Ping,
    Pong,
    Release,
    Report,
    ServiceMessage,
)
from sdn.path_service.parties import Client, Pair, Parties
from sdn.path_service.planning import LIVE, LivePlan
from sdn.path_service.ports import Peer, PortTables, Way
from sdn.planners import UNREACHABLE, Clos, Incremental, Plan, Route, cabling, repair
from sdn.planners.cabling import LinkIndex

Sends: TypeAlias = list[tuple[int, ServiceMessage]]

MAX_OPEN = 4096
"""Elephants that one connection may have open."""
AHEAD_S = 0.1
"""How long before its start an expected elephant is given its path."""

REROUTES_PER_S = 1000.0
"""Running elephants that may be moved in the long run, for the sake of others that come and go."""
MAX_REROUTES = 16
"""By one arrival or departure. With one commodity per link the optimum takes up to ToRs - 1."""

_MOST_FRESH = 10_000  # changes since plans for failures were looked at; beyond, all of them are made anew
_SIFTED = 256  # of which so many are looked at in one event
_SLICE = 16  # commodities whose ports are looked up in one event, when a failure has changed those of many
_LOOKED_UP = 4  # ports looked up ahead of a failure in one event
_RATE_STEP = 0.01  # rates that change by less are not told again


@dataclass(frozen=True, slots=True)
class Options:
    """How a path service decides. Raises ValueError for an unknown planner."""

    planner: str = "optimal"
    forecast: bool = False
    """Learn what repeats, and give paths before they are asked for."""
    rates: bool = False
    """Tell every elephant its max-min fair rate as a limit."""

    def __post_init__(self) -> None:
        if self.planner not in LIVE:
            raise ValueError(f"planner {self.planner!r} is none of {', '.join(LIVE)}")


@dataclass(frozen=True, slots=True)
class _Detours:
    """What to do about one failure: who goes where instead, and all ports as they are then."""

    ways: dict[tuple[tuple[str, str], Peer], tuple[Way, Way]]
    """Of a commodity, by its client's key and its peer: the way that it has, and the one to take instead."""
    ports: PortTables

    def of(self, pair: Pair) -> Way | None:
        """The way to take instead; None when nothing was planned for one that goes as this one does."""
        known = self.ways.get((pair.client.key, pair.door.at))
        return known[1] if known is not None and known[0] == pair.way else None


class PathService:
    """One fabric, its hosts and their elephants. Not for several threads at once.

    `ecmp_hash` is what the switches hash with. Raises ValueError when the topology is not a two-level leaf-spine.
    """

    def __init__(self, topology: Topology, options: Options | None = None, ecmp_hash: EcmpHash | None = None) -> None:
        self.topology = topology
        self.options = options or Options()
        self.counts: Counter[str] = Counter()
        self._cables = cabling(topology)
        self._whole = self._cables.fabric
        self._reroutes = REROUTES_PER_S  # left, at most a second's
        self._reroutes_s = 0.0  # when that was counted
        self._plan: LivePlan = LIVE[self.options.planner](self._whole)
        self._ports = PortTables(self._cables, ecmp_hash or OvsHash())
        self._tor: list[int] = self._whole.nic_tor.tolist()
        self._parties = Parties({str(IPv4Address(int(a))): nic for nic, a in enumerate(self._cables.addresses)})
        self._dead: frozenset[Link] = frozenset()
        self._pairs: dict[int, Pair] = {}  # those with a commodity, by its number
        self._stale: deque[Pair] = deque()  # whose ports have to be looked up anew
        self._expected: dict[Pair, None] = {}
        self._forecast = Forecast() if self.options.forecast else None
        self._rates_due = False
        self._snapshot: Plan | None = None
        self._prepared = Precomputed[Failure, _Detours](self._cases, self._prepare)
        self._ahead: deque[tuple[PortTables, int, int, Way, int, int]] = deque()  # ports that `_prepare` asks for
        self._fresh: deque[Pair] = deque(maxlen=_MOST_FRESH)  # whose commodities came or moved since `_sift`
        self._ending: list[Pair] = []  # released by the messages under way, which may announce them again
        self._cut: set[Pair] = set()  # whose path died and who have not been told

    # -- events --------------------------------------------------------------------------------------------------------

    def knows(self, device: str) -> bool:
        """Whether the topology has a NIC with this address."""
        return self._parties.knows(device)

    def connect(self, now_s: float, conn: int, hello: Hello) -> tuple[Sends, int | None]:
        """A device has said hello, and `knows` it. Also the connection that it replaces, which is to be closed."""
        old = self._parties.instance(hello)
        sends: Sends = [] if old is None else self.disconnect(now_s, old.conn)
        client = self._parties.join(conn, hello)
        for pair in list(client.door.pairs):
            if pair.number is not None:
                self._tell_reverse(pair, sends)
        self.counts["hellos"] += 1
        return sends, None if old is None else old.conn

    def disconnect(self, now_s: float, conn: int) -> Sends:
        """A connection is gone, and with it its elephants: its device is back on ECMP."""
        client = self._parties.leave(conn)
        sends: Sends = []
        if client is None:
            return sends
        for pair in client.towards.values():
            if pair.number is not None:
                self._remove(now_s, pair, pair.number, sends)
        self._parties.forget(client)
        return sends

    def handle(self, now_s: float, conn: int, messages: Iterable[HostMessage]) -> Sends:
        """Messages other than hello of a connection that has said hello.

        What is released and announced again to the same peer by the same messages, as by a ring's host whose next
        elephant follows at once, keeps its path.
        """
        client = self._parties.clients[conn]
        sends: Sends = []
        for message in messages:
            if type(message) is Announce:  # these two are all but all
                self._announce(now_s, client, message, sends)
            elif type(message) is Release:
                self._release(client, message.id)
            else:
                self._hear(client, message, sends)
        if self._ending:
            self._end(now_s, sends)
        return sends

    def _hear(self, client: Client, message: HostMessage, sends: Sends) -> None:
        match message:
            case Measured():
                for one in message.flows:
                    elephant = client.open.get(one.id)
                    if elephant is not None and one.seconds > 0:
                        elephant[0].measured_bps = 8 * one.bytes / one.seconds
            case Report():
                self.counts[f"left by {message.reason}"] += 1
            case Ping():
                sends.append((client.conn, Pong(message.nonce)))
            case _:
                raise ValueError("hello comes once, and first")

    def link(self, now_s: float, links: Iterable[Link], up: bool) -> Sends:
        """Links between leaves and spines have gone down, or come back. Raises KeyError for any other link."""
        dead = self._dead - set(links) if up else self._dead | set(links)
        changed = dead ^ self._dead
        if not changed:
            return []
        before = self._plan.fabric
        numbers = {self._cables.link(link) for link in changed}
        case = self._failure_of(sorted(numbers), up)
        detours = self._prepared.for_failure(case) if case is not None else None
        fabric = self._cables.without(dead).fabric
        cut = [] if up else [pair for pair in self._pairs.values() if self._crosses(pair, numbers)]
        self._dead = dead
        if detours is not None:
            moved = self._take(detours, fabric, cut)
        else:
            self._ports = self._ports.around(fabric)
            self._plan.max_reroutes = None
            moved = self._moved(self._plan.refit(fabric))
        self.counts["elephants cut"] += len(cut)
        self._cut.update(cut)
        self._prepared.restart()
        self._ahead.clear()
        self._changed()
        # Whose path is gone goes first; then all whose switches hash over other members now.
        touched = np.any(before.link_rate_bps != fabric.link_rate_bps, axis=(1, 2))[self._whole.nic_tor].tolist()
        rest = [pair for pair in self._pairs.values() if touched[pair.client.nic] or touched[pair.door.nic]]
        self._stale = deque(dict.fromkeys((*cut, *moved, *rest, *self._stale)))
        self.counts["links changed"] += len(changed)
        return self._tell_stale()

    def tick(self, now_s: float) -> Sends:
        """Time has passed: what is due by itself. `busy` tells whether to come back at once."""
        sends = self._tell_stale()
        if self._forecast is not None:
            self._foresee(self._forecast, now_s, sends)
        if self.options.rates and self._rates_due and not self._stale:
            self._tell_rates(sends)
        return sends

    @property
    def busy(self) -> bool:
        """Whether a tick has work that should not wait."""
        return bool(self._stale)

    def prepare(self) -> bool:
        """With time to spare: makes the plan for one more failure, or looks up ports of one. False when there are all.

        Like an event, for a replay: a plan that was ready may be another than one made when it is needed.
        """
        if not isinstance(self._plan, Incremental) or self._stale:
            return False
        return self._look_up_ahead() or self._sift() or self._prepared.step()

    # -- elephants -----------------------------------------------------------------------------------------------------

    def _announce(self, now_s: float, client: Client, message: Announce, sends: Sends) -> None:
        self.counts["announced"] += 1
        peer, number = (message.peer, message.peer_port), message.id
        known = client.open.get(number)
        if known is not None and known[0].door.at != peer:  # the id is used again, for another: the release was lost
            self._release(client, number)
            known = None
        if self._forecast is not None and known is None:
            event = (message.job, client.key[0], message.peer, message.bytes, message.repeat_s)
            self._forecast.observe(Announced(now_s, *event))
        if len(client.open) >= MAX_OPEN and number not in client.open:
            self.counts["refused"] += 1
            sends.append((client.conn, _busy(f"{MAX_OPEN} elephants are open: release some before announcing more")))
            return
        # What is announced most often follows what has just been released.
        pair = self._ending[-1] if self._ending and self._ending[-1].door.at == peer else client.towards.get(peer)
        pair = pair or self._parties.pair(client, peer)
        if pair is None:
            self.counts["unknown peers"] += 1
            client.generation += 1
            sends.append((client.conn, Assign(peer[0], [], client.generation, None, number, peer[1])))
            return
        arrives = pair.number is None
        if arrives:
            if self._ending:  # they make room
                self._end(now_s, sends)
            self._arrived(now_s, pair, sends)
        elif not pair.elephants:
            pair.since_s, pair.measured_bps = now_s, None
            if self._expected:
                self._expected.pop(pair, None)
        if known is None:
            pair.elephants += 1
        client.open[number] = pair, message.bytes
        pair.newest = number
        pair.job = intern(message.job)  # the same over and over
        self._tell(pair, self._along(pair, pair.way), number, pair.rate_bps, sends)
        if arrives:
            self._tell_reverse(pair, sends)

    def _release(self, client: Client, number: int) -> None:
        elephant = client.open.pop(number, None)
        if elephant is None:  # it crossed the loss of the connection, or was refused
            self.counts["unknown releases"] += 1
            return
        pair = elephant[0]
        pair.elephants -= 1
        if number == pair.newest:
            pair.newest = None
        self.counts["released"] += 1
        if not pair.elephants:
            self._ending.append(pair)

    def _end(self, now_s: float, sends: Sends) -> None:
        """Takes out the commodities whose last elephant has been released, and nothing announced since."""
        ending, self._ending = self._ending, []
        for pair in ending:
            if not pair.elephants and pair.number is not None:
                self._remove(now_s, pair, pair.number, sends)

    def _arrived(self, now_s: float, pair: Pair, sends: Sends) -> None:
        self._plan.max_reroutes = self._may_move(now_s, spare=0.0)
        route, moved = self._plan.arrive(pair.client.nic, pair.door.nic)
        pair.number, pair.way, pair.since_s = route.commodity, route[1:], now_s
        self._pairs[route.commodity] = pair
        self._fresh.append(pair)
        self._changed()
        if moved:
            self._push(moved, sends)

    def _remove(self, now_s: float, pair: Pair, number: int, sends: Sends) -> None:
        """Takes out its commodity, which is `number`; its elephants have ended."""
        pair.number = pair.rate_bps = pair.measured_bps = None
        del self._pairs[number]
        if self._expected:
            self._expected.pop(pair, None)
        if self._cut:
            self._cut.discard(pair)
        # A departure makes room; what it leaves uneven is mended when there is little else to move.
        self._plan.max_reroutes = self._may_move(now_s, spare=REROUTES_PER_S / 2)
        moved = self._plan.depart(number)
        self._changed()
        if moved:
            self._push(moved, sends)
        # Its lanes carry the acknowledgements of what comes from there, if anything does.
        for back in pair.backs or self._parties.backs(pair):
            if back.number is not None:
                self._tell_reverse(back, sends)

    def _may_move(self, now_s: float, spare: float) -> int:
        """How many others may be rerouted now, keeping `spare` for later."""
        left = self._reroutes
        if now_s > self._reroutes_s:
            left += (now_s - self._reroutes_s) * REROUTES_PER_S
            self._reroutes = left = left if left < REROUTES_PER_S else REROUTES_PER_S
            self._reroutes_s = now_s
        left -= spare
        return MAX_REROUTES if left >= MAX_REROUTES else int(left) if left > 0 else 0

    # -- telling -------------------------------------------------------------------------------------------------------

    def _push(self, routes: Iterable[Route], sends: Sends) -> None:
        for pair in self._moved(routes):
            self._tell_again(pair, sends)

    def _moved(self, routes: Iterable[Route]) -> list[Pair]:
        """Takes in new routes; whose they are."""
        moved = []
        for route in routes:
            pair = self._pairs[route.commodity]
            pair.way = route[1:]
            moved.append(pair)
        self._fresh.extend(moved)
        self.counts["moved"] += len(moved)
        self._reroutes -= len(moved)
        return moved

    def _along(self, pair: Pair, way: Way) -> list[int]:
        """The ports of its lanes along a way, in the same list every time."""
        if (pair.ports_way is not way and pair.ports_way != way) or pair.ports_from is not self._ports:
            client, door = pair.client, pair.door
            pair.ports = self._ports.ports(client.nic, door.nic, way, client.lanes, door.at[1])
            pair.ports_way, pair.ports_from = way, self._ports
        return pair.ports

    def _tell_again(self, pair: Pair, sends: Sends) -> None:
        """Its ports, to both ends, unless they know them."""
        ports = self._along(pair, pair.way)
        cut = pair in self._cut
        if cut or pair.told is not ports:
            self._cut.discard(pair)
            self._tell(pair, ports, pair.named(), pair.rate_bps, sends, cut)
            self.counts["pushed"] += 1
        self._tell_reverse(pair, sends)

    def _tell_reverse(self, pair: Pair, sends: Sends) -> None:
        """The way back of a commodity's acknowledgements, over the same links, unless the peer knows it."""
        spine, up, down = pair.way
        for back in pair.backs or self._parties.backs(pair):
            if back.number is not None:  # its lanes to us carry an elephant of its own
                continue
            ports = self._along(back, (spine, down, up))
            if back.told is not ports:
                self._tell(back, ports, None, None, sends)
                self.counts["pushed"] += 1

    def _tell(
        self,
        pair: Pair,
        ports: list[int],
        number: int | None,
        rate_bps: float | None,
        sends: Sends,
        cut: bool = False,
    ) -> None:
        pair.told = ports
        client, peer = pair.client, pair.door.at
        client.generation += 1
        sends.append((client.conn, Assign(peer[0], ports, client.generation, rate_bps, number, peer[1], cut)))

    def _tell_stale(self) -> Sends:
        sends: Sends = []
        for _ in range(min(_SLICE, len(self._stale))):
            pair = self._stale.popleft()
            if pair.number is not None:  # it may have ended
                self._tell_again(pair, sends)
        return sends

    def _tell_rates(self, sends: Sends) -> None:
        self._rates_due = False
        rates = self._plan.plan().rates.tolist()
        for number, rate_bps in zip(self._plan.numbers(), rates, strict=True):
            pair = self._pairs[number]
            if pair.elephants and abs((pair.rate_bps or 0) - rate_bps) > _RATE_STEP * rate_bps:
                pair.rate_bps = rate_bps
                self._tell(pair, self._along(pair, pair.way), pair.named(), rate_bps, sends)
                self.counts["pushed"] += 1

    # -- ahead of time -------------------------------------------------------------------------------------------------

    def _foresee(self, forecast: Forecast, now_s: float, sends: Sends) -> None:
        for pair in [pair for pair in self._expected if pair.until_s < now_s]:
            if pair.number is not None:
                self._remove(now_s, pair, pair.number, sends)
        for coming in forecast.expected(now_s, AHEAD_S):
            sender = self._parties.sender((coming.src, ROCE_PORT))
            if sender is None or coming.at_s <= now_s:
                continue
            ahead = self._parties.pair(sender, (coming.dst, ROCE_PORT))
            if ahead is None or ahead.number is not None:
                continue
            self._arrived(now_s, ahead, sends)
            ahead.until_s = coming.latest_s
            self._expected[ahead] = None
            self.counts["given ahead"] += 1
            self._tell_again(ahead, sends)

    def _changed(self) -> None:
        self._rates_due = True
        self._snapshot = None
        self._prepared.aged = True

    def _cases(self) -> list[Failure]:
        return failures(self._plan.fabric, self._current())

    def _current(self) -> Plan:
        if self._snapshot is None:
            self._snapshot = self._plan.plan()
        return self._snapshot

    def _prepare(self, failure: Failure) -> _Detours:
        now = self._current()
        plan = plan_after(now, failure)
        tables = self._ports.around(plan.fabric)
        numbers = self._plan.numbers()
        ways = {}
        moved = np.flatnonzero((plan.spine != now.spine) | (plan.up != now.up) | (plan.down != now.down))
        for done, i in enumerate(moved.tolist()):
            pair = self._pairs[numbers[i]]
            client, door = pair.client, pair.door
            way = spine, up, down = int(plan.spine[i]), int(plan.up[i]), int(plan.down[i])
            ways[client.key, door.at] = pair.way, way
            if done < _SLICE:  # hashing takes its time
                self._ahead.append((tables, client.nic, door.nic, way, client.lanes, door.at[1]))
                for receiver in door.receivers.values():
                    back = door.nic, client.nic, (spine, down, up), receiver.lanes, client.door.at[1]
                    self._ahead.append((tables, *back))
        return _Detours(ways, tables)

    def _look_up_ahead(self) -> bool:
        """Has some ports of the plans for failures looked up, so that they are known then; whether there were any."""
        some = min(_LOOKED_UP, len(self._ahead))
        for _ in range(some):
            tables, src, dst, way, lanes, port = self._ahead.popleft()
            tables.ports(src, dst, way, lanes, port)
        return some > 0

    def _sift(self) -> bool:
        """Drops the plans for failures that do not know what has come or moved since; whether there is more to do."""
        if len(self._fresh) == _MOST_FRESH:
            self._fresh.clear()
            self._prepared.restart()
        for _ in range(min(_SIFTED, len(self._fresh))):
            pair = self._fresh.popleft()
            if pair.number is None or pair.way[0] < 0:
                continue
            spine, up, down = pair.way
            src, dst = self._tor[pair.client.nic], self._tor[pair.door.nic]
            for case in (Failure(spine), Failure(spine, src, up), Failure(spine, dst, down)):
                detours = self._prepared.for_failure(case)
                if detours is not None and detours.of(pair) is None:
                    self._prepared.discard(case)
        return bool(self._fresh)

    def _crosses(self, pair: Pair, links: set[LinkIndex]) -> bool:
        spine, up, down = pair.way
        return (self._tor[pair.client.nic], spine, up) in links or (self._tor[pair.door.nic], spine, down) in links

    def _take(self, detours: _Detours, fabric: Clos, cut: list[Pair]) -> list[Pair]:
        """Goes over to a plan that was made before, mending it where some of `cut` are not in it; who goes elsewhere.

        Commodities are numbered anew.
        """
        assert isinstance(self._plan, Incremental)  # `prepare` makes plans for no other
        now = self._current()
        pairs = [self._pairs[number] for number in self._plan.numbers()]
        ways = [detours.of(pair) or pair.way for pair in pairs]
        spine, up, down = np.array(ways, dtype=np.int32).reshape(-1, 3).T
        ready = sum(detours.of(pair) is not None for pair in cut)
        if ready == len(cut):
            plan = Plan(fabric, now.commodities, now.planner, spine, up, down, now.bound, now.why)
            self.counts["prepared plans used"] += 1
        else:
            plan = repair(Plan(now.fabric, now.commodities, now.planner, spine, up, down, now.bound, now.why), fabric)
            self.counts["prepared plans mended"] += 1
        self.counts["elephants cut, path ready"] += ready
        self._ports = detours.ports
        self._plan = Incremental.of(plan)
        self._pairs = dict(enumerate(pairs))
        moved = []
        columns = (plan.spine.tolist(), plan.up.tolist(), plan.down.tolist())
        for number, (pair, way) in enumerate(zip(pairs, zip(*columns, strict=True), strict=True)):
            pair.number = number
            if pair.way != way:
                pair.way = way
                moved.append(pair)
        self.counts["moved"] += len(moved)
        return moved

    def _failure_of(self, links: list[LinkIndex], up: bool) -> Failure | None:
        """The single failure that these links' going down is, if it is one."""
        if up:
            return None
        if len(links) == 1:
            tor, spine, link = links[0]
            return Failure(spine, tor, link)
        spines = {spine for _, spine, _ in links}
        live = np.count_nonzero(self._plan.fabric.link_rate_bps[:, list(spines)])
        return Failure(spines.pop()) if len(spines) == 1 and live == len(links) else None

    # -- what is asked by people ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Figures of the whole, as JSON has them."""
        plan = self._plan.plan()
        forecast = None
        if self._forecast is not None:
            hits = self._forecast.hit_rate
            forecast = {**asdict(hits), "rate": hits.rate}
        cut, ready = self.counts["elephants cut"], self.counts["elephants cut, path ready"]
        return {
            "topology": self.topology.name,
            "options": asdict(self.options),
            "hosts": len(self._parties.clients),
            "elephants": sum(len(client.open) for client in self._parties.clients.values()),
            "commodities": len(self._pairs),
            "unreachable": int(np.count_nonzero(plan.spine == UNREACHABLE)),
            "slowest_bps": plan.fairness.minimum if len(self._pairs) else None,
            "gap": plan.gap,
            "dead_links": sorted(f"{link.a} {link.b}" for link in self._dead),
            "forecast": forecast,
            "prepared_failures": len(self._prepared),
            "failover": {"cut": cut, "ready": ready, "rate": ready / cut if cut else None},
            "counts": dict(sorted(self.counts.items())),
        }

    def flows(self, most: int) -> list[dict[str, Any]]:
        """The commodities, oldest first, `most` of them."""
        listed = []
        shown = list(islice(self._pairs.values(), most))
        elephants: dict[Pair, dict[int, int]] = {pair: {} for pair in shown}
        for client in {pair.client.conn: pair.client for pair in shown}.values():
            for number, (pair, size) in client.open.items():
                if pair in elephants:
                    elephants[pair][number] = size
        for pair, sizes in elephants.items():
            client, door = pair.client, pair.door
            path = self._cables.path_by(client.nic, door.nic, *pair.way)
            listed.append(
                {
                    "device": client.key[0],
                    "peer": door.at[0],
                    "ids": list(sizes),
                    "job": pair.job if sizes else "",
                    "bytes": sum(sizes.values()),
                    "since_s": pair.since_s,
                    "path": [str(port) for port in path or ()],
                    "ports": self._along(pair, pair.way),
                    "rate_bps": pair.rate_bps,
                    "measured_bps": pair.measured_bps,
                }
            )
        return listed

    def paths(self) -> list[dict[str, Any]]:
        """Every link between a leaf and a spine: how many commodities go up and down by it."""
        up, down = self._plan.plan().loads
        listed = []
        for link in self.topology.links:
            try:
                at = self._cables.link(link)
            except KeyError:  # a host's
                continue
            ends = sorted((link.a, link.b), key=lambda end: end.node not in self._cables.tors)
            listed.append(
                {
                    "leaf": str(ends[0]),
                    "spine": str(ends[1]),
                    "up": int(up[at]),
                    "down": int(down[at]),
                    "dead": link in self._dead,
                }
            )
        return listed


def _busy(text: str) -> Error:
    return Error("busy", text)
