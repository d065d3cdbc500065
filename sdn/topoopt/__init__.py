# SPDX-License-Identifier: Apache-2.0
"""TopoOpt's algorithms: optical circuits between servers, and routes over servers that relay packets. Pure.

The paper is W. Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for Distributed
Training Jobs", NSDI 2023.
"""

from sdn.topoopt.demand import AllReduceGroup, Demand, data_parallel, dlrm
from sdn.topoopt.finder import DirectTopology, Layer, Ring, find_topology, split_degree
from sdn.topoopt.least_load import LeastLoad, least_load, least_ring_load
from sdn.topoopt.permutations import (
    Circuit,
    double_binary_tree,
    ring,
    ring_circuits,
    select_permutations,
    shortest_permutations,
    totient_perms,
)
from sdn.topoopt.reconfigure import on_interfaces, reconfigure, two_edge_replacement, utility
from sdn.topoopt.routing import (
    BalancedRoutes,
    PathLengths,
    Route,
    Unreachable,
    bandwidth_tax,
    coin_change,
    coin_route,
    ring_path_lengths,
)

__all__ = [
    "AllReduceGroup",
    "BalancedRoutes",
    "Circuit",
    "Demand",
    "DirectTopology",
    "Layer",
    "LeastLoad",
    "PathLengths",
    "Ring",
    "Route",
    "Unreachable",
    "bandwidth_tax",
    "coin_change",
    "coin_route",
    "data_parallel",
    "dlrm",
    "double_binary_tree",
    "find_topology",
    "least_load",
    "least_ring_load",
    "on_interfaces",
    "reconfigure",
    "ring",
    "ring_circuits",
    "ring_path_lengths",
    "select_permutations",
    "shortest_permutations",
    "split_degree",
    "totient_perms",
    "two_edge_replacement",
    "utility",
]
