# SPDX-License-Identifier: Apache-2.0
"""Pinning by measured paths: hosts probe which of their ports take which path. No I/O.

`sdn.measured` decides what to probe and plans paths. Here pairs of hosts become its pairs, and its asks become messages
to hosts. What hosts watch (`watches`) tells when routes have changed. Pairs of hosts that do not probe are served by a
prediction where the hash is known, and otherwise have random ports. Connections that cannot move get paths as with
predictions, and the ports that take them by `port_search`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from ipaddress import ip_address
from itertools import chain
from typing import Any

from netmodel import Link, Path, PortRef, tiers
from netmodel.flow import address_at
from sdn.measured.discovery import ENOUGH, Ask, PairKey
from sdn.measured.fabric import Links, MeasuredFabric
from sdn.measured.pace import Pace
from sdn.measured.pinning import MeasuredPinning
from sdn.measured.rates import fair_rates
from sdn.measured.steering import Via
from sdn.path_service.constraints import Constraints
from sdn.path_service.messages import MOST_PROBED, CanProbe, Moved, Probe, Probed, Report
from sdn.path_service.next_hops import NextHops
from sdn.path_service.parties import Client, Pair
from sdn.path_service.pinning import HostProbes, Move, Preview, Rerouted, Sends, distinct
from sdn.path_service.port_search import HOLD_S, PortSearch
from sdn.path_service.predicted import Predicted
from sdn.path_service.probing_host import ProbingHost, answered, left_out, parts
from sdn.path_service.reach import Polarised
from sdn.path_service.repinning import FirstPorts, Repinning
from sdn.path_service.watches import Watches
from sdn.path_service.work import Work
from sdn.planners import Cabling
from sdn.planners.model import Floats
from sdn.planners.planner import AnyCabling

_ANSWER_S = 10.0  # after which an ask counts as unanswered; hosts answer within 5
_MOST_ASKS = 64  # open on one connection
_EVENTS = 20  # that `status` shows
_NO_PORTS: list[int] = []


class Measured:
    """A `Pinning` whose hosts measure. `planned` serves the others, if `is_predicted`, and plans for connections.

    NICs of `cables` and `fabric` are those of one topology.
    """

    offers_probes = True

    def __init__(
        self,
        cables: AnyCabling,
        fabric: MeasuredFabric,
        pinning: MeasuredPinning,
        planned: Predicted,
        counts: Counter[str],
        pace: Pace | None = None,
        *,
        is_predicted: bool = False,
    ) -> None:
        self._cables = cables
        self._fabric = fabric
        self._pinning = pinning
        self._planned = planned
        self._is_predicted = is_predicted
        self._search = PortSearch(pinning, planned)
        self._counts = counts
        self._tier = tiers(cables.topology)
        number = {port: nic for nic, port in enumerate(fabric.nics)}
        self._nic = [number[port] for port in cables.nics]
        self._hosts: dict[int, ProbingHost] = {}  # by connection
        self._probing: dict[int, dict[int, ProbingHost]] = {}  # the same by NIC: all devices of a host can probe for it
        self._own: dict[int, Pair] = {}  # by commodity; numbers are below 0, and those of predictions above
        self._keys: dict[Pair, PairKey] = {}  # of those in `_own` that can be pinned
        self._users: dict[PairKey, dict[Pair, None]] = {}  # several devices of a host may send to one peer
        self._early: dict[Pair, tuple[int, int]] = {}  # connections before any probes of their NIC: sent bytes and port
        self._asked: dict[tuple[int, int], float] = {}  # by connection and ask: when it counts as unanswered
        self._held: dict[Pair, float] = {}  # until when its announcement may wait
        self._constraints = Constraints()
        self._count = 0  # of commodities and asks
        self._changes = 0  # of pairs that are pinned, and of their ports
        self._rated_at = 0, 0  # changes and moves when `rates_bps` was asked last
        self._ready: dict[int, None] = {}  # connections that may be asked something
        self._now_s = 0.0
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._blamed: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._watches = Watches(fabric, pinning, pace or Pace(), self._conn_of, self._peer)
        self._repinning = Repinning()
        self._first = FirstPorts()

    @property
    def pairs(self) -> Mapping[int, Pair]:
        return {**self._planned.pairs, **self._own}

    # -- commodities ---------------------------------------------------------------------------------------------------

    def arrive(self, now_s: float, pair: Pair) -> list[Pair]:
        self._now_s = now_s
        client = pair.client
        probes = client.conn in self._hosts or (client.fixed and client.nic in self._probing)
        if client.fixed if probes else self._is_predicted:
            moved = self._planned.arrive(now_s, pair)
            self._begin(now_s, pair)
            return moved
        self._count += 1
        pair.commodity, pair.since_s = -self._count, now_s
        self._own[pair.commodity] = pair
        return self._enter(now_s, pair) if probes else []

    def expect(self, now_s: float, pair: Pair) -> list[Pair]:
        """Ports are looked for when its connections begin."""
        self._now_s = now_s
        return self._planned.expect(now_s, pair)

    def has_sent(self, now_s: float, pair: Pair, sent: int, port: int | None) -> list[Pair]:
        self._now_s = now_s
        if not self._is_planned(pair):
            if port is not None:
                self._early[pair] = sent, port
            return []
        if sent:
            self._search.is_stale = True
        elif self._search.is_vain(pair):  # another connection begins, as the one before it has ended
            self._begin(now_s, pair)
        if port is not None and pair in self._search:
            self._search.keep(now_s, pair, port)
            port = None
        return self._planned.has_sent(now_s, pair, sent, port)

    def _begin(self, now_s: float, pair: Pair) -> None:
        """A host that probes looks for a port of a connection along its path, where there is a choice."""
        key = self._key(pair)
        if pair.client.nic not in self._probing:
            return
        users = {**self._users.get(key, {}), pair: None}
        searches = all(host.searches for host in self._probing[pair.client.nic].values())
        if self._pinning.announce(now_s, key, _lanes(users), searches=searches) is not None:
            self._users[key] = users
            self._search.begin(now_s, key, pair)

    def _enter(self, now_s: float, pair: Pair) -> list[Pair]:
        key = self._key(pair)
        users = {**self._users.get(key, {}), pair: None}
        changed = self._pinning.announce(now_s, key, _lanes(users))
        if changed is None:
            return []
        self._users[key], self._keys[pair] = users, key
        self._changes += 1
        if not self._pinning.ports(key):
            self._held[pair] = now_s + HOLD_S
            self._first.wait(now_s, key)
        self._watches.look_at([key])
        return [other for other in self._of(changed) if other is not pair]

    def depart(self, now_s: float, number: int) -> list[Pair]:
        self._now_s = now_s
        if number < 0:
            self._early.pop(self._own[number], None)
            return self._quit(now_s, self._own.pop(number))
        pair = self._planned.pairs[number]
        moved = self._planned.depart(now_s, number)
        if pair in self._search:
            self._search.end(now_s, pair)
            moved += self._unused(now_s, self._key(pair), pair)
        return moved

    def _quit(self, now_s: float, pair: Pair) -> list[Pair]:
        """A pair leaves the plan, if it is there."""
        self._held.pop(pair, None)
        key = self._keys.pop(pair, None)
        if key is None:
            return []
        self._changes += 1
        self._watches.look_at([key])
        if pair.client.conn in self._hosts:
            self._watches.end(now_s, pair.client.conn, key)
        return self._unused(now_s, key, pair)

    def _unused(self, now_s: float, key: PairKey, pair: Pair) -> list[Pair]:
        """A pair of hosts uses the ports of a pair no more."""
        users = self._users[key]
        del users[pair]
        if users:
            return []
        del self._users[key]
        self._first.forget(key)
        return self._of(self._pinning.release(now_s, key))

    def ports(self, pair: Pair) -> list[int]:
        """The lanes of several devices of a host towards one peer have the same ports."""
        if self._is_planned(pair):
            return self._search.ports(pair) if pair in self._search else self._planned.ports(pair)
        key = self._keys.get(pair)
        ports = _NO_PORTS if key is None else self._pinning.ports(key)[: pair.client.lanes]
        if ports != pair.ports:
            pair.ports = ports
            self._changes += 1
            if not ports:  # on random ports, to which the limit does not apply
                pair.rate_bps = None
        return pair.ports

    def ports_back(self, back: Pair, pair: Pair) -> list[int]:
        """Acknowledgements are too few to be probed for: they have random ports, unless both sides are predicted."""
        if self._is_planned(pair) and pair not in self._search and back.client.conn not in self._hosts:
            return self._planned.ports_back(back, pair)
        return _NO_PORTS

    def is_settled(self, pair: Pair) -> bool:
        if pair in self._search:
            return self._search.is_settled(pair)
        return pair not in self._held or bool(self.ports(pair))

    def leave(self, now_s: float, client: Client) -> list[Pair]:
        self._now_s = now_s
        host = self._hosts.pop(client.conn, None)
        if host is None:
            return []
        del self._probing[client.nic][client.conn]
        if not self._probing[client.nic]:
            del self._probing[client.nic]
        changed: list[Pair] = []
        for number, ask in host.open.items():
            del self._asked[client.conn, number]
            changed += self._of(self._unanswered(now_s, ask))
        for ask in host.waiting:
            changed += self._of(self._unanswered(now_s, ask))
        self._ready.pop(client.conn, None)
        self._watches.leave(now_s, client.conn)
        return distinct(changed)

    # -- links ---------------------------------------------------------------------------------------------------------

    def constrain(self, now_s: float, constraints: Constraints) -> Rerouted:
        """Ports stay until they are probed again: where the network has found other paths, they are not lost."""
        self._now_s = now_s
        for link in constraints.links():
            self._cables.link_number(link)  # raises KeyError
        planned = self._planned.constrain(now_s, constraints)
        return Rerouted(planned.cut, [*planned.others, *self._constrained(now_s, constraints)])

    def next_hops(self, now_s: float, constraints: Constraints, next_hops: NextHops) -> Rerouted:
        self._now_s = now_s
        planned = self._planned.next_hops(now_s, constraints, next_hops)
        return Rerouted(planned.cut, [*planned.others, *self._constrained(now_s, constraints)])

    def _constrained(self, now_s: float, constraints: Constraints) -> list[Pair]:
        was, self._constraints = self._constraints, constraints
        steered = constraints.drained != was.drained or constraints.pins != was.pins
        changed = self._pinning.steer(now_s, *self._steering(constraints)) if steered else []
        gone, back = _ports(constraints.dead - was.dead), _ports(was.dead - constraints.dead)
        changed += self._pinning.cut(now_s, gone) if gone else []
        changed += self._pinning.mend(now_s, back) if back else []
        return [*self._changed(changed), *self._search.replanned(now_s)]

    def keep(self, pair: Pair, path: Path) -> None:
        """Lanes keep their ports anyway, until others are known. Connections count where they are."""
        if self._is_planned(pair):
            self._planned.keep(pair, path)

    def preview(self, constraints: Constraints) -> Work[Preview]:
        """By planned paths, some of which lanes may not have reached yet."""
        planned = self._pinning.preview(*self._steering(constraints))
        users = {key: list(self._users.get(key, ())) for key in planned}
        pairs, moves, rates_before, rates_after, *own = yield from self._planned.preview(constraints)
        yield
        before, after = (fair_rates(self._fabric, {key: both[at] for key, both in planned.items()}) for at in (0, 1))
        loads = [load.copy() for load in own]
        for key, both in planned.items():
            now, then = (self._fabric.whole(key.src, key.dst, [share.path for share in shares]) for shares in both)
            for shares, load in zip(both, loads, strict=True):
                for share in shares:
                    self._add(load, share.path, share.part)
            for pair in users[key]:
                pairs.append(pair)
                moves += [Move(pair, now, then)] if now != then else []
                rates_before.append(before[key])
                rates_after.append(after[key])
        return Preview(pairs, moves, rates_before, rates_after, *loads)

    def _steering(self, constraints: Constraints) -> tuple[list[PortRef], dict[tuple[int, int], Via]]:
        """Drained links, and pins by NIC, as `MeasuredPinning.steer` takes them."""
        at = {str(address_at(self._cables.addresses, nic)): number for nic, number in enumerate(self._nic)}
        pins = {
            (at[src], at[dst]): tuple(frozenset(_ports(some)) for some in via)
            for (src, dst), via in constraints.pins.items()
        }
        return _ports(constraints.drained), pins

    # -- probes --------------------------------------------------------------------------------------------------------

    def heard(self, now_s: float, client: Client, message: HostProbes) -> list[Pair]:
        self._now_s = now_s
        host = self._hosts.get(client.conn)
        if isinstance(message, CanProbe):
            if host is None:  # lanes that have commodities already are measured from their next ones on
                self._hosts[client.conn] = self._probing.setdefault(client.nic, {})[client.conn] = ProbingHost(
                    client, message.until
                )
                self._watches.begin(client.conn, every_hop=message.hops)
            return self._count_early(now_s, client.nic)
        if host is None:
            return []
        match message:
            case Probed():
                return self._probed(now_s, host, message)
            case Moved():
                return self._moved(now_s, host, message)
            case Report():
                self._lost(now_s, client, message)
        return []

    def _count_early(self, now_s: float, nic: int) -> list[Pair]:
        """A NIC's connections that were announced before any offer of probes enter the plan, with the ports they have.

        Earlier clients announce what is open first, and then offer probes.
        """
        changed: list[Pair] = []
        for pair in [pair for pair in self._early if pair.client.nic == nic]:
            sent, port = self._early.pop(pair)
            assert pair.commodity is not None  # else it has departed
            del self._own[pair.commodity]
            changed += [*self.arrive(now_s, pair), *self.has_sent(now_s, pair, sent, port)]
        return distinct(changed)

    def _lost(self, now_s: float, client: Client, message: Report) -> None:
        """A lane has left its port: its path is probed where packets were lost on it."""
        elephant = client.open.get(message.id)
        key = None if elephant is None else self._keys.get(elephant[0])
        if key is not None and message.reason == "loss":
            self._pinning.lost(now_s, key, message.port)

    def _probed(self, now_s: float, host: ProbingHost, message: Probed) -> list[Pair]:
        ask = host.open.pop(message.ask, None)
        if ask is None:
            self._counts["answers that nobody asked for"] += 1
            return []
        del self._asked[host.client.conn, message.ask]
        self._counts["probes"] += len({answer.port for answer in message.answers}.intersection(ask.ports))
        answers = answered(message.answers, ask.ports)
        self._counts["probes answered"] += len(answers)
        self._ready[host.client.conn] = None
        return self._changed(self._pinning.probed(now_s, ask, answers, left_out(message.answers, ask)))

    def _unanswered(self, now_s: float, ask: Ask) -> list[PairKey]:
        """No answer to an ask came, so that it says nothing of the routers that were to be tried."""
        return self._pinning.probed(now_s, ask, {}, ask.ports if ask.trial else left_out((), ask))

    def _moved(self, now_s: float, host: ProbingHost, message: Moved) -> list[Pair]:
        """Watched ports have moved or fallen silent: they are in doubt, and with them those of the same pair.

        Where that is known already, silence says no more: the ports are probed anyway.
        """
        try:
            peer = str(ip_address(message.peer))
        except ValueError:
            peer = ""
        pair = host.client.pairs.get((peer, message.peer_port, host.client.endpoint.at[2]))
        key = None if pair is None else self._keys.get(pair)
        watched, stands = ({}, False) if key is None else self._watches.watched(host.client.conn, key, message.ttl)
        answers = [answer for answer in message.answers if answer.port in watched and (stands or answer.address)]
        if key is None or not answers:
            self._counts["changes of ports that nobody watches"] += 1
            return []
        moved = answered(answers, watched)
        for answer in answers:
            self._events.append({
                "at_s": now_s,
                "device": host.client.key[0],
                "peer": peer,
                "port": answer.port,
                "router": watched[answer.port],
                "instead": answer.router,
            })  # fmt: skip
        self._counts["watched ports that moved"] += len(moved)
        self._counts["watched ports that fell silent"] += len(answers) - len(moved)
        self._watches.moved(now_s, host.client.conn, key)
        self._repinning.doubt(now_s, [key], self._pinning.moves)
        changed = self._pinning.moved(now_s, key, moved) if moved else []
        if len(moved) < len(answers):
            self._pinning.doubt(now_s, key)
        return self._changed(changed)

    def due(self, now_s: float) -> tuple[Sends, list[Pair]]:
        self._now_s = now_s
        changed = [*self._expire(now_s), *self._search.expire(now_s), *self._blame(now_s)]
        self._repinning.settle(now_s, self._in_doubt, lambda: self._pinning.moves)
        for ask in self._pinning.due(now_s):
            host = self._host_of(ask.pair)
            if host is None:  # nobody can probe it any more
                changed += self._changed(self._unanswered(now_s, ask))
            else:
                host.waiting.extend(parts(ask, searches=host.searches))
                self._ready[host.client.conn] = None
        sends: Sends = []
        for conn in self._ready:
            host = self._hosts[conn]
            while host.waiting and len(host.open) < _MOST_ASKS:
                ask = host.waiting.popleft()
                if ask.pair in self._users:
                    sends.append((conn, self._ask(now_s, host, ask)))
                else:  # it has ended meanwhile
                    changed += self._changed(self._unanswered(now_s, ask))
        self._ready.clear()
        return [*sends, *self._watches.due(now_s, self._users)], changed

    def _blame(self, now_s: float) -> list[Pair]:
        """Names links that lose packets. Returns the pairs whose ports may have changed."""
        moves = self._pinning.moves
        named, changed = self._pinning.blame(now_s)
        if named:
            self._repinning.doubt(now_s, (key for key in changed if key in self._users), moves)
        for each in named:
            self._counts["links named for losses"] += 1
            links = [f"{link} {self._cables.topology.peer(link)}" for link in each.links]
            said = {"at_s": now_s, "links": links, "lossy": each.lossy, "lanes": each.lanes, "hosts": each.hosts}
            self._blamed.append(said)
        return self._changed(changed)

    def _in_doubt(self, key: PairKey) -> bool:
        """Whether a pair has ports of which it is not known that they take its paths, and that may soon be known."""
        pinning = self._pinning
        return key in self._users and (
            pinning.is_doubtful(key) or (pinning.measuring(key) and pinning.avoids(key))
        )  # fmt: skip

    def _ask(self, now_s: float, host: ProbingHost, ask: Ask) -> Probe:
        self._count += 1
        host.open[self._count] = ask
        self._asked[host.client.conn, self._count] = now_s + _ANSWER_S
        peer, port = self._peer(ask.pair)
        until = [str(address) for way in ask.until for address in self._fabric.sought(way)][:MOST_PROBED]
        return Probe(self._count, peer, ask.ttl, list(ask.ports), None, port, ask.once, until)

    def _expire(self, now_s: float) -> list[Pair]:
        """Gives up asks that were not answered, and announcements that have waited long enough."""
        changed: list[Pair] = []
        while self._asked and self._asked[first := next(iter(self._asked))] <= now_s:
            del self._asked[first]
            conn, number = first
            self._counts["asks without an answer"] += 1
            changed += self._changed(self._unanswered(now_s, self._hosts[conn].open.pop(number)))
            self._ready[conn] = None
        while self._held and self._held[pair := next(iter(self._held))] <= now_s:
            del self._held[pair]
            changed.append(pair)
        return changed

    # -- for operators -------------------------------------------------------------------------------------------------

    def prepare(self) -> bool:
        return self._is_predicted and self._planned.prepare()

    def rates_bps(self) -> Iterator[tuple[Pair, float]]:
        """Of pairs whose lanes have ports, by the paths of these, if any path is another than at the last call.

        Other pairs have no limit, and count as idle.
        """
        if self._rated_at == (self._changes, self._pinning.moves):
            return
        self._rated_at = self._changes, self._pinning.moves
        shares = {key: self._pinning.shares(key) for key in self._users if self._pinning.ports(key)}
        for key, rate_bps in fair_rates(self._fabric, shares).items():
            users = [pair for pair in self._users[key] if self._keys.get(pair) == key]
            yield from ((pair, rate_bps / len(users)) for pair in users)

    def paths(self, pair: Pair) -> list[Path]:
        if self._is_planned(pair):
            return self._planned.paths(pair) if pair.is_expected or self.ports(pair) else []
        key = self._keys.get(pair)
        if key is None or not self.ports(pair):
            return []
        return self._fabric.whole(key.src, key.dst, self._pinning.paths(key))[: pair.client.lanes]

    def known_paths(self, pair: Pair) -> list[Path]:
        if pair in self._search:
            return self._search.known_paths(pair)
        return self._planned.known_paths(pair) if self._is_planned(pair) and self.ports(pair) else self.paths(pair)

    def loads(self) -> Floats:
        loads = self._planned.loads()
        for key in self._users:
            paths = self._pinning.paths(key)
            for path in paths:
                self._add(loads, path, 1 / len(paths))
        return loads

    def status(self) -> dict[str, Any]:
        pinning, keys = self._pinning, list(dict.fromkeys(self._keys.values()))
        ports = {key: pinning.ports(key) for key in keys}
        given_up = Counter(why for key in keys if (why := pinning.given_up(key)))
        ages = [self._now_s - seen_s for key in keys if (seen_s := pinning.oldest_s(key)) is not None]
        planned = self._planned.status()
        unkeyed = [pair for pair in self._own.values() if pair not in self._keys]
        planned_pairs = self._planned.pairs.values()
        others = sum(not pair.is_expected for pair in planned_pairs) - len(self._search)
        return {
            "unreachable": planned["unreachable"],
            "slowest_bps": 1 / pinning.congestion if pinning.congestion > 0 else None,
            "gap": None,
            "polarised": next(filter(None, map(self._polarised, keys)), None),
            "prepared_failures": planned["prepared_failures"],
            "measured": {
                "probing_hosts": len(self._hosts),
                "known_pairs": pinning.known_pairs,
                "pairs": len(keys),
                "pinned": sum(map(bool, ports.values())),
                "measuring": sum(map(pinning.measuring, keys)),
                "doubtful": sum(map(pinning.is_doubtful, keys)),
                "given_up": dict(given_up),
                "predicted": others if self._is_predicted else 0,
                "connections": len(self._search),
                "connections_with_port": self._search.with_port,
                "random": sum(pair.client.conn not in self._hosts for pair in unkeyed),
                "no_choice": sum(pair.client.conn in self._hosts for pair in unkeyed)
                + (0 if self._is_predicted else others),
                "watched_ports": self._watches.ports,
                "watch_probes": self._watches.probes(self._now_s),
                "oldest_s": max(ages, default=None),
                "events": list(self._events),
                "lossy": list(self._blamed),
                "avoided": [f"{link} {self._cables.topology.peer(link)}" for link in pinning.avoided],
                "repinned": [asdict(each) for each in self._repinning.past],
                "first_ports": self._first.status(),
            },
        }

    def _polarised(self, key: PairKey) -> str | None:
        """What is wrong where all probes of a pair found only part of its paths, although it has few."""
        reached, ways = self._pinning.reached(key)
        if reached in (0, ways) or ways > ENOUGH or self._constraints.avoided:
            return None
        switches = "leaves and spines" if isinstance(self._cables, Cabling) else "leaves, aggs and cores"
        begin, end = (self._fabric.topology.peer(self._fabric.nics[nic]).node for nic in key[:2])
        return Polarised(begin, end, reached, ways, switches).statement

    # -- internal ------------------------------------------------------------------------------------------------------

    def _add(self, loads: Floats, path: Links, part: float) -> None:
        """Adds part of a commodity to the loads of its links."""
        topology, tier = self._cables.topology, self._tier
        for port in path:
            down = tier[port.node] > tier[topology.peer(port).node]
            loads[int(down), self._cables.link_number(topology.link_at(port))] += part

    def _is_planned(self, pair: Pair) -> bool:
        """Whether the path of a pair is that of `Predicted`, by whatever port."""
        return pair.commodity is not None and pair.commodity >= 0

    def _key(self, pair: Pair) -> PairKey:
        return PairKey(self._nic[pair.client.nic], self._nic[pair.peer.nic], *pair.peer.at[1:])

    def _host_of(self, key: PairKey) -> ProbingHost | None:
        """The first host that probes among those of the pair's devices, or any other device of the same NIC."""
        pairs = self._users.get(key, ())
        hosts = (self._hosts.get(pair.client.conn) for pair in pairs)
        others = (host for pair in pairs for host in self._probing.get(pair.client.nic, {}).values())
        return next((host for host in chain(hosts, others) if host is not None), None)

    def _conn_of(self, key: PairKey) -> int | None:
        host = self._host_of(key)
        return None if host is None else host.client.conn

    def _peer(self, key: PairKey) -> tuple[str, int]:
        return next(iter(self._users[key])).peer.at[:2]

    def _of(self, keys: Iterable[PairKey]) -> list[Pair]:
        return [pair for key in keys for pair in self._users.get(key, ())]

    def _changed(self, keys: list[PairKey]) -> list[Pair]:
        """The pairs of hosts whose ports may have changed, which are to be watched anew."""
        used = [key for key in keys if key in self._users]
        self._search.learned(self._now_s, used)
        self._watches.look_at(used)
        self._first.look(self._now_s, used, lambda key: bool(self._pinning.ports(key)))
        self._repinning.doubt(self._now_s, filter(self._in_doubt, used), self._pinning.moves)
        return self._of(keys)


def _lanes(users: Iterable[Pair]) -> int:
    """The lanes of those pairs of hosts that can move."""
    return max((user.client.lanes for user in users if not user.client.fixed), default=0)


def _ports(links: Iterable[Link]) -> list[PortRef]:
    return [end for link in links for end in (link.a, link.b)]
