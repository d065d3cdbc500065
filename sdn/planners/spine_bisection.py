# SPDX-License-Identifier: Apache-2.0
"""The integer program for commodities of one demand: equal spines form classes, which are then bisected.

At a given congestion the links between a ToR and a spine have *room* for a number of commodities. The unknowns
x[pair of ToRs, spine] are numbers of commodities. They add up to the commodities of each pair, within the room of every
ToR at every spine. With equal spines branch and bound would repeat the same search, so the program is solved in two
steps.

1. Classes. All spines at which every ToR has the same room, which may differ between spines, form one class. Other
   spines form a class when each ToR has equal room at them. Branch and bound finds x[pair, class] within the room of
   the classes; a single class needs no search. Every plan fulfils these constraints, so a congestion without a solution
   is impossible for any plan.
2. Bisection. A class is split into halves, and these again, until each spine is alone. The first half gets its share of
   each pair's and of each ToR's commodities, in proportion to its room, rounded up or down. This is a linear program,
   one for all splits of the same depth. It has a solution, the exact shares. Each column of its matrix has one sending
   and one receiving ToR, as edges of a bipartite graph have, so the matrix is totally unimodular, and the vertices, at
   which the simplex method ends, are integer (A. Hoffman and J. Kruskal, "Integral boundary points of convex
   polyhedra", 1956). Room is integer too, so a load that fits is split into loads that fit.

So every congestion that the first step allows is reached, and the lowest one is the optimum.
"""

import time

import numpy as np

from sdn.planners.bounds import Bound
from sdn.planners.grouping import Mask, occurrences
from sdn.planners.levels import Counts, Levels, dealt
from sdn.planners.model import Clos, Floats, Ints

SEARCHED = "branch and bound"

_WHOLE = 1e-6  # largest distance of a solver's values from integers


def bisected(
    fabric: Clos, src: Ints, dst: Ints, demand: Floats, bound: Bound, time_limit_s: float, seed: int
) -> tuple[tuple[Ints, Ints, Ints] | None, Bound]:
    """Spine, up and down of commodities of one demand, each between two ToRs that some spine joins; and the bound.

    The routes reach the bound. They are None when the time for branch and bound has run out.
    """
    end = time.monotonic() + time_limit_s
    levels = Levels(fabric.link_rate_bps, float(demand[0]))
    tors = np.unique(np.concatenate((src, dst)))
    while True:
        room = levels.room(bound.congestion)
        spines = np.flatnonzero(room[tors].any(axis=0))
        kind = _classes(room[tors][:, spines])
        spines, kind = spines[np.argsort(kind, kind="stable")], np.sort(kind)
        possible, chosen = _chosen(src, dst, room[:, spines], kind, max(end - time.monotonic(), 0.0), seed)
        if possible is not False:
            break
        bound = Bound(levels.next(bound.congestion), SEARCHED)
    if chosen is None:
        return None, bound
    first, last = np.searchsorted(kind, chosen, "left"), np.searchsorted(kind, chosen, "right")
    at = _bisect(src, dst, first, last, room[tors][:, spines].max(axis=0), seed)
    spine = spines[at].astype(np.int32)
    return (spine, dealt(fabric.link_rate_bps, src, spine), dealt(fabric.link_rate_bps, dst, spine)), bound


def _classes(room: Counts) -> Counts:
    """The class of each spine, from 0. `room` is by [ToR, spine]."""
    same = (room == room[0]).all(axis=0)
    classes: Counts = np.unique(np.where(same, -1, room), axis=1, return_inverse=True)[1].ravel()
    return classes


def _chosen(
    src: Ints, dst: Ints, room: Counts, kind: Counts, time_limit_s: float, seed: int
) -> tuple[bool | None, Counts | None]:
    """Whether all commodities fit, None if time ran out; and the class of each. Spines are sorted by class."""
    if kind[-1] == 0:
        return True, np.zeros(src.size, dtype=np.int64)  # every ToR's commodities fit, because of the bound
    room = np.add.reduceat(room, np.flatnonzero(np.diff(kind, prepend=-1)), axis=1)
    tors, classes = room.shape
    code = src.astype(np.int64) * tors + dst
    pairs, counts = np.unique(code, return_counts=True)
    a, b = pairs // tors, pairs % tors
    most = np.minimum(counts[:, None], np.minimum(room[a], room[b]))
    pair, column = np.nonzero(most)
    up, down = pairs.size + a[pair] * classes + column, pairs.size + (tors + b[pair]) * classes + column
    upper = np.concatenate((counts, room.ravel(), room.ravel()))
    lower = np.where(np.arange(upper.size) < pairs.size, upper, 0)
    rows = np.stack((pair, up, down), axis=1)
    possible, x = _solved(rows, 0 * column, most[pair, column], (lower, upper), True, time_limit_s, seed)
    if x is None:
        return possible, None
    chosen = np.empty_like(code)
    chosen[np.argsort(code, kind="stable")] = np.repeat(column, x)
    return True, chosen


def _bisect(src: Ints, dst: Ints, first: Counts, last: Counts, room: Counts, seed: int) -> Counts:
    """A spine for each commodity in [`first`, `last`), by bisection with shares in proportion to `room`."""
    first, last = first.copy(), last.copy()
    before = np.concatenate(([0], np.cumsum(room)))
    while (mine := np.flatnonzero(last - first > 1)).size:
        low, high = first[mine], last[mine]
        middle = (low + high) // 2
        part, whole = before[middle] - before[low], before[high] - before[low]
        lower = _split(src[mine], dst[mine], low, part, whole, seed)
        last[mine] = np.where(lower, middle, high)
        first[mine] = np.where(lower, low, middle)
    return first


def _split(src: Ints, dst: Ints, group: Counts, part: Counts, whole: Counts, seed: int) -> Mask:
    """Which commodities go to the first half of their group, which has `part` of the `whole` room.

    Rounding down decides all commodities of a pair but one. That one is a column: 1 if it goes to the first half.
    """
    tors = int(max(src.max(), dst.max())) + 1
    code = (group * tors + src) * tors + dst
    _, pair, counts = np.unique(code, return_inverse=True, return_counts=True)
    nth: Counts = occurrences(code)
    count: Counts = counts[pair]
    least, most = count * part // whole, -(-count * part // whole)
    first: Mask = np.asarray(nth < least)
    left = np.flatnonzero((nth == least) & (least < most))
    if not left.size:
        return first
    left = left[np.argsort(code[left])]
    ends = np.stack((2 * group * tors + src, (2 * group + 1) * tors + dst), axis=1)
    _, occurrence, row = np.unique(ends, return_index=True, return_inverse=True)
    row = row.reshape(ends.shape)
    load, decided = np.bincount(row.ravel()), np.bincount(row[first].ravel(), minlength=occurrence.size)
    part, whole = part[occurrence // 2], whole[occurrence // 2]
    limits = load * part // whole - decided, -(-load * part // whole) - decided
    # Alternating costs give the dual simplex method a start that is nearly feasible.
    cost = 1 - 2 * (np.arange(left.size) & 1)
    for integer in (False, True):  # integrality is only required when rounding errors made the first answer non-integer
        _, x = _solved(row[left], cost, np.ones_like(left), limits, integer, np.inf, seed)
        if x is not None:
            break
    assert x is not None
    first[left] = x == 1
    return first


def _solved(
    rows: Counts,
    cost: Counts,
    most: Counts,
    limits: tuple[Counts, Counts],
    integer: bool,
    time_limit_s: float,
    seed: int,
) -> tuple[bool | None, Counts | None]:
    """Integers from 0 to `most`, one per column, with the sums of rows within lower and upper limits, of least cost.

    `rows[column]` lists the rows in which a column counts. Returns whether there is a solution, None if time ran out;
    and the solution. The latter is None too when that of the linear program (without `integer`) is not integer.
    """
    import highspy  # imported here, because loading it takes as long as many plans

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = most.size, limits[0].size
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = (column.astype(np.float64) for column in (cost, 0 * most, most))
    lp.row_lower_, lp.row_upper_ = (row.astype(np.float64) for row in limits)
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * most.size
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(0, rows.size + 1, rows.shape[1])
    lp.a_matrix_.index_ = rows.ravel()
    lp.a_matrix_.value_ = np.ones(rows.size)
    solver = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("time_limit", time_limit_s),
        ("threads", 1),
        ("random_seed", seed),
        ("solver", "choose" if integer else "simplex"),
        ("presolve", "choose" if integer else "off"),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        return False if status == highspy.HighsModelStatus.kInfeasible else None, None
    values = np.asarray(solver.getSolution().col_value)
    counts: Counts = np.rint(values).astype(np.int64)
    return True, counts if np.abs(values - counts).max() < _WHOLE else None
