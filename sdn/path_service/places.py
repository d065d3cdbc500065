# SPDX-License-Identifier: Apache-2.0
"""Places of the plan for connections that cannot move (`Hello.fixed`). Pure.

A program opens many connections that carry next to nothing: to find its peers, to exchange addresses, for barriers. So
a connection takes no room in the plan before it has lasted for a while, and all connections of a client from one NIC to
another share one place, whatever their ports. A connection of the set-up that lasts tells where data will go: the plan
has made room for them before they come.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sdn.path_service.parties import Pair
from sdn.planners import LOCAL, UNREACHABLE, links
from sdn.planners.links import AnyClos, AnyPlan, Way, reversed_way
from sdn.planners.model import Clos

SENT = 1 << 20
"""Bytes from which on a connection carries data."""

Key = tuple[int, int, int]
"""The NICs that a place leads from and to, and the lanes of its client: one of several clients of a host has more."""


class Place:
    """What connections from one NIC to another share. With `both_ways`, those that the other one opens, too."""

    __slots__ = ("both_ways", "ends", "holder", "members", "mirrored", "sent", "way")

    def __init__(self, ends: tuple[int, int], way: Way) -> None:
        self.ends = ends
        """The NICs that it leads from and to."""
        self.way = way
        """That of the next connection. Those that are open may have begun on another one. `Places.put` changes it."""
        self.members: dict[Pair, None] = {}
        self.holder: Pair | None = None
        """The member whose commodity is in the plan; None before a connection has lasted. `Places.hold` changes it."""
        self.sent: set[Pair] = set()
        """Members that carry data."""
        self.both_ways = False
        """Whether connections that are opened at its other end share it, over the same links: `Routing.expect`."""
        self.mirrored = False
        """Whether the same connections will carry data back, for which there is a place from the other end."""

    @property
    def stays(self) -> bool:
        """Whether the plan may not move it.

        It may while only one connection has it, which has not carried data: that was for set-up, and the next one
        begins on the new way. One of two that count the same connections may not leave the links of the other.
        """
        return len(self.members) > 1 or bool(self.sent) or self.mirrored

    def seen_by(self, pair: Pair, way: Way) -> Way:
        """A way of this place as one of the pair, which may lead from the place's other end, or the other way round."""
        return way if pair.client.nic == self.ends[0] else reversed_way(way)


class Places:
    """The places of a routing, whose fabric has the links of `fabric`, of whatever rates."""

    def __init__(self, fabric: AnyClos) -> None:
        self._fabric = fabric
        self._at: dict[Key, Place] = {}
        self.beside: Counter[tuple[int, int]] = Counter()
        """By direction, 0 up and 1 down, and link: the places that are not in the plan yet."""

    def __bool__(self) -> bool:
        return bool(self._at)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._at.values())

    def of(self, pair: Pair) -> Place | None:
        """The place that a pair has, or would join."""
        source, destination, lanes = key = _key(pair)
        place = self._at.get(key)
        if place is not None and pair in place.members:
            return place
        back = self._at.get((destination, source, lanes))
        if back is not None and back.both_ways and (place is None or pair in back.members):
            return back
        return place

    def join(self, pair: Pair, way: Way) -> Place:
        """A pair begins. Opens a place with this way where there is none."""
        place = self.of(pair) or self._open(_key(pair), way)
        place.members[pair] = None
        return place

    def mirror(self, pair: Pair) -> None:
        """Opens a place for a pair that will carry data, if that from its other end was opened for data.

        It is over the same links: a connection between two ranks that are each the next one of the other carries the
        data of both, whichever has opened it.
        """
        source, destination, lanes = key = _key(pair)
        other = self._at.get((destination, source, lanes))
        if other is not None and other.both_ways and key not in self._at:
            other.mirrored = self._open(key, reversed_way(other.way)).mirrored = True

    def mirrors(self) -> Iterator[tuple[Place, Place]]:
        """Each place that has a mirror, with it: each two once."""
        for (source, destination, lanes), place in self._at.items():
            other = self._at.get((destination, source, lanes)) if source < destination else None
            if other is not None and place.mirrored and other.mirrored:
                yield place, other

    def _open(self, key: Key, way: Way) -> Place:
        place = self._at[key] = Place(key[:2], way)
        self.beside.update(self._taken(place))
        return place

    def put(self, place: Place, way: Way) -> None:
        """Gives a place another way."""
        if place.holder is None:
            self.beside.subtract(self._taken(place))
        place.way = way
        if place.holder is None:
            self.beside.update(self._taken(place))

    def hold(self, place: Place, pair: Pair) -> None:
        """This member's commodity is that of its place in the plan from now on."""
        if place.holder is None:
            self.beside.subtract(self._taken(place))
        place.holder = pair

    def leave(self, pair: Pair) -> Place:
        """A pair has ended. Its place may now be without members; it is then closed."""
        place = self.of(pair)
        assert place is not None  # the pair has joined
        del place.members[pair]
        place.sent.discard(pair)
        if not place.members:
            del self._at[*place.ends, pair.client.lanes]
            if place.holder is None:
                self.beside.subtract(self._taken(place))
        return place

    def copied(self) -> "Places":
        """The same places of the same pairs, to be changed on their own. `replace` gives them copies of the pairs."""
        made = Places(self._fabric)
        made.beside = self.beside.copy()
        for key, place in self._at.items():
            other = made._at[key] = Place(place.ends, place.way)
            other.members, other.holder, other.sent = place.members.copy(), place.holder, place.sent.copy()
            other.both_ways, other.mirrored = place.both_ways, place.mirrored
        return made

    def replace(self, pairs: Mapping[Pair, Pair]) -> Iterator[None]:
        """Puts other pairs in the places of these, place by place: one for each `next`."""
        for place in self._at.values():
            place.members = {pairs[pair]: None for pair in place.members}
            place.holder = None if place.holder is None else pairs[place.holder]
            place.sent = {pairs[pair] for pair in place.sent}
            yield

    def _taken(self, place: Place) -> Iterator[tuple[int, int]]:
        taken = links.on_way(self._fabric, *place.ends, place.way)
        return ((at % 2, link) for at, link in enumerate(taken))


def _key(pair: Pair) -> Key:
    return pair.client.nic, pair.peer.nic, pair.client.lanes


def least_congested(
    pair: Pair, ways: Iterable[Way], fabric: AnyClos, plan: AnyPlan, places: Places, own: Way | None = None
) -> Way:
    """That of these ways of a pair whose worst link is loaded least, and of equal ones the one with the least load.

    `own` is the way on which the plan counts the pair already.
    """
    src, dst = pair.client.nic, pair.peer.nic
    rest = () if isinstance(fabric, Clos) else (LOCAL, -1, -1)
    tors = links.leaf_links(fabric).nic_tor
    if tors[src] == tors[dst]:
        return (LOCAL, -1, -1, *rest)
    rates, loads, beside = links.rates(fabric), links.loads(plan), places.beside
    counted = () if own is None else links.on_way(fabric, src, dst, own)
    best: tuple[float, float] | None = None
    chosen: Way = (UNREACHABLE, -1, -1, *rest)
    for way in ways:
        taken = links.on_way(fabric, src, dst, way)
        if not all(rates[[*taken]] > 0):  # dead or drained
            continue
        full = [
            (loads[at % 2, link] + beside[at % 2, link] + (link not in counted)) / rates[link]
            for at, link in enumerate(taken)
        ]
        if best is None or (max(full), sum(full)) < best:
            best, chosen = (max(full), sum(full)), way
    return chosen
