# SPDX-License-Identifier: Apache-2.0
"""Which routers behind the topmost ones tell the way of a probe as well. No I/O.

A router that names the port at which a probe came in does. One that names the port by which its answer leaves tells
any of several. So answers are tried on ports whose ways are known before they are believed, on some by each host, as
others may lie.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Host = TypeVar("Host", bound=Hashable)
Pair = TypeVar("Pair", bound=Hashable)
Way = TypeVar("Way", bound=Hashable)

SURE = 8
"""Ways of pairs that routers must have told right, one after another: of two ways, chance does so once in 256 times."""
_OWN = 2  # of these that must have been told to the host that believes them
_WRONG = 3  # answers of a set of routers, after which they are not tried any more
_IN_VAIN = 3  # trials in a row of which no way was told, after which they are not tried any more


@dataclass(slots=True)
class _Routers(Generic[Host, Pair, Way]):
    """What a set of routers has told."""

    right: set[tuple[Pair, Way]] = field(default_factory=set)
    own: Counter[Host] = field(default_factory=Counter)  # of these, by the host that was told
    believing: set[Host] = field(default_factory=set)  # hosts that did before the routers were tried anew
    trying: Counter[Host] = field(default_factory=Counter)  # ports under way
    wrong: int = 0
    in_vain: int = 0


class OtherHops(Generic[Host, Pair, Way]):
    """Which sets of routers tell ways right, by what hosts hear of probes of their pairs. Sets have names."""

    def __init__(self) -> None:
        self._sets: dict[Hashable, _Routers[Host, Pair, Way]] = {}
        self._open: dict[Pair, tuple[Host, Hashable, tuple[int, ...]]] = {}  # trials under way, each with its ports

    def believed(self, host: Host, routers: Hashable) -> bool:
        """Whether a host believes a set of routers, which has told enough ways right."""
        its = self._set(routers)
        return host in its.believing or (len(its.right) >= SURE and its.own[host] >= _OWN)

    def missing(self, host: Host, routers: Hashable) -> int:
        """Ways that a host is still to try at a set of routers, beside those that are under way."""
        its = self._set(routers)
        if its.wrong >= _WRONG or its.in_vain >= _IN_VAIN:
            return 0
        return max(0, SURE - len(its.right) - its.trying.total(), _OWN - its.own[host] - its.trying[host])

    def under_way(self, pair: Pair) -> tuple[int, ...]:
        """The ports of a pair that are tried now."""
        return self._open[pair][2] if pair in self._open else ()

    def begin(self, host: Host, pair: Pair, routers: Hashable, known: Mapping[int, Way]) -> tuple[int, ...]:
        """The ports of a host's pair to try now at a set of routers, of those whose ways are `known`.

        As many as are missing. If there are some, `end` has to follow, or `forget`.
        """
        its = self._set(routers)
        first: dict[Way, int] = {}
        for port, way in known.items():
            if (pair, way) not in its.right:
                first.setdefault(way, port)
        ports = () if pair in self._open else tuple(first.values())[: self.missing(host, routers)]
        if ports:
            self._open[pair] = host, routers, ports
            its.trying[host] += len(ports)
        return ports

    def end(self, pair: Pair, known: Mapping[int, Way], told: Mapping[int, Way]) -> None:
        """What came of the ports that were tried, by what is `known` now. Without a trial this does nothing."""
        if pair not in self._open:
            return
        host, routers, _ = self._open[pair]
        self.forget(pair)
        its = self._set(routers)
        its.in_vain = 0 if told else its.in_vain + 1
        for port, way in told.items():
            if port in known and known[port] != way:
                its.wrong += 1
                its.right.clear()
                its.own.clear()
                its.believing.clear()
            elif port in known and (pair, way) not in its.right:
                its.right.add((pair, way))
                its.own[host] += 1

    def forget(self, pair: Pair) -> None:
        """What comes of the ports of a pair that were tried does not matter any more."""
        if pair in self._open:
            host, routers, ports = self._open.pop(pair)
            trying = self._set(routers).trying
            trying[host] -= len(ports)
            if not trying[host]:
                del trying[host]

    def changed(self, routers: Hashable) -> None:
        """Routes have changed, maybe some time ago: what a set of routers told wrong may have been right."""
        its = self._set(routers)
        its.wrong = its.in_vain = 0

    def anew(self, routers: Hashable) -> None:
        """A port is on another way than a set of routers has told: it has moved, or they tell it wrong now.

        They are tried again. Hosts that believe them do so until then.
        """
        its = self._set(routers)
        if len(its.right) >= SURE:
            its.believing.update(host for host, right in its.own.items() if right >= _OWN)
            its.right.clear()
            its.own.clear()

    def _set(self, routers: Hashable) -> _Routers[Host, Pair, Way]:
        return self._sets.setdefault(routers, _Routers())
