# SPDX-License-Identifier: Apache-2.0
"""OCS-reconfig (TopoOpt, Algorithm 5): circuits for the demand that is left, with all servers reachable.

TopoOpt is compared with this scheme: a fabric that measures every 50 ms and is reconfigured in 10 ms. Circuits are
one-way, as in Algorithm 5: a server has `degree` transmitters and as many receivers.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace

import numpy as np

from sdn._native import colour
from sdn.topoopt.demand import Matrix
from sdn.topoopt.finder import Layer
from sdn.topoopt.permutations import Circuit


def discount(links: int) -> float:
    """The discount of `links` parallel circuits: 1/2 + 1/4 + .. (equation 2)."""
    return 1 - 0.5**links


def utility(circuits: Iterable[Circuit], demand: Matrix) -> float:
    """The sum over joined pairs of demand times the discount of their parallel circuits (equation 1)."""
    return float(sum(demand[pair] * discount(links) for pair, links in Counter(circuits).items()))


def reconfigure(demand: Matrix, degree: int, *, diminish: float = 0.5, connected: bool = True) -> tuple[Circuit, ...]:
    """Circuits, each for the pair with the highest demand left, which is then multiplied by `diminish`.

    With `diminish` 1 the demand of a pair does not depend on its circuits (appendix F). Interfaces are used as long as
    two servers have one: pairs without demand come last, in numerical order. With `connected`, circuits are then
    exchanged until every server reaches every other, which forwarding by hosts requires.

    Raises ValueError for an impossible degree.
    """
    servers = len(demand)
    if degree < 1 or servers < 2:
        raise ValueError(f"circuits need two servers or more and one interface or more, not {servers} and {degree}")
    transmitters, receivers = [degree] * servers, [degree] * servers
    circuits: list[Circuit] = []
    wanted = demand.astype(np.float64)
    np.fill_diagonal(wanted, 0.0)
    pairs = np.flatnonzero(wanted)
    left = list(zip((-wanted.flat[pairs]).tolist(), pairs.tolist(), strict=True))
    heapify(left)  # the highest demand first, of equal ones the first pair
    while left:
        size, pair = left[0]
        source, destination = divmod(pair, servers)
        if not (transmitters[source] and receivers[destination]):
            heappop(left)
            continue
        circuits.append((source, destination))
        transmitters[source] -= 1
        receivers[destination] -= 1
        heapreplace(left, (size * diminish, pair))
    for source in (source for source in range(servers) if transmitters[source]):
        for destination in (other for other in range(servers) if receivers[other] and other != source):
            count = min(transmitters[source], receivers[destination])
            circuits += count * [(source, destination)]
            transmitters[source] -= count
            receivers[destination] -= count
    return two_edge_replacement(servers, circuits, demand) if connected else tuple(sorted(circuits))


def two_edge_replacement(servers: int, circuits: Sequence[Circuit], demand: Matrix) -> tuple[Circuit, ...]:
    """Connects all servers: while there are separate components, exchanges a circuit of each of two.

    a -> b and c -> d in different components become a -> d and c -> b, where that costs the least utility. Every server
    keeps its numbers of used transmitters and receivers. A server without a circuit is inserted into one (a -> b
    becomes a -> v and v -> b). Every server must have as many used transmitters as receivers, as after `reconfigure`;
    then joined components are joined both ways. The paper adopts this step from OWAN.
    """
    import networkx as nx  # here, because every load of a spec would wait for it

    kept = Counter(circuits)

    def worth(pair: Circuit, links: int) -> float:
        return float(demand[pair]) * (discount(links + 1) - discount(links))

    while True:
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(servers))
        graph.add_edges_from(kept)
        parts = list(nx.connected_components(graph))
        if len(parts) == 1 or not kept:
            return tuple(sorted(kept.elements()))
        part = {server: number for number, servers_of in enumerate(parts) for server in servers_of}
        lonely = [server for server in range(servers) if not graph.degree(server)]
        if lonely:
            v = lonely[0]
            _, old, fresh = min(
                (worth((a, b), kept[a, b] - 1) - worth((a, v), 0) - worth((v, b), 0), [(a, b)], [(a, v), (v, b)])
                for a, b in kept
            )
        else:
            _, old, fresh = min(
                (
                    worth((a, b), kept[a, b] - 1)
                    + worth((c, d), kept[c, d] - 1)
                    - worth((a, d), kept[a, d])
                    - worth((c, b), kept[c, b]),
                    [(a, b), (c, d)],
                    [(a, d), (c, b)],
                )
                for a, b in kept
                for c, d in kept
                if part[a] < part[c]
            )
        kept.subtract(old)
        kept.update(fresh)
        kept = +kept


def on_interfaces(servers: int, circuits: Sequence[Circuit], degree: int) -> tuple[Layer, ...]:
    """Assigns circuits to `degree` interfaces, each with one transmitter and one receiver (König's theorem).

    Raises ValueError when a server needs more interfaces.
    """
    for end, what in ((0, "transmitters"), (1, "receivers")):
        for server, count in Counter(circuit[end] for circuit in circuits).items():
            if count > degree:
                raise ValueError(f"server {server} needs {count} {what}, but has {degree} interfaces")
    ends = np.array(circuits, dtype=np.int32).reshape(-1, 2)
    colours = colour(servers, np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1]), degree)
    return tuple(
        tuple(sorted(circuit for circuit, own in zip(circuits, colours.tolist(), strict=True) if own == interface))
        for interface in range(degree)
    )
