# SPDX-License-Identifier: Apache-2.0
"""`optimal` for pairs of hosts: every pair has uplinks and downlinks of its own, if possible."""

from collections.abc import Sequence

from netmodel import Path, Topology
from sdn.planners.cabling import cabling
from sdn.planners.optimal import optimal

Pair = tuple[str, str]


def assign(topology: Topology, pairs: Sequence[Pair]) -> dict[Pair, Path]:
    """A path for every pair (source host, destination host), minimising the maximum load of leaf uplinks and downlinks.

    Pairs on one leaf get their only path. Paths join the hosts' first NICs and are equal-cost paths of
    `netmodel.equal_cost_paths`. The result is deterministic and depends on the order of `pairs`.

    Raises KeyError for an unknown host or one whose first NIC has no link; ValueError for a pair that occurs twice,
    joins a host to itself, or has no spine between its leaves, and for a topology that is not a two-level leaf-spine.
    """
    seen: set[Pair] = set()
    for pair in pairs:
        if pair in seen:
            raise ValueError(f"the pair {pair[0]!r} to {pair[1]!r} occurs twice")
        if pair[0] == pair[1]:
            raise ValueError(f"a pair joins host {pair[0]!r} to itself")
        seen.add(pair)
    fabric = cabling(topology)
    plan = optimal(fabric.fabric, fabric.commodities(pairs))
    paths: dict[Pair, Path] = {}
    for i, pair in enumerate(pairs):
        path = fabric.path(plan, i)
        if path is None:
            raise ValueError(f"no spine has links to the leaves of both {pair[0]!r} and {pair[1]!r}")
        paths[pair] = path
    return paths
