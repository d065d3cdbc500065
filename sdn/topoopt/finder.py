# SPDX-License-Identifier: Apache-2.0
"""TopologyFinder (TopoOpt, Algorithm 1): from a job's demand to circuits and routes.

Interface j of every server is connected to optical switch j, and a switch joins any transmitter to any receiver. So the
result is a layer per interface, a one-to-one mapping of transmitters to receivers. A layer is a ring "+p" of
all-reduce, which uses the transmitter and the receiver of one interface of each member, or a matching for model
parallelism, whose pairs are joined both ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from sdn._native import heaviest_matching
from sdn.topoopt.demand import AllReduceGroup, Demand, Matrix
from sdn.topoopt.permutations import Circuit, ring_circuits, select_permutations, totient_perms
from sdn.topoopt.routing import BalancedRoutes, Route, Routes, coin_change, coin_routes

Layer = tuple[Circuit, ...]
"""The circuits of one interface's optical switch: a server transmits to at most one, and receives from at most one."""
_WEIGHT_BITS = 52
"""Bits of the greatest weight of a matching."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of a group's all-reduce; `stride` is in positions of the group."""

    group: int
    stride: int
    interface: int


@dataclass(frozen=True, slots=True)
class DirectTopology:
    """The result of TopologyFinder. `layers[j]` has the circuits between the servers' interfaces j.

    `routes` has an entry for every ordered pair of servers that are in one all-reduce group or exchange anything.
    """

    servers: int
    layers: tuple[Layer, ...]
    rings: tuple[Ring, ...]
    routes: Routes

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """All circuits, with parallel ones repeated."""
        return tuple(circuit for layer in self.layers for circuit in layer)


def split_degree(degree: int, demand: Demand) -> tuple[int, int]:
    """Numbers of interfaces for all-reduce, at least one, and for model parallelism (Algorithm 1, line 2)."""
    reduced, parallel = sum(group.sent_bytes for group in demand.groups), float(demand.mp.sum())
    share = reduced / (reduced + parallel) if reduced + parallel else 1.0
    # Rounding of the share must not cost an interface.
    for_reduce = max(1, ceil(degree * share - 1e-9))
    return for_reduce, degree - for_reduce


def find_topology(demand: Demand, degree: int, *, mp_routes: int = 2, primes_only: bool = False) -> DirectTopology:
    """The topology and routes for a job whose servers have `degree` interfaces each.

    Pairs with model-parallel transfers use up to `mp_routes` of their shortest routes evenly, chosen so that circuits
    are loaded evenly; the paper takes any k shortest ones. Other pairs of a group use CoinChangeMod. There are three
    more differences from Algorithm 1. Groups that share no server share interfaces; otherwise each server would leave
    some unused. When no group has all servers, a ring of all uses the first interface, so that every server is
    reachable. A group with fewer rings than interfaces repeats them, which makes parallel circuits; so a degree may
    exceed the number of other servers.

    Raises ValueError for an impossible degree, and Unreachable when a group has no routes.
    """
    if degree < 1:
        raise ValueError(f"a server needs one interface or more, not {degree}")
    groups = demand.groups
    everybody = tuple(range(demand.servers))
    if not any(set(group.members) == set(everybody) for group in groups):
        groups = (AllReduceGroup(everybody, 0.0), *groups)
    for_reduce, _ = split_degree(degree, demand)
    layers, rings = _reduce_layers(groups, for_reduce, primes_only)
    layers += _matching_layers(demand.mp, degree - len(layers))
    circuits = [circuit for layer in layers for circuit in layer]
    return DirectTopology(
        demand.servers,
        tuple(layers),
        tuple(rings),
        _routes(demand, groups, rings, circuits, mp_routes),
    )


def _reduce_layers(groups: Sequence[AllReduceGroup], degree: int, primes_only: bool) -> tuple[list[Layer], list[Ring]]:
    """Rings for every group, in proportion to its share of the traffic (Algorithm 1, lines 5 to 11)."""
    layers: list[Layer] = []
    rings: list[Ring] = []
    packs = _disjoint_packs(groups)
    unserved = sum(groups[g].sent_bytes for pack in packs for g in pack)
    for pack in packs:
        left = degree - len(layers)
        if left == 0:
            break
        sent = sum(groups[g].sent_bytes for g in pack)
        interfaces = min(left, max(1, ceil(left * sent / unserved - 1e-9))) if unserved else left
        unserved -= sent
        strides = {
            g: select_permutations(len(members), interfaces, totient_perms(len(members), primes_only=primes_only))
            for g in pack
            for members in (groups[g].members,)
        }
        for k in range(interfaces):
            here = [Ring(g, chosen[k % len(chosen)], len(layers)) for g, chosen in strides.items()]
            layers.append(tuple(sorted(c for r in here for c in ring_circuits(groups[r.group].members, r.stride))))
            rings += here
    return layers, rings


def _disjoint_packs(groups: Sequence[AllReduceGroup]) -> list[list[int]]:
    """Sets of groups without a common server: first groups of all servers, then in descending order of traffic."""
    most = max(len(group.members) for group in groups)
    order = sorted(range(len(groups)), key=lambda g: (len(groups[g].members) < most, -groups[g].sent_bytes, g))
    packs: list[list[int]] = []
    for g in order:
        for pack in packs:
            if not any(set(groups[g].members) & set(groups[other].members) for other in pack):
                pack.append(g)
                break
        else:
            packs.append([g])
    return packs


def _matching_layers(mp: Matrix, degree: int) -> list[Layer]:
    """Matchings of the pairs with most traffic; a matched pair counts half in the next one (lines 12 to 17).

    A matched pair is joined both ways, so its weight is its traffic both ways. Servers that a matching of greatest
    weight leaves have nothing to send to each other; they are joined in pairs that change from layer to layer. Of an
    odd number of them, one that was left dark least often so far is left dark.
    """
    both = mp + mp.T
    finest = 2.0 ** (_WEIGHT_BITS - np.frexp(both.max())[1])  # weights are whole numbers
    layers: list[Layer] = []
    times_dark = [0] * len(mp)
    for number in range(degree):
        partners = heaviest_matching(np.rint(both * finest).astype(np.int64)).tolist()
        pairs = [(a, b) for a, b in enumerate(partners) if a < b]
        for a, b in pairs:
            both[a, b] = both[b, a] = both[a, b] / 2
        left = sorted(set(range(len(mp))).difference(*pairs))
        if len(left) % 2:
            dark = min(reversed(left), key=times_dark.__getitem__)
            times_dark[dark] += 1
            left.remove(dark)
        half = len(left) // 2
        spare = [(left[i], left[half + (i + number) % half]) for i in range(half)]
        layers.append(tuple(sorted(circuit for a, b in (*pairs, *spare) for circuit in ((a, b), (b, a)))))
    return layers


def _routes(
    demand: Demand,
    groups: Sequence[AllReduceGroup],
    rings: Sequence[Ring],
    circuits: Sequence[Circuit],
    mp_routes: int,
) -> dict[Circuit, tuple[Route, ...]]:
    """CoinChangeMod on the rings, then shortest routes on everything for model-parallel pairs (lines 19 and 20).

    A pair in several groups takes the shortest of their routes, of equally short ones that of the smallest group.
    """
    routes: dict[Circuit, tuple[Route, ...]] = {}
    for g, group in sorted(enumerate(groups), key=lambda numbered: len(numbered[1].members)):
        coins = [r.stride for r in rings if r.group == g]
        if not coins:
            continue  # no interface was left: members reach each other as all servers do
        for route in coin_routes(group.members, coin_change(len(group.members), coins)):
            known = routes.get((route[0], route[-1]))
            if known is None or len(route) < len(known[0]):
                routes[route[0], route[-1]] = (route,)
    sources, destinations = demand.mp.nonzero()
    balanced = BalancedRoutes(demand.servers, circuits)
    found = balanced.add_all(sources, destinations, demand.mp[sources, destinations], mp_routes)
    routes |= zip(zip(sources.tolist(), destinations.tolist(), strict=True), found, strict=True)
    return routes
