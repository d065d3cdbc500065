# SPDX-License-Identifier: Apache-2.0
"""Jobs on a direct-connect fabric: which circuits are set before a run, and which host relays for whom. Pure.

Every job gets circuits of its own among its hosts, a layer per NIC, and so a shard of the optical switches (TopoOpt,
appendix C): rings that are given, or what TopologyFinder finds. Hosts of another job are out of reach.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations
from math import gcd
from typing import NamedTuple

from netmodel import Circuits, Link, Path, PortRef, Topology, joined, panel_of
from sdn.topoopt import Demand, Layer, Route, coin_change, coin_route, find_topology, ring_circuits
from sdn.topoopt.healing import around, arrivals, loads_of, swapped
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.relays import Connection, RelayPlan, Way, plan_relays

Shards = tuple[tuple[str, ...], ...]
"""The hosts of each job, by rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The state of a fabric during a run."""

    circuits: Circuits
    plan: RelayPlan
    sent: Mapping[tuple[PortRef, PortRef], float] = field(default_factory=dict)
    """Bytes by the NICs whose addresses packets have, where it is known what jobs send."""

    def connections(self, source: str, destination: str) -> tuple[Connection, ...]:
        """The routes of data from one host to another. Raises KeyError."""
        return self.plan.connections[source, destination]

    def nics(self, source: str, destination: str, route: int = 0) -> tuple[int, int]:
        """Indices of the NICs by which data go from one host to another: the sender's and the receiver's."""
        connection = self.plan.connections[source, destination][route]
        return connection.local.port - 1, connection.remote.port - 1

    def path(self, topology: Topology, source: PortRef, destination: PortRef) -> Path:
        """The egress ports of packets between two NICs, including those of optical switches. Raises KeyError."""
        return path_along(topology, self.circuits, self.plan.ways[source, destination])


def healed(
    topology: Topology, setting: Setting, dead: frozenset[Link], swaps: Sequence[tuple[PortRef, frozenset[Link]]]
) -> Setting:
    """The setting of a run in which these cables are dead and the panels have swapped these ports, in this order.

    Connections are as before. Their packets take the ways that are left; those of NICs without one are missing. Each
    swap comes with the cables that were dead when it was made: later cuts and mends do not change its circuits. It
    leaves circuits as they are where no other NIC could take the place. Raises KeyError for a port without a NIC.
    """
    circuits, loads = setting.circuits, loads_of(setting.plan.ways, setting.sent)
    for port, dead_then in swaps:
        with suppress(ValueError):
            circuits = swapped(topology, circuits, nic_at(topology, port), dead_then, loads)
    ways = around(setting.plan.ways, arrivals(topology, circuits, dead), setting.sent)
    return replace(setting, circuits=circuits, plan=RelayPlan(setting.plan.connections, ways))


def nic_at(topology: Topology, port: PortRef) -> PortRef:
    """The NIC that the first bank's panels join by this port of an optical switch. Raises KeyError."""
    for host in topology.hosts:
        for nic in range(len(host.nics)):
            if panel_of(topology, host.name, nic) == port:
                return PortRef(host.name, nic + 1)
    raise KeyError(f"port {port} is not that of a NIC on an optical switch")


def path_along(topology: Topology, circuits: Circuits, way: Way) -> Path:
    """The egress ports of hosts and optical switches along a way."""
    path: list[PortRef] = []
    for port in way.ports:
        path.append(port)
        at = topology.peer(port)
        while not topology.has_host(at.node):
            path.append(PortRef(at.node, circuits[at.node][at.port]))
            at = topology.peer(path[-1])
    return tuple(path)


@dataclass(frozen=True, slots=True)
class Layout:
    """The circuits of one job by NIC, and its preferred routes, both between ranks.

    `sent` has the bytes of pairs of ranks: they are shared out among several routes if these are `shared`, and ways
    around a dead cable take what carries least of them.
    """

    layers: tuple[Layer, ...]
    routes: tuple[Route, ...]
    sent: tuple[tuple[tuple[int, int], int], ...] = ()
    shared: bool = False


class Within(NamedTuple):
    """Rings "+stride" in every block of so many consecutive ranks."""

    stride: int
    ranks: int


def rings(ranks: int, strides: Sequence[int | Within]) -> Layout:
    """Rings "+stride", the k-th by NIC k, and CoinChangeMod on them.

    A stride that has a divisor in common with the number of ranks gives several rings, which other strides must join.
    Within a block data go along the block's own rings where these lead. Raises ValueError if some ranks are not joined,
    and for a stride that leads nowhere.
    """
    whole = [stride for stride in strides if not isinstance(stride, Within)]
    blocks: dict[int, list[int]] = {}
    for stride in strides:
        if isinstance(stride, Within):
            if not 0 < stride.ranks <= ranks or ranks % stride.ranks:
                raise ValueError(f"{ranks} ranks do not divide into blocks of {stride.ranks}")
            blocks.setdefault(stride.ranks, []).append(stride.stride)
    layers = tuple(_layer(ranks, stride, len(strides)) for stride in strides)
    sums = coin_change(ranks, whole)
    routes = {(a, b): coin_route(range(ranks), sums, a, b) for a, b in permutations(range(ranks), 2)}
    for size, own in blocks.items():
        step = gcd(size, *own)  # rings reach every step-th rank
        inner = coin_change(size // step, [stride // step for stride in own])
        for first in range(ranks // size * step):
            members = range(first // step * size + first % step, (first // step + 1) * size, step)
            for a, b in permutations(range(len(members)), 2):
                routes[members[a], members[b]] = coin_route(members, inner, a, b)
    return Layout(layers, tuple(routes.values()))


def _layer(ranks: int, given: int | Within, layers: int) -> Layer:
    """The circuits of one NIC of each rank. The only layer must be one ring."""
    stride, size = (given.stride, given.ranks) if isinstance(given, Within) else (given, ranks)
    if not stride % size or layers == 1:
        return ring_circuits(range(size), stride)
    return tuple((rank, rank // size * size + (rank + stride) % size) for rank in range(ranks))


def found(demand: Demand, degree: int) -> Layout:
    """TopologyFinder's layout for a job on hosts with `degree` NICs; the first of several routes. Raises ValueError."""
    topology = find_topology(demand, degree)
    return Layout(topology.layers, tuple(routes[0] for _, routes in sorted(topology.routes.items())))


@lru_cache(maxsize=64)
def setting(topology: Topology, shards: Shards, layouts: tuple[Layout, ...], *, same_nic: bool = False) -> Setting:
    """The circuits of every job, and the relays that follow; `same_nic` is that of `plan_relays`.

    With look-ahead, hosts are turned to the first bank. Raises ValueError with a sentence when there are more layers
    than NICs, or when hosts do not reach each other.
    """
    jobs = list(zip(shards, layouts, strict=True))
    circuits = joined(*(patch(topology, hosts, layout.layers) for hosts, layout in jobs))
    if any(switch.name.startswith("flip") for switch in topology.switches):
        circuits = joined(circuits, *(flip(topology, hosts, 0) for hosts in shards))
    plans = [
        plan_relays(
            topology,
            circuits,
            hosts,
            routes=_named(hosts, layout),
            sent={(hosts[a], hosts[b]): size for (a, b), size in layout.sent if layout.shared},
            same_nic=same_nic,
        )
        for hosts, layout in jobs
    ]
    sent = {
        connection.there.ends: size * connection.share
        for (hosts, layout), plan in zip(jobs, plans, strict=True)
        for (a, b), size in layout.sent
        for connection in plan.connections[hosts[a], hosts[b]]
    }
    return Setting(
        circuits,
        RelayPlan(
            {pair: several for plan in plans for pair, several in plan.connections.items()},
            {ends: way for plan in plans for ends, way in plan.ways.items()},
        ),
        sent,
    )


def _named(hosts: Sequence[str], layout: Layout) -> dict[tuple[str, str], list[list[str]]]:
    """The routes of a layout as host names, by their end hosts."""
    named = [[hosts[rank] for rank in route] for route in layout.routes]
    return {(route[0], route[-1]): [route] for route in named}
