# SPDX-License-Identifier: Apache-2.0
"""`optimal` for pairs of hosts: every pair has uplinks and downlinks of its own, if possible."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from netmodel import Path, Topology
from sdn._native import ListedPaths
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


def assign(
    topology: Topology, pairs: Sequence[Pair], nic: int = 0, within: Callable[[str, str], Sequence[Path]] | None = None
) -> dict[Pair, Path]:
    """A path for every pair (source host, destination host), minimising the most loaded link between switches.

    `within` gives the paths that a pair may take, for example because source ports reach no others. Where a planned
    path is not among them, all pairs get one of theirs, by single moves off the worst link. A pair that may take none
    keeps its planned path.

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
    return paths if within is None else _listed(topology, paths, within)


def _listed(
    topology: Topology, planned: dict[Pair, Path], within: Callable[[str, str], Sequence[Path]]
) -> dict[Pair, Path]:
    """The planned paths if each is within its pair's list; otherwise one of its list for each pair."""
    lists = {pair: within(*pair) or [path] for pair, path in planned.items()}
    if all(path in lists[pair] for pair, path in planned.items()):
        return planned
    number = {port: n for n, port in enumerate(topology.linked_ports())}
    paths = ListedPaths(np.array([topology.link_at(port).rate_bps for port in number], dtype=np.float64))
    choices = {pair: sorted(mine, key=lambda path: path != planned[pair]) for pair, mine in lists.items()}
    placed = {
        pair: paths.insert(1.0, [[number[port] for port in path[1:-1]] for path in mine])
        for pair, mine in choices.items()
    }
    paths.improve(0.0)
    return {pair: mine[paths.chosen(placed[pair])] for pair, mine in choices.items()}


def _apart(src: str, dst: str) -> ValueError:
    return ValueError(f"no spine has links to the leaves of both {src!r} and {dst!r}")
