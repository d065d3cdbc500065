# SPDX-License-Identifier: Apache-2.0
"""Routes with the least load of the most loaded circuit, by linear programming (HiGHS).

TopoOpt leaves this to future work (section 5.5, "Routing strategy"). A server's traffic to all others is one flow,
which may split anywhere: unknowns are bytes by source and circuit.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sdn.topoopt.demand import Matrix
from sdn.topoopt.permutations import Circuit
from sdn.topoopt.routing import Route, Unreachable

if TYPE_CHECKING:
    import highspy

_Pair = tuple[str, str]
_Floats = npt.NDArray[np.float64]
_SMALL = 1e-9
"""Flows below this part of all bytes are rounding errors."""


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """`load`: bytes on the most loaded circuit. `routes`: by pair, routes and the bytes that each carries."""

    load: float
    routes: Mapping[Circuit, tuple[tuple[Route, float], ...]]


def least_load(transfers: Matrix, circuits: Iterable[Circuit]) -> LeastLoad:
    """Routes for `transfers`, in bytes by source and destination; parallel circuits share their load evenly.

    There are servers x circuits unknowns: 16 servers take some 10 ms, 128 servers minutes. Raises Unreachable.
    """
    parallel = Counter(circuits)
    ends = sorted(parallel)
    sources = np.flatnonzero(transfers.any(axis=1)).tolist()
    if not sources:
        return LeastLoad(0.0, {})
    rates = np.array([parallel[circuit] for circuit in ends], dtype=np.float64)
    load, flows = _solve(transfers[sources], sources, ends, np.arange(len(ends)), rates)
    routes: dict[Circuit, tuple[tuple[Route, float], ...]] = {}
    for source, flow in zip(sources, flows, strict=True):
        routes |= _routes(source, transfers[source], dict(zip(ends, flow.tolist(), strict=True)))
    return LeastLoad(load, routes)


def least_ring_load(size: int, strides: Sequence[int]) -> float:
    """The least load where every server of the rings `strides` sends one byte to every other one.

    By symmetry one server's flow is enough, and all circuits of a stride have the same load. Raises Unreachable.
    """
    each = Counter(stride % size for stride in strides if stride % size)
    if not each:
        raise Unreachable(f"the strides {tuple(strides)} join none of {size} servers")
    ends = [(server, (server + stride) % size) for stride in each for server in range(size)]
    kinds = np.repeat(np.arange(len(each)), size)
    transfers = np.ones((1, size))
    transfers[0, 0] = 0.0
    load, _ = _solve(transfers, [0], ends, kinds, np.array(list(each.values()), dtype=np.float64))
    return load


def lightest(
    ways: Mapping[_Pair, Sequence[Sequence[Hashable]]], sent: Mapping[_Pair, float]
) -> dict[_Pair, list[float]]:
    """The part of each pair's bytes that each of its ways carries, so that the most loaded link carries least.

    A way is a sequence of links. Every pair needs one or more. The parts of a pair add up to 1.
    """
    import highspy  # imported here, because loading it takes long

    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1)):
        solver.setOptionValue(option, value)
    solver.addVar(0.0, highspy.kHighsInf)  # column 0 is the load; then the parts
    solver.changeColCost(0, 1.0)
    users: dict[Hashable, dict[int, float]] = {}
    columns: dict[_Pair, list[int]] = {}
    most = max(sent.values(), default=0.0) or 1.0
    for pair, several in ways.items():
        columns[pair] = [solver.getNumCol() + place for place in range(len(several))]
        for column, way in zip(columns[pair], several, strict=True):
            solver.addVar(0.0, 1.0)
            for link in way:
                users.setdefault(link, {0: -1.0})[column] = sent[pair] / most
        _add_row(solver, 1.0, 1.0, dict.fromkeys(columns[pair], 1.0))
    for row in users.values():
        _add_row(solver, -highspy.kHighsInf, 0.0, row)
    solver.run()
    found = solver.getSolution().col_value
    parts = {pair: np.array([found[column] for column in own]) for pair, own in columns.items()}
    kept = {pair: np.where(own > _SMALL, own, 0.0) for pair, own in parts.items()}
    return {pair: (own / own.sum()).tolist() for pair, own in kept.items()}


def _add_row(solver: "highspy.Highs", least: float, most: float, row: Mapping[int, float]) -> None:
    solver.addRow(least, most, len(row), np.array(list(row), dtype=np.int32), np.array(list(row.values())))


def _solve(
    transfers: _Floats, sources: Sequence[int], ends: Sequence[Circuit], kinds: npt.NDArray[np.int64], rates: _Floats
) -> tuple[float, _Floats]:
    """The least load, and bytes by source and circuit.

    Circuits of one kind k are limited together: their bytes are at most `rates[k]` times the load.
    """
    import highspy  # imported here, because loading it takes long

    servers, count = transfers.shape[1], len(ends)
    tails, heads = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    unit = float(transfers.sum())
    # Column 0 is the load; then bytes by source and circuit, in units of all bytes.
    column = 1 + np.arange(len(sources) * count).reshape(len(sources), count)
    row = np.arange(len(sources))[:, None] * servers  # the rows of a source: what arrives less what leaves
    kind = len(sources) * servers + np.tile(kinds, (len(sources), 1))
    limits = len(sources) * servers + np.arange(len(rates))
    rows = np.concatenate([(row + heads).ravel(), (row + tails).ravel(), kind.ravel(), limits])
    columns = np.concatenate([column.ravel()] * 3 + [np.zeros(len(rates), dtype=np.int64)])
    values = np.concatenate([np.ones(column.size), -np.ones(column.size), np.ones(column.size), -rates])
    order = np.argsort(rows, kind="stable")
    wanted = transfers / unit
    wanted[np.arange(len(sources)), sources] = -wanted.sum(axis=1)
    solver, lp = highspy.Highs(), highspy.HighsLp()
    lp.num_col_, lp.num_row_ = 1 + column.size, len(sources) * servers + len(rates)
    lp.col_cost_ = np.eye(1, lp.num_col_).ravel()
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.full(lp.num_col_, np.inf)
    lp.row_lower_ = np.concatenate([wanted.ravel(), np.full(len(rates), -np.inf)])
    lp.row_upper_ = np.concatenate([wanted.ravel(), np.zeros(len(rates))])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=lp.num_row_))])
    lp.a_matrix_.index_, lp.a_matrix_.value_ = columns[order], values[order]
    for option, value in (("output_flag", False), ("threads", 1)):
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise Unreachable("no circuits lead from some server to one that it sends to")
    found = np.array(solver.getSolution().col_value) * unit
    return float(found[0]), found[1:].reshape(column.shape)


def _routes(source: int, wanted: _Floats, flow: dict[Circuit, float]) -> dict[Circuit, tuple[tuple[Route, float], ...]]:
    """Splits a source's flow into routes, shortest first."""
    small = _SMALL * float(wanted.sum())
    left = {server: float(wanted[server]) for server in np.flatnonzero(wanted).tolist()}
    found: dict[Circuit, list[tuple[Route, float]]] = {(source, server): [] for server in left}
    while left:
        route = _shortest(source, left, {circuit for circuit, size in flow.items() if size > small})
        if route is None:  # only rounding errors are left
            break
        hops = list(pairwise(route))
        size = min(left[route[-1]], *(flow[hop] for hop in hops))
        for hop in hops:
            flow[hop] -= size
        left[route[-1]] -= size
        if left[route[-1]] <= small:
            del left[route[-1]]
        found[source, route[-1]].append((route, size))
    return {pair: tuple(ways) for pair, ways in found.items()}


def _shortest(source: int, goals: Iterable[int], circuits: Iterable[Circuit]) -> Route | None:
    onward: dict[int, list[int]] = {}
    for tail, head in sorted(circuits):
        onward.setdefault(tail, []).append(head)
    wanted, queue = set(goals), deque([source])
    ways: dict[int, Route] = {source: (source,)}
    while queue:
        at = queue.popleft()
        if at in wanted:
            return ways[at]
        for after in onward.get(at, ()):
            if after not in ways:
                ways[after] = (*ways[at], after)
                queue.append(after)
    return None
