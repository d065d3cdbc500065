# SPDX-License-Identifier: Apache-2.0
"""Disjoint paths in a two-level leaf-spine: the least possible load on the most loaded uplink, by edge colouring.

Draw the flows as a bipartite multigraph: sending leaves on one side, receiving leaves on the other, an edge per flow.
A proper colouring of its edges with as many colours as a leaf has uplinks, each colour standing for one uplink (a spine
and one of its parallel links), gives every flow an uplink and a downlink of its own. König's theorem says that D
colours suffice, D being the largest degree (D. König, "Über Graphen und ihre Anwendung auf Determinantentheorie und
Mengenlehre", Math. Annalen 77, 1916); its proof by alternating (Kempe) chains is the algorithm here. Where a leaf has
more flows than its S uplinks, it is first split into copies of at most S flows each; every copy uses a colour once at
most, so a leaf with d flows puts at most ceil(d / S) on any of its uplinks, which no planner can better.

Cost: O(flows * leaf copies) steps in the worst case, in practice linear in the flows.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from netmodel import Path, PortRef, Topology

Pair = tuple[str, str]


def assign(topology: Topology, pairs: Sequence[Pair]) -> dict[Pair, Path]:
    """A path for every (source host, destination host) pair, with least maximum load on leaf uplinks and downlinks.

    Pairs on one leaf get their only path. Paths join the hosts' first NICs and are equal-cost paths of
    `netmodel.equal_cost_paths`. Deterministic: the same arguments give the same answer; the order of `pairs` matters.
    Runs once per plan, so the answer for a changed set of pairs may move flows that stayed.

    Raises KeyError for an unknown host or one whose first NIC has no link; ValueError for a pair that occurs twice or
    joins a host to itself, and for a topology that is not a two-level leaf-spine with the same number of links between
    every leaf and spine.
    """
    fabric = _TwoLevels.of(topology)
    plan: dict[Pair, Path] = {}
    crossing: list[tuple[Pair, PortRef, PortRef]] = []
    for pair in pairs:
        if pair in plan:
            raise ValueError(f"the pair {pair[0]!r} to {pair[1]!r} occurs twice")
        origin, goal = (PortRef(topology.host(name).name, 1) for name in pair)
        if origin == goal:
            raise ValueError(f"a pair joins host {pair[0]!r} to itself")
        entry, exit_ = topology.peer(origin), topology.peer(goal)
        plan[pair] = (origin, exit_)  # the whole path on one leaf, the two ends of it across leaves
        if entry.node != exit_.node:
            crossing.append((pair, entry, exit_))
    uplinks = len(fabric.spines) * fabric.parallel
    colours = colour_edges([(entry.node, exit_.node) for _, entry, exit_ in crossing], uplinks) if crossing else []
    for (pair, entry, exit_), colour in zip(crossing, colours, strict=True):
        spine, parallel = fabric.spines[colour // fabric.parallel], colour % fabric.parallel
        up = fabric.ports[entry.node, spine][parallel]
        down = fabric.ports[spine, exit_.node][parallel]
        plan[pair] = (PortRef(pair[0], 1), PortRef(entry.node, up), PortRef(spine, down), exit_)
    return plan


def colour_edges(edges: Sequence[tuple[str, str]], colours: int) -> list[int]:
    """A colour in 0 .. colours - 1 for each edge (left vertex, right vertex) of a bipartite multigraph.

    At a vertex of degree d no colour occurs more than ceil(d / colours) times. Left and right vertices are distinct
    even where their names agree. Raises ValueError when `colours` is below one.
    """
    if colours < 1:
        raise ValueError(f"{colours} colours are given, but at least one is needed")
    # A vertex is (side, name, copy); at[vertex][colour] is the one edge of that colour there.
    degree: Counter[tuple[int, str]] = Counter()
    ends: list[tuple[_Vertex, _Vertex]] = []
    for left, right in edges:
        ends.append(((0, left, degree[0, left] // colours), (1, right, degree[1, right] // colours)))
        degree[0, left] += 1
        degree[1, right] += 1
    at: defaultdict[_Vertex, dict[int, int]] = defaultdict(dict)
    all_free = (1 << colours) - 1
    free: defaultdict[_Vertex, int] = defaultdict(lambda: all_free)  # bit c: colour c does not occur at the vertex
    answer = [-1] * len(ends)

    def paint(edge: int, colour: int) -> None:
        answer[edge] = colour
        for vertex in ends[edge]:
            at[vertex][colour] = edge
            free[vertex] &= ~(1 << colour)

    def strip(edge: int) -> None:
        for vertex in ends[edge]:
            del at[vertex][answer[edge]]
            free[vertex] |= 1 << answer[edge]

    for edge, (u, v) in enumerate(ends):
        common = free[u] & free[v]
        if not common:
            # Colour a is free at u, b at v. The chain from v that alternates a, b, a, .. cannot end at u: it enters
            # every vertex of u's side by an edge of colour a. So swapping its colours frees a at v and keeps it at u.
            a, b = _lowest(free[u]), _lowest(free[v])
            chain: list[int] = []
            vertex, colour = v, a
            while (link := at[vertex].get(colour)) is not None:
                chain.append(link)
                vertex = ends[link][0] if ends[link][1] == vertex else ends[link][1]
                colour = a + b - colour
            swapped = [a + b - answer[link] for link in chain]
            for link in chain:
                strip(link)
            for link, new in zip(chain, swapped, strict=True):
                paint(link, new)
            common = 1 << a
        paint(edge, _lowest(common))
    return answer


_Vertex = tuple[int, str, int]


def _lowest(bits: int) -> int:
    """The number of the lowest bit set."""
    return (bits & -bits).bit_length() - 1


@dataclass(frozen=True, slots=True)
class _TwoLevels:
    """A two-level leaf-spine: spines in order, links per leaf and spine, and the ports between the two levels."""

    spines: tuple[str, ...]
    parallel: int
    ports: dict[tuple[str, str], list[int]]  # (from switch, to switch) -> egress ports; entry k of both ways is link k

    @classmethod
    def of(cls, topology: Topology) -> "_TwoLevels":
        """Reads the topology's levels off its roles and links. Raises ValueError when it is of another kind."""

        def refuse(why: str) -> ValueError:
            return ValueError(
                f"topology {topology.name!r} is not a two-level leaf-spine with equal links throughout: {why}"
            )

        role = {switch.name: switch.role for switch in topology.switches}
        for name, its_role in role.items():
            if its_role not in ("leaf", "spine"):
                raise refuse(f"switch {name!r} has the role {its_role!r}")
        ports: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for link in sorted(topology.links, key=lambda link: (link.a, link.b)):
            roles = {role.get(link.a.node), role.get(link.b.node)}
            if roles == {"leaf", "spine"}:
                ports[link.a.node, link.b.node].append(link.a.port)
                ports[link.b.node, link.a.node].append(link.b.port)
            elif roles != {None, "leaf"}:
                raise refuse(f"link {link.a} to {link.b} joins neither a host to a leaf nor a leaf to a spine")
        spines = tuple(name for name in role if role[name] == "spine")
        leaves = [name for name in role if role[name] == "leaf"]
        counts = {(leaf, spine): len(ports.get((leaf, spine), ())) for leaf in leaves for spine in spines}
        parallel = max(counts.values(), default=0)
        for (leaf, spine), count in counts.items():
            if count < parallel:
                raise refuse(f"{leaf!r} has {count} links to {spine!r}, where others have {parallel}")
        if len(leaves) > 1 and parallel == 0:
            raise refuse("no leaf is linked to a spine")
        return cls(spines, max(parallel, 1), dict(ports))
