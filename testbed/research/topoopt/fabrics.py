# SPDX-License-Identifier: Apache-2.0
"""Fabrics between servers as links and one path for each pair: circuits, switches, expanders (TopoOpt, section 5.1)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Self

import networkx as nx
import numpy as np
import numpy.typing as npt

from sdn.topoopt import BalancedRoutes, Circuit, Demand, Route, find_topology, ring, ring_circuits

Floats = npt.NDArray[np.float64]
Paths = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """`paths[servers * source + destination]` has the links from source to destination, -1 after the last one."""

    name: str
    servers: int
    links_bps: Floats
    paths: Paths
    rings: Mapping[tuple[int, ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """By the members of a group: the orders of the rings among which its all-reduce is divided evenly."""

    def orders(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Orders of the rings of a group, whose members are ascending; one ring in that order where none is set up."""
        return self.rings.get(members, (members,))

    def load(self, sizes: npt.NDArray[np.float64]) -> Floats:
        """The load of each link, in the unit of `sizes`: by source * servers + destination."""
        pairs = np.flatnonzero(sizes)
        crossed = self.paths[pairs]
        weights = np.repeat(sizes[pairs], crossed.shape[1])
        return np.asarray(np.bincount(crossed.ravel() + 1, weights, self.links_bps.size + 1)[1:], dtype=np.float64)

    def route(self, source: int, destination: int) -> list[int]:
        """The links from one server to another."""
        links = self.paths[self.servers * source + destination]
        return [int(link) for link in links if link >= 0]

    @classmethod
    def of_circuits(
        cls,
        name: str,
        servers: int,
        circuits: Sequence[Circuit],
        rate_bps: float,
        routes: Mapping[Circuit, Sequence[Route]] | None = None,
        rings: Mapping[tuple[int, ...], tuple[tuple[int, ...], ...]] | None = None,
    ) -> Self:
        """Servers that relay, over circuits of `rate_bps`; parallel circuits are one link.

        The first route of a pair is used. Pairs without one get a shortest route. Raises Unreachable.
        """
        parallel = Counter(circuits)
        number = {circuit: link for link, circuit in enumerate(parallel)}
        known = routes or {}
        missing = [pair for pair in permutations(range(servers), 2) if pair not in known]
        sources, destinations = np.array(missing, dtype=np.int32).reshape(-1, 2).T
        found = BalancedRoutes(servers, circuits).add_all(sources, destinations, np.ones(len(missing)), 1)
        ways = {**known, **dict(zip(missing, found, strict=True))}
        rows = [[number[hop] for hop in pairwise(ways[pair][0])] if pair in ways else [] for pair in _pairs(servers)]
        return cls(name, servers, rate_bps * np.array(list(parallel.values()), np.float64), _padded(rows), rings or {})


def direct(demand: Demand, degree: int, rate_bps: float) -> Fabric:
    """TopoOpt: the circuits that TopologyFinder finds for a demand, `degree` of `rate_bps` for each server."""
    found = find_topology(demand, degree, mp_routes=1)
    groups = [group.members for group in demand.groups]
    everybody = tuple(range(demand.servers))
    if not any(set(members) == set(everybody) for members in groups):
        groups.insert(0, everybody)
    rings: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}
    for found_ring in found.rings:
        members = groups[found_ring.group]
        rings[members] = (*rings.get(members, ()), ring(members, found_ring.stride))
    routes = {(int(a), int(b)): found.routes[int(a), int(b)] for a, b in zip(*demand.mp.nonzero(), strict=True)}
    return Fabric.of_circuits("TopoOpt", demand.servers, found.circuits, rate_bps, routes, rings)


def direct_rings(servers: int, strides: Sequence[int], rate_bps: float) -> Fabric:
    """Circuits of `rate_bps` along the rings of these strides, and shortest routes over them.

    An all-reduce of all servers is divided among the rings. Raises ValueError for a stride that is not coprime with the
    number of servers.
    """
    everybody = tuple(range(servers))
    circuits = [circuit for stride in strides for circuit in ring_circuits(everybody, stride)]
    rings = {everybody: tuple(ring(everybody, stride) for stride in strides)}
    return Fabric.of_circuits("rings", servers, circuits, rate_bps, rings=rings)


def switch(servers: int, rate_bps: float, name: str = "Ideal Switch") -> Fabric:
    """A switch, or a fat-tree of full bisection without collisions: only the servers' own links are ever busy."""
    rows = [[source, servers + destination] if source != destination else [] for source, destination in _pairs(servers)]
    return Fabric(name, servers, np.full(2 * servers, rate_bps), _padded(rows))


def oversubscribed(servers: int, rate_bps: float, rack: int = 16, ratio: float = 2.0) -> Fabric:
    """Racks of `rack` consecutive servers, whose links of `rate_bps` have 1 / `ratio` of their rate in uplinks.

    The last rack may have fewer servers, and as much less in uplinks.
    """
    racks = -(-servers // rack)
    in_rack = np.minimum(rack, servers - rack * np.arange(racks))
    rows = []
    for source, destination in _pairs(servers):
        up, down = source // rack, destination // rack
        between = [] if up == down else [2 * servers + up, 2 * servers + racks + down]
        rows.append([source, *between, servers + destination] if source != destination else [])
    rates = np.concatenate([np.full(2 * servers, rate_bps), np.tile(in_rack * rate_bps / ratio, 2)])
    return Fabric("Oversub. Fat-tree", servers, rates, _padded(rows))


def expander(servers: int, degree: int, rate_bps: float, seed: int = 1) -> Fabric:
    """A random regular graph with circuits both ways (A. Singla et al., "Jellyfish", NSDI 2012). Shortest routes.

    Raises ValueError where there is no such graph.
    """
    if not 2 <= degree < servers or degree * servers % 2:
        raise ValueError(
            f"no expander joins {servers} servers with {degree} circuits each: take a degree of 2 or more, below the "
            "number of servers, and an even one where that number is odd"
        )
    for attempt in range(100):
        graph = nx.random_regular_graph(degree, servers, seed=seed + 1000 * attempt)
        if nx.is_connected(graph):
            break
    circuits = [way for a, b in sorted(graph.edges) for way in ((a, b), (b, a))]
    return Fabric.of_circuits("Expander", servers, circuits, rate_bps)


def _pairs(servers: int) -> list[tuple[int, int]]:
    return [(source, destination) for source in range(servers) for destination in range(servers)]


def _padded(rows: Sequence[Sequence[int]]) -> Paths:
    paths = np.full((len(rows), max(1, *map(len, rows))), -1, dtype=np.int32)
    for row, links in zip(paths, rows, strict=True):
        row[: len(links)] = links
    return paths
