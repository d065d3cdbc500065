# SPDX-License-Identifier: Apache-2.0
"""Which routers behind the topmost ones tell the way of a probe as well. No I/O.

A router that names the port at which a probe came in does. One that names the port by which its answer leaves tells
any of several. So answers are tried on ports whose ways are known before they are believed.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Pair = TypeVar("Pair", bound=Hashable)
Way = TypeVar("Way", bound=Hashable)

SURE = 8
"""Ways of pairs that a set of routers must have told right: chance does so once in 256 times, where there are two."""
_WRONG = 3  # answers of a set of routers, after which they are not believed; routes may have changed before one or two


class OtherHops(Generic[Pair, Way]):
    """Which sets of routers tell ways right. Sets have names."""

    def __init__(self) -> None:
        self._right: dict[Hashable, set[tuple[Pair, Way]]] = {}
        self._wrong = Counter[Hashable]()
        self._open: dict[Pair, tuple[Hashable, int]] = {}  # trials under way, each with its number of ports

    def believed(self, routers: Hashable) -> bool:
        """Whether a set of routers has told enough ways right."""
        return len(self._right.get(routers, ())) >= SURE and self._wrong[routers] < _WRONG

    def begin(self, pair: Pair, routers: Hashable, known: Mapping[int, Way]) -> list[int]:
        """The ports of a pair to try now at a set of routers, of those whose ways are `known`: none if none is needed.

        If there are some, `end` has to follow.
        """
        right = self._right.setdefault(routers, set())
        under_way = sum(ports for those, ports in self._open.values() if those == routers)
        missing = SURE - len(right) - under_way
        if pair in self._open or missing <= 0 or self._wrong[routers] >= _WRONG:
            return []
        first: dict[Way, int] = {}
        for port, way in known.items():
            if (pair, way) not in right:
                first.setdefault(way, port)
        ports = list(first.values())[:missing]
        if ports:
            self._open[pair] = routers, len(ports)
        return ports

    def end(self, pair: Pair, known: Mapping[int, Way], told: Mapping[int, Way]) -> None:
        """What came of the ports that were tried, by what is `known` now. Without a trial this does nothing."""
        routers, _ = self._open.pop(pair, (None, 0))
        if routers is None:
            return
        for port, way in told.items():
            if port in known and known[port] == way:
                self._right[routers].add((pair, way))
            elif port in known:
                self._wrong[routers] += 1
