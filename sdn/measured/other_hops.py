# SPDX-License-Identifier: Apache-2.0
"""Which routers behind the topmost ones tell the way of a probe as well. No I/O.

A router that names the port at which a probe came in does. One that names the port by which its answer leaves tells
any of several. So answers are tried on ports whose ways are known before they are believed.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Host = TypeVar("Host", bound=Hashable)
Pair = TypeVar("Pair", bound=Hashable)
Way = TypeVar("Way", bound=Hashable)

SURE = 8
"""Ways that a set of routers must have told hosts right: chance does so once in 256 times, where there are two ways."""
_OF_ONE = SURE // 2  # of these that one host may tell of: a host that lies does not decide for others
_MOST = 4 * SURE  # ports that are tried, of which some are not answered, or by addresses that are on no path
_WRONG = 3  # answers of a set of routers, after which they are not believed; routes may have changed before one or two


class OtherHops(Generic[Host, Pair, Way]):
    """Which sets of routers tell ways right, by what hosts hear of probes of their pairs. Sets have names."""

    def __init__(self) -> None:
        self._right: dict[Hashable, set[tuple[Host, Way]]] = {}
        self._wrong = Counter[Hashable]()
        self._tried = Counter[Hashable]()  # ports
        self._believed = set[Hashable]()
        self._open: dict[Pair, tuple[Host, Hashable, int]] = {}  # trials under way, each with its number of ports
        self._trying = Counter[Hashable]()  # ports under way: at a set of routers, and of a host there

    def believed(self, routers: Hashable) -> bool:
        """Whether a set of routers has told enough ways right."""
        return routers in self._believed

    def anew(self, routers: Hashable) -> None:
        """A port is on another way than a set of routers has told: it has moved, or they tell it wrong now.

        They are tried again, and believed until then.
        """
        if routers in self._believed:
            self._right[routers] = set()
            self._wrong[routers] = self._tried[routers] = 0

    def missing(self, routers: Hashable) -> int:
        """Ways that are still to be tried at a set of routers, beside those that are under way."""
        if self._wrong[routers] >= _WRONG or self._tried[routers] >= _MOST:
            return 0
        return max(0, SURE - len(self._right.get(routers, ())) - self._trying[routers])

    def begin(self, host: Host, pair: Pair, routers: Hashable, known: Mapping[int, Way]) -> list[int]:
        """The ports of a host's pair to try now at a set of routers, of those whose ways are `known`.

        As many as are missing. If there are some, `end` has to follow.
        """
        right = self._right.setdefault(routers, set())
        own = sum(other == host for other, _ in right) + self._trying[host, routers]
        first: dict[Way, int] = {}
        for port, way in known.items():
            if (host, way) not in right:
                first.setdefault(way, port)
        ports = [] if pair in self._open else list(first.values())[: max(0, min(self.missing(routers), _OF_ONE - own))]
        if ports:
            self._open[pair] = host, routers, len(ports)
            self._trying.update({routers: len(ports), (host, routers): len(ports)})
        return ports

    def end(self, pair: Pair, known: Mapping[int, Way], told: Mapping[int, Way]) -> None:
        """What came of the ports that were tried, by what is `known` now. Without a trial this does nothing."""
        if pair not in self._open:
            return
        host, routers, ports = self._open.pop(pair)
        self._trying.subtract({routers: ports, (host, routers): ports})
        self._tried[routers] += ports
        for port, way in told.items():
            if port in known and known[port] == way:
                self._right[routers].add((host, way))
            elif port in known:
                self._wrong[routers] += 1
        if self._wrong[routers] >= _WRONG:
            self._believed.discard(routers)
        elif len(self._right[routers]) >= SURE:
            self._believed.add(routers)
