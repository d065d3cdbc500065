# SPDX-License-Identifier: Apache-2.0
"""`optimal` for pairs of hosts: every pair has uplinks and downlinks of its own, if possible."""

from collections.abc import Iterable, Sequence

from netmodel import Path, Topology
from sdn.planners.optimal import optimal
from sdn.planners.planner import Planner
from sdn.planners.pods.optimal import optimal as optimal_in_pods

Pair = tuple[str, str]

_PLANNER = Planner(optimal, optimal_in_pods)


def check_served(topology: Topology, pairs: Iterable[Pair], nic: int = 0) -> None:
    """Raises ValueError, which says why, unless `assign` has a path for each of these pairs of hosts."""
    ends = list(dict.fromkeys(pairs))
    if not ends:
        return
    cables = _PLANNER.cabling(topology)
    if cables.joined.all():
        return
    for src, dst in ends:
        near, far = (cables.fabric.nic_tor[cables.nic(host, nic)] for host in (src, dst))
        if near != far and not cables.joined[near, far]:
            raise _apart(src, dst)


def assign(topology: Topology, pairs: Sequence[Pair], nic: int = 0) -> dict[Pair, Path]:
    """A path for every pair (source host, destination host), minimising the most loaded link between switches.

    Pairs on one leaf get their only path. Paths join the hosts' NICs of index `nic` and are equal-cost paths of
    `netmodel.equal_cost_paths`. The result is deterministic and depends on the order of `pairs`.

    Raises KeyError for an unknown host or one whose NIC has no link; ValueError for a pair that occurs twice,
    joins a host to itself, or has no spine between its leaves, and for a topology that is neither a two-level
    leaf-spine nor a Clos of three tiers.
    """
    seen: set[Pair] = set()
    for pair in pairs:
        if pair in seen:
            raise ValueError(f"the pair {pair[0]!r} to {pair[1]!r} occurs twice")
        if pair[0] == pair[1]:
            raise ValueError(f"a pair joins host {pair[0]!r} to itself")
        seen.add(pair)
    cables = _PLANNER.cabling(topology)
    paths: dict[Pair, Path] = {}
    for pair, path in zip(pairs, _PLANNER.paths(cables, cables.commodities(pairs, nic=nic)), strict=True):
        if path is None:
            raise _apart(*pair)
        paths[pair] = path
    return paths


def _apart(src: str, dst: str) -> ValueError:
    return ValueError(f"no spine has links to the leaves of both {src!r} and {dst!r}")
