# SPDX-License-Identifier: Apache-2.0
"""Which ports hosts watch, at which hops and how often. No I/O.

A port of each path in use is watched at every hop whose routers tell the path, by probes that end there. Routers answer
few of these, so each set of routers has a period of its own for each host.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

import msgspec

from sdn.measured.discovery import Hop, PairKey
from sdn.measured.fabric import MeasuredFabric
from sdn.measured.pace import Pace
from sdn.measured.pinning import MeasuredPinning
from sdn.path_service.messages import Watch
from sdn.path_service.pinning import Sends

_MOST_WATCHED = 4096  # ports of one host, each counted at every hop
_LEAST_PERIOD_S = 1.0
_SAME_PERIOD = 1.25  # a period that differs by less is not sent again
_LOOK_S = 0.05  # between two looks at what is to be watched


@dataclass(slots=True)
class _Asked:
    """What a host watches at one set of routers."""

    routers: Counter[str] = field(default_factory=Counter)
    """By router: the ports for which it answers."""
    period_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Probes a second."""
        return self.routers.total() / max(_LEAST_PERIOD_S, self.period_s)


@dataclass(slots=True)
class _Told:
    """What a host was told to watch of a pair at one hop."""

    hop: Hop
    watch: Watch
    stands: bool = True
    """Not any more where the host has told of a port that moved: it is told again when the ports were measured."""


@dataclass(slots=True)
class _Host:
    every_hop: bool
    told: dict[PairKey, list[_Told]] = field(default_factory=dict)
    asked: dict[Hashable, _Asked] = field(default_factory=dict)
    """By the set of routers."""

    @property
    def watching(self) -> int:
        return sum(asked.routers.total() for asked in self.asked.values())


class Watches:
    """What the hosts of these connections watch.

    `host_of` has the connection of a host that can probe a pair, and `peer_of` the address and port of the pair's peer.
    """

    def __init__(
        self,
        fabric: MeasuredFabric,
        pinning: MeasuredPinning,
        pace: Pace,
        host_of: Callable[[PairKey], int | None],
        peer_of: Callable[[PairKey], tuple[str, int]],
    ) -> None:
        self._fabric = fabric
        self._pinning = pinning
        self._pace = pace
        self._host_of = host_of
        self._peer_of = peer_of
        self._hosts: dict[int, _Host] = {}
        self._stale: dict[PairKey, None] = {}  # whose ports may not be those that are watched
        self._ended: Sends = []
        self._count: Counter[Hashable] = Counter()  # ports that all hosts watch, by set of routers
        self._per_s = self._probes = 0.0
        self._counted_s = self._looked_s = 0.0

    @property
    def ports(self) -> int:
        """That all hosts watch, each counted at every hop."""
        return self._count.total()

    def probes(self, now_s: float) -> float:
        """That watching has taken so far."""
        self._probes += (now_s - self._counted_s) * self._per_s
        self._counted_s = now_s
        return self._probes

    def begin(self, conn: int, *, every_hop: bool) -> None:
        """A host can probe. Without `every_hop` it watches a port at one hop only."""
        self._hosts[conn] = _Host(every_hop)

    def leave(self, now_s: float, conn: int) -> None:
        """A host has gone. Another one may go on for it."""
        host = self._hosts.pop(conn)
        self.probes(now_s)
        for key, told in host.told.items():
            self._drop(host, told)
            self._stale[key] = None

    def look_at(self, keys: Iterable[PairKey]) -> None:
        """The ports of these pairs may not be those that are watched."""
        self._stale |= dict.fromkeys(keys)

    def end(self, now_s: float, conn: int, key: PairKey) -> None:
        """A host does not send to a peer any more."""
        host = self._hosts[conn]
        self.probes(now_s)
        told = host.told.pop(key, [])
        self._drop(host, told)
        self._ended += [(conn, msgspec.structs.replace(each.watch, ports=[])) for each in told]

    def watched(self, conn: int, key: PairKey, ttl: int) -> tuple[Mapping[int, str], bool]:
        """The ports of a pair that a host watches at a hop, 0 for the topmost one, each with the router expected.

        And whether none of them has moved since the host was told of them.
        """
        told = [each for each in self._hosts[conn].told.get(key, ()) if ttl in (0, each.watch.ttl)]
        return (dict(told[0].watch.ports), told[0].stands) if told else ({}, False)

    def moved(self, now_s: float, conn: int, key: PairKey) -> None:
        """A watched port has moved: the pair is watched anew when its ports are known again."""
        host = self._hosts[conn]
        self.probes(now_s)
        self._drop(host, host.told.get(key, ()))
        self._stale[key] = None

    def due(self, now_s: float, used: Container[PairKey]) -> Sends:
        """What to tell hosts now, of the pairs that are `used`."""
        self.probes(now_s)
        sends, self._ended = self._ended, []
        if self._stale and now_s >= self._looked_s + _LOOK_S:
            self._looked_s = now_s
            for key in list(self._stale):
                if key not in used or (conn := self._host_of(key)) is None:
                    del self._stale[key]
                elif not (self._pinning.is_doubtful(key) or self._pinning.is_checked(key)):
                    del self._stale[key]
                    self._watch(conn, key, sends)
        return sends

    def _watch(self, conn: int, key: PairKey, sends: Sends) -> None:
        """Has a host watch the ports of a pair that it uses now."""
        host = self._hosts[conn]
        hops = self._pinning.watched(key)[: None if host.every_hop else 1]
        wanted = {hop.ttl: [(port, str(router)) for port, router in ports] for hop, ports in hops}
        told = host.told.get(key, [])
        if wanted == {each.watch.ttl: each.watch.ports for each in told if each.stands}:
            return
        kept = sum(len(each.watch.ports) for each in told if each.stands)
        if not (told or any(wanted.values())) or host.watching - kept + sum(map(len, wanted.values())) > _MOST_WATCHED:
            return
        self._drop(host, told)
        peer, peer_port = self._peer_of(key)
        host.told[key] = [_Told(hop, Watch(peer, hop.ttl, 0.0, wanted[hop.ttl], peer_port)) for hop, _ in hops]
        for each in host.told[key]:
            self._add(host, each.hop, each.watch)
        for each in host.told[key]:
            asked = host.asked[each.hop.routers]
            period_s = self._period_s(asked, each.hop)
            if asked.period_s / _SAME_PERIOD <= period_s <= asked.period_s * _SAME_PERIOD:
                each.watch = msgspec.structs.replace(each.watch, period_s=asked.period_s)
                sends.append((conn, each.watch))
                continue
            self._per_s -= asked.per_s
            asked.period_s = period_s
            self._per_s += asked.per_s
            for other in [one for some in host.told.values() for one in some]:
                if other.stands and other.hop.routers == each.hop.routers:
                    other.watch = msgspec.structs.replace(other.watch, period_s=period_s)
                    sends.append((conn, other.watch))

    def _period_s(self, asked: _Asked, hop: Hop) -> float:
        """How often each port may be probed, so that routers answer this host, and all hosts: see `Pace`."""
        own_s = max(asked.routers.values(), default=0) / self._pace.host_router_per_s
        all_s = self._count[hop.routers] / (hop.router_count * self._pace.router_per_s / 2)
        return max(_LEAST_PERIOD_S, own_s, all_s)

    def _add(self, host: _Host, hop: Hop, watch: Watch) -> None:
        asked = host.asked.setdefault(hop.routers, _Asked())
        self._per_s -= asked.per_s
        asked.routers.update(self._routers(watch))
        self._per_s += asked.per_s
        self._count[hop.routers] += len(watch.ports)

    def _drop(self, host: _Host, told: Iterable[_Told]) -> None:
        for each in told:
            if not each.stands:
                continue
            each.stands = False
            asked = host.asked[each.hop.routers]
            self._per_s -= asked.per_s
            asked.routers.subtract(self._routers(each.watch))
            self._per_s += asked.per_s
            self._count[each.hop.routers] -= len(each.watch.ports)

    def _routers(self, watch: Watch) -> list[str]:
        return [self._fabric.router(ip_address(address)) for _, address in watch.ports]
