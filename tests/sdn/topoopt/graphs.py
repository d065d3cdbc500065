# SPDX-License-Identifier: Apache-2.0
"""Direct-connect topologies as graphs."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

from sdn.topoopt import Circuit


def digraph(servers: int, circuits: Iterable[Circuit]) -> nx.DiGraph[int]:
    """The graph of servers, with an edge for one or more circuits from one to another."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(servers))
    graph.add_edges_from(circuits)
    return graph
