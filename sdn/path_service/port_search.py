# SPDX-License-Identifier: Apache-2.0
"""Ports by measured paths for connections that cannot move (`Hello.fixed`). No I/O.

The plan has a path for the connections from one NIC to another before they come (`sdn.path_service.places`). A hash
covers the port at which the peer listens, too, so hosts look for a port along that path when a connection begins. The
connection waits until one is known, but not for ever. Then it takes the least loaded of the paths that are known, and
the plan counts it there.

Routers do not answer many probes. So a connection for which the plan has made no room yet, and that is alone between
its two NICs, takes the first port whose path is loaded no more than the planned one. It soon takes the best of those
that answer: it mostly carries next to nothing. But the next connections between the two NICs follow it, and a program
that starts fast opens those for data before the plan has made room.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from netmodel import Path
from sdn.measured.discovery import PairKey
from sdn.measured.fabric import Links
from sdn.measured.pinning import MeasuredPinning
from sdn.path_service.parties import Pair
from sdn.path_service.predicted import Predicted
from sdn.path_service.resting_ports import RestingPorts

FIRST_HOLD_S = 0.15
"""The longest time for which a connection that is alone waits for a path loaded no more than the planned one."""
HOLD_S = 1.0
"""The longest time for which an announcement waits for its pair's ports to be measured."""
PLANNED_HOLD_S = 1.5
"""The same for a connection for which the plan has made room."""
LATEST_S = 1.8
"""The same for a connection while no port at all is known for it."""
_PATIENCE_S = (FIRST_HOLD_S, HOLD_S, PLANNED_HOLD_S, LATEST_S)  # after which one takes what it did not take before
_LOOK_S = 0.02  # between two looks at which connections have waited long enough
_MOST_LOOKS = 64  # at connections for which the plan may have other paths, each time
_NO_PORTS: list[int] = []


@dataclass(slots=True)
class _Connection:
    """A connection that is open."""

    key: PairKey
    began_s: float
    port: int = 0
    """That it was given; 0 while it waits, and where none was known in time."""


class PortSearch:
    """Gives each connection a port when it begins, which it keeps. `planned` has their paths.

    Pairs of `pinning` are announced there while they have connections.
    """

    def __init__(self, pinning: MeasuredPinning, planned: Predicted) -> None:
        self._pinning = pinning
        self._planned = planned
        self._connections: dict[Pair, _Connection] = {}
        self._waiting: dict[Pair, None] = {}  # the one that waits longest is first
        self._of: dict[PairKey, dict[Pair, None]] = {}
        self._resting = RestingPorts()
        self._looked_s = 0.0
        self.is_stale = False
        """Whether the plan may have other paths for connections that wait, at which `expire` then looks."""
        self._stale: deque[Pair] = deque()  # those at which it has not looked yet; some may wait no more

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._connections

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def with_port(self) -> int:
        """Connections that were given a port."""
        return sum(connection.port != 0 for connection in self._connections.values())

    def begin(self, now_s: float, key: PairKey, pair: Pair) -> None:
        """A connection begins, whose pair of `pinning` is announced."""
        self._resting.begin(now_s, key, pair.client.lanes, {other.client.lanes for other in self._of.get(key, ())})
        self._connections[pair] = _Connection(key, now_s)
        self._waiting[pair] = None
        self._of.setdefault(key, {})[pair] = None
        self._settle(now_s, pair)
        self._seek(now_s, key)

    def keep(self, now_s: float, pair: Pair, port: int) -> None:
        """A connection has this port, which may be none that it was given here: it counts where that is known to lead.

        Its host cannot probe the port, so it counts on the path of the plan where that is not known.
        """
        connection = self._connections[pair]
        if connection.port == port:
            return
        connection.port = port
        self._waiting.pop(pair, None)
        path, _ = self._planned.begins_on(pair)
        links = self._pinning.known(connection.key).get(port)
        if path is not None and links is not None:
            self._planned.keep(pair, (path[0], *links, path[-1]))
        self._seek(now_s, connection.key)

    def end(self, now_s: float, pair: Pair) -> None:
        """A connection has ended, whose port and place in the plan others may take."""
        self.is_stale = True
        connection = self._connections.pop(pair)
        key = connection.key
        if connection.port:
            self._resting.end(now_s, key, pair.client.lanes, connection.port)
        self._waiting.pop(pair, None)
        del self._of[key][pair]
        if self._of[key]:
            self._seek(now_s, key)
        else:
            del self._of[key]

    def is_settled(self, pair: Pair) -> bool:
        """Whether a connection has its port, or waits for none any more."""
        return pair not in self._waiting

    def is_vain(self, pair: Pair) -> bool:
        """Whether no port was known for a connection in time."""
        return pair in self._connections and pair not in self._waiting and not self._connections[pair].port

    def ports(self, pair: Pair) -> list[int]:
        """The port of a connection for each lane of its client: a client has one connection to each port of a peer.

        The same list object as long as it does not change.
        """
        port = self._connections[pair].port
        ports = [port] * pair.client.lanes if port else _NO_PORTS
        if ports != pair.ports:
            pair.ports = ports
        return pair.ports

    def known_paths(self, pair: Pair) -> list[Path]:
        """The path of a connection's port; none where no host has probed the port."""
        connection = self._connections[pair]
        links = self._pinning.known(connection.key).get(connection.port)
        return [] if links is None else [(path[0], *links, path[-1]) for path in self._planned.paths(pair)]

    def learned(self, now_s: float, keys: Iterable[PairKey]) -> None:
        """Ports of these pairs may be known now."""
        for key in keys:
            waiting = [pair for pair in self._of.get(key, ()) if pair in self._waiting]
            for pair in waiting:
                self._settle(now_s, pair)
            if waiting:
                self._seek(now_s, key)

    def replanned(self, now_s: float) -> list[Pair]:
        """The plan may have other paths for connections that wait. Returns those that wait no more."""
        return self._looked_at(now_s, self._waiting)

    def expire(self, now_s: float) -> list[Pair]:
        """Connections that have waited long enough take what is known. Returns those that wait no more.

        However many wait, and however often the plan changes, this takes a small part of the time.
        """
        if not self._waiting or now_s < self._looked_s + _LOOK_S:
            return []
        before_s, self._looked_s = self._looked_s, now_s
        due = dict.fromkeys(pair for pair in self._waiting if self._is_due(before_s, now_s, pair))
        if self.is_stale and not self._stale:
            self._stale, self.is_stale = deque(self._waiting), False
        stale = [self._stale.popleft() for _ in range(min(_MOST_LOOKS, len(self._stale)))]
        return self._looked_at(now_s, [*due, *(pair for pair in stale if pair in self._waiting and pair not in due)])

    def _is_due(self, before_s: float, now_s: float, pair: Pair) -> bool:
        """Whether a connection has waited long enough for something since the time before."""
        began_s = self._connections[pair].began_s
        return any(before_s - began_s < patience_s <= now_s - began_s for patience_s in _PATIENCE_S)

    def _looked_at(self, now_s: float, waiting: Iterable[Pair]) -> list[Pair]:
        """Looks at these connections, and the others of their pairs. Returns those of all that wait no more."""
        keys = dict.fromkeys(self._connections[pair].key for pair in waiting)
        looked = [pair for key in keys for pair in self._of[key] if pair in self._waiting]
        self.learned(now_s, keys)
        return [pair for pair in looked if pair not in self._waiting]

    def _settle(self, now_s: float, pair: Pair) -> None:
        """Gives a connection its port, if one is known that will do."""
        connection, waited_s = self._connections[pair], self._waited_s(now_s, pair)
        path, is_planned = self._planned.begins_on(pair)
        if path is None:  # there is no path any more
            del self._waiting[pair]
            return
        used, known = self._used(connection.key), self._pinning.known(connection.key)
        free = {port: links for port, links in known.items() if port not in used}
        port = next((port for port, links in free.items() if links == path[1:-1]), 0)
        if not port and not is_planned and not self._planned.is_shared(pair):
            port = self._as_good(pair, path, free)
        patience_s = PLANNED_HOLD_S if is_planned else HOLD_S if self._has_others(pair) else FIRST_HOLD_S
        if not port and free and waited_s >= patience_s:
            port = list(free)[self._planned.best(pair, free.values()) or 0]
        if port:
            connection.port = port
            self._planned.keep(pair, (path[0], *free[port], path[-1]))
        if port or waited_s >= LATEST_S:
            del self._waiting[pair]

    def _as_good(self, pair: Pair, path: Path, free: Mapping[int, Links]) -> int:
        """One of these ports whose path is loaded no more than the planned one; 0 without one."""
        best = self._planned.best(pair, [*free.values(), path[1:-1]])
        return 0 if best is None or best == len(free) else list(free)[best]

    def _seek(self, now_s: float, key: PairKey) -> None:
        """Has the host look for ports along the paths of those connections of a pair that wait."""
        paths: Counter[Links] = Counter()
        urgent = False
        for pair in self._of[key]:
            if pair in self._waiting:
                path, is_planned = self._planned.begins_on(pair)
                if path is not None:
                    paths[path[1:-1]] += 1
                    urgent |= is_planned or self._has_others(pair)
        used, known = self._used(key), self._pinning.known(key)
        paths.update(known[port] for port in used if known.get(port) in paths)
        self._pinning.seek(now_s, key, paths, used, urgent)

    def _waited_s(self, now_s: float, pair: Pair) -> float:
        return now_s - self._connections[pair].began_s

    def _used(self, key: PairKey) -> dict[int, None]:
        """The ports of a pair that no other connection can have."""
        own = (self._connections[pair].port for pair in self._of[key])
        return dict.fromkeys(port for port in (*own, *self._resting.of(key)) if port)

    def _has_others(self, pair: Pair) -> bool:
        """Whether there is another connection to the same port of the peer, or one that shares its place."""
        return len(self._of[self._connections[pair].key]) > 1 or self._planned.is_shared(pair)
