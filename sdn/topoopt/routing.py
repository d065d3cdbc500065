# SPDX-License-Identifier: Apache-2.0
"""Routes over direct-connect topologies, in which servers relay: TopoOpt, appendix E.3 and section 4.2.

A route is the sequence of servers from source to destination.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from sdn import _native
from sdn.topoopt.demand import Matrix
from sdn.topoopt.permutations import Circuit

Route = tuple[int, ...]
Routes = Mapping[Circuit, tuple[Route, ...]]
"""By source and destination: the routes over which traffic is spread evenly."""


class Unreachable(ValueError):
    """There is no route from one server to another; the text is one sentence for the user."""


def coin_change(size: int, coins: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """For every distance 0 .. size - 1 the fewest strides that add up to it modulo `size`: CoinChangeMod (Algorithm 4).

    A breadth-first search finds the shortest path from 0 with coins as steps; of equally short ones, that whose last
    coin comes first in `coins`. Relays continue by the same rule, so they only need the destination. (Algorithm 4
    counts a distance that is a coin as 0, and so all others as one less.)

    Raises Unreachable when some distance is not a sum of coins.
    """
    found: dict[int, tuple[int, ...]] = {0: ()}
    frontier = [0]
    while frontier:
        reached: dict[int, tuple[int, ...]] = {}
        for coin in coins:
            for distance in frontier:
                there = (distance + coin) % size
                if there not in found and there not in reached:
                    reached[there] = (*found[distance], coin)
        found |= reached
        frontier = list(reached)
    if len(found) < size:
        missing = min(set(range(size)) - found.keys())
        raise Unreachable(f"a distance of {missing} among {size} servers is not a sum of the strides {tuple(coins)}")
    return tuple(found[distance] for distance in range(size))


def coin_route(members: Sequence[int], sums: Sequence[Sequence[int]], source: int, destination: int) -> Route:
    """The route between two positions of a group: each server uses the last coin of the remaining distance."""
    size = len(members)
    route, at = [members[source]], source
    while at != destination:
        at = (at + sums[(destination - at) % size][-1]) % size
        route.append(members[at])
    return tuple(route)


def coin_routes(members: Sequence[int], sums: Sequence[Sequence[int]]) -> Iterator[Route]:
    """All routes of `coin_route` between different members. Those of one source, turned, are those of every other."""
    size, twice = len(members), (*members, *members)
    ways = [itemgetter(*coin_route(range(size), sums, 0, distance)) for distance in range(1, size)]
    for source in range(size):
        turned = twice[source : source + size]
        for way in ways:
            yield way(turned)


@dataclass(frozen=True, slots=True)
class PathLengths:
    """Statistics of hops over all ordered pairs of distinct servers."""

    mean: float
    diameter: int


def ring_path_lengths(size: int, coins: Sequence[int]) -> PathLengths:
    """Path lengths in a group with rings `coins`, equal for all members. Raises Unreachable."""
    hops = [len(sums) for sums in coin_change(size, coins)[1:]]
    return PathLengths(sum(hops) / len(hops), max(hops))


class BalancedRoutes:
    """Shortest routes over `circuits`, chosen one pair of servers after the other so that circuits are loaded evenly.

    At every server a route continues over the circuit that carries least so far, of those that lead closer to its
    destination. Parallel circuits share what they carry.
    """

    def __init__(self, servers: int, circuits: Iterable[Circuit]) -> None:
        parallel = Counter(circuits)
        tails, heads = np.array(sorted(parallel), dtype=np.int32).reshape(-1, 2).T
        copies = np.array([parallel[ends] for ends in sorted(parallel)], dtype=np.int32)
        self._routes = _native.BalancedRoutes(servers, tails, heads, copies)
        self._hops = self._routes.hops()

    def add(self, source: int, destination: int, size: float, count: int) -> tuple[Route, ...]:
        """The routes of a pair that sends `size` bytes: `count` of equal length, or fewer where they repeat.

        Raises Unreachable.
        """
        return self.add_all([source], [destination], [size], count)[0]

    def add_all(
        self, sources: npt.ArrayLike, destinations: npt.ArrayLike, sizes: npt.ArrayLike, count: int
    ) -> list[tuple[Route, ...]]:
        """`add` for one pair after the other."""
        source, destination = np.asarray(sources, dtype=np.int32), np.asarray(destinations, dtype=np.int32)
        missing = np.flatnonzero(self._hops[source, destination] < 0)
        if missing.size:
            first = missing[0]
            raise Unreachable(f"no circuits lead from server {source[first]} to server {destination[first]}")
        return self._routes.add_all(source, destination, np.asarray(sizes, dtype=np.float64), count)


def bandwidth_tax(transfers: Matrix, routes: Routes, direct: float = 0.0) -> float:
    """The ratio of bytes carried by circuits to bytes sent by servers: 1 when all routes are direct (section 5.4).

    `direct` are further bytes, which are not relayed. The taxes of Figure 13 count the all-reduce, whose rings are
    circuits: with r the ratio of all-to-all to all-reduce bytes and h the mean hops, they are (1 + h r) / (1 + r).

    Raises KeyError when a transfer has no route.
    """
    wanted = carried = direct
    for source, destination in zip(*transfers.nonzero(), strict=True):
        pair = (int(source), int(destination))
        ways = routes[pair]
        size = float(transfers[pair])
        wanted += size
        carried += size * sum(len(way) - 1 for way in ways) / len(ways)
    return carried / wanted if wanted else 1.0
