# SPDX-License-Identifier: Apache-2.0
"""Places of the plan for connections that cannot move (`Hello.fixed`). Pure.

A program opens many connections that carry next to nothing: to find its peers, to exchange addresses, for barriers. So
a connection takes no room in the plan before it has lasted for a while, and all connections of a client from one NIC to
another share one place, whatever their ports. A connection of the set-up that lasts tells where data will go: the plan
has made room for them before they come.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from sdn.path_service.parties import Pair
from sdn.path_service.ports import PortTables
from sdn.planners import LOCAL, UNREACHABLE, links
from sdn.planners.links import AnyClos, AnyPlan, Way
from sdn.planners.model import Clos

SENT = 1 << 20
"""Bytes from which on a connection carries data."""

Key = tuple[int, int, int]
"""The NICs that a place leads from and to, and the lanes of its client: one of several clients of a host has more."""


class Place:
    """What connections from one NIC to another share."""

    __slots__ = ("holder", "members", "sent", "way")

    def __init__(self, way: Way) -> None:
        self.way = way
        """That of the next connection. Those that are open may have begun on another one."""
        self.members: dict[Pair, None] = {}
        self.holder: Pair | None = None
        """The member whose commodity is in the plan; None before a connection has lasted."""
        self.sent: set[Pair] = set()
        """Members that carry data."""

    @property
    def stays(self) -> bool:
        """Whether the plan may not move it.

        It may while only one connection has it, which has not carried data: that was for set-up, and the next one
        begins on the new way.
        """
        return len(self.members) > 1 or bool(self.sent)


class Places:
    """The places of a routing, and the ways of connections that have none yet."""

    def __init__(self) -> None:
        self._at: dict[Key, Place] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._at.values())

    def of(self, pair: Pair) -> Place | None:
        """The place that a pair has, or would join."""
        return self._at.get(_key(pair))

    def join(self, pair: Pair, way: Way) -> Place:
        """A pair begins. Opens a place with this way where there is none."""
        place = self._at.setdefault(_key(pair), Place(way))
        place.members[pair] = None
        return place

    def leave(self, pair: Pair) -> Place:
        """A pair has ended. Its place may now be without members; it is then closed."""
        place = self._at[_key(pair)]
        del place.members[pair]
        place.sent.discard(pair)
        if not place.members:
            del self._at[_key(pair)]
        return place

    def copied(self, copies: Mapping[Pair, Pair]) -> "Places":
        """The same places with these copies of their pairs."""
        made = Places()
        for key, place in self._at.items():
            other = made._at[key] = Place(place.way)
            other.members = dict.fromkeys(copies[pair] for pair in place.members)
            other.holder = None if place.holder is None else copies[place.holder]
            other.sent = {copies[pair] for pair in place.sent}
        return made

    def beside(self, fabric: AnyClos) -> Counter[tuple[int, int]]:
        """By direction, 0 up and 1 down, and link: the places that are not in the plan yet."""
        loads: Counter[tuple[int, int]] = Counter()
        for place in self:
            if place.holder is None:
                (pair, *_) = place.members
                taken = links.on_way(fabric, pair.client.nic, pair.peer.nic, place.way)
                loads.update((at % 2, link) for at, link in enumerate(taken))
        return loads


def _key(pair: Pair) -> Key:
    return pair.client.nic, pair.peer.nic, pair.client.lanes


def least_congested(
    pair: Pair, tables: PortTables, fabric: AnyClos, plan: AnyPlan, places: Places, own: Way | None = None
) -> Way:
    """The way of a pair whose worst link is loaded least, and of these the one with the least load in all.

    `own` is the way on which the plan counts the pair already.
    """
    src, dst = pair.client.nic, pair.peer.nic
    rest = () if isinstance(fabric, Clos) else (LOCAL, -1, -1)
    tors = links.leaf_links(fabric).nic_tor
    if tors[src] == tors[dst]:
        return (LOCAL, -1, -1, *rest)
    rates, loads, beside = links.rates(fabric), links.loads(plan), places.beside(fabric)
    if own is not None:
        beside.subtract((at % 2, link) for at, link in enumerate(links.on_way(fabric, src, dst, own)))
    best: tuple[float, float] | None = None
    chosen: Way = (UNREACHABLE, -1, -1, *rest)
    for way in tables.ways(src, dst):
        taken = links.on_way(fabric, src, dst, way)
        if not all(rates[[*taken]] > 0):  # dead or drained
            continue
        full = [(loads[at % 2, link] + beside[at % 2, link] + 1) / rates[link] for at, link in enumerate(taken)]
        if best is None or (max(full), sum(full)) < best:
            best, chosen = (max(full), sum(full)), way
    return chosen
