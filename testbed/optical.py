# SPDX-License-Identifier: Apache-2.0
"""Jobs on a direct-connect fabric: which circuits are set before a run, and which host relays for whom. Pure.

Every job gets rings of its own among its hosts, one per NIC, and so a shard of the optical switches (TopoOpt, appendix
C). Its ranks then reach each other by CoinChangeMod over those rings; hosts of another job are out of reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from netmodel import Circuits, Path, PortRef, Topology, joined
from sdn.topoopt import coin_change, coin_route, ring_circuits
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.relays import RelayPlan, Way, plan_relays

Shards = tuple[tuple[str, ...], ...]
"""The hosts of each job, by rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """The state of a fabric during a run."""

    circuits: Circuits
    plan: RelayPlan

    def nics(self, source: str, destination: str) -> tuple[int, int]:
        """Indices of the NICs by which data go from one host to another: the sender's and the receiver's."""
        connection = self.plan.connections[source, destination]
        return connection.local.port - 1, connection.remote.port - 1

    def path(self, topology: Topology, source: PortRef, destination: PortRef) -> Path:
        """The ports that packets between two NICs leave by, those of optical switches too. Raises KeyError."""
        return path_along(topology, self.circuits, self.plan.ways[source, destination])


def path_along(topology: Topology, circuits: Circuits, way: Way) -> Path:
    """The ports, of hosts and of optical switches, that packets leave by along a way."""
    path: list[PortRef] = []
    for port in way.ports:
        path.append(port)
        at = topology.peer(port)
        while not topology.has_host(at.node):
            path.append(PortRef(at.node, circuits[at.node][at.port]))
            at = topology.peer(path[-1])
    return tuple(path)


@lru_cache(maxsize=64)
def setting(topology: Topology, shards: Shards, strides: tuple[int, ...]) -> Setting:
    """Rings "+stride", the k-th by NIC k, for every job, and the relays that follow.

    With look-ahead, hosts are turned to the first bank. Raises ValueError with a sentence when a stride makes no ring
    of a job's hosts, when there are more strides than NICs, or when hosts do not reach each other.
    """
    circuits = joined(
        *(patch(topology, hosts, [ring_circuits(range(len(hosts)), stride) for stride in strides]) for hosts in shards)
    )
    if any(switch.name.startswith("flip") for switch in topology.switches):
        circuits = joined(circuits, *(flip(topology, hosts, 0) for hosts in shards))
    plans = [plan_relays(topology, circuits, hosts, routes=_routes(hosts, strides)) for hosts in shards]
    return Setting(
        circuits,
        RelayPlan(
            {pair: connection for plan in plans for pair, connection in plan.connections.items()},
            {ends: way for plan in plans for ends, way in plan.ways.items()},
        ),
    )


def _routes(hosts: Sequence[str], strides: Sequence[int]) -> dict[tuple[str, str], list[list[str]]]:
    sums = coin_change(len(hosts), strides)
    return {
        (hosts[a], hosts[b]): [[hosts[at] for at in coin_route(range(len(hosts)), sums, a, b)]]
        for a, b in permutations(range(len(hosts)), 2)
    }
