# SPDX-License-Identifier: Apache-2.0
"""The integer program for commodities of one demand: alike spines counted together, then told apart by halves.

At a given congestion the links between a ToR and a spine have room for so many commodities. The program counts:
x[pair of ToRs, spine] whole commodities, as many in all as the pair has, within the room of every ToR at every spine.
Spines that are alike would have branch and bound try the same again and again, so it is solved in two steps.

1. Spines at which all ToRs have the same room, each spine its own, make one class; of the others, those at which each
   ToR has as much room as at the next one. x[pair, class] within the room of classes is found by branch and bound. With
   a single class there is nothing to find. Plans of single spines fulfil this too, so what it rules out, no plan does.
2. A class is split into two halves, these again, until each spine stands alone. Of each pair's and of each ToR's
   commodities the first half gets its share of the room, rounded up or down. That is a linear program, and all splits
   of one depth are one. It has a solution, the shares themselves. In its matrix a column meets one sending ToR and one
   receiving, as edges do in a bipartite graph, so it is totally unimodular, and vertices, at which the simplex method
   ends, are whole (A. Hoffman and J. Kruskal, "Integral boundary points of convex polyhedra", 1956). Room being whole,
   a load that fits is split into loads that fit.

So whatever congestion the first step allows is reached, and the least such is the optimum.
"""

import time

import numpy as np

from sdn.planners.bounds import Bound
from sdn.planners.grouping import Mask, occurrences
from sdn.planners.levels import Counts, Levels, dealt
from sdn.planners.model import Clos, Floats, Ints

SEARCHED = "branch and bound"

_WHOLE = 1e-6  # how far from whole numbers the answers of a solver may be


def bisected(
    fabric: Clos, src: Ints, dst: Ints, demand: Floats, bound: Bound, time_limit_s: float, seed: int
) -> tuple[tuple[Ints, Ints, Ints] | None, Bound]:
    """Spine, up and down of commodities of one demand, each between two ToRs that some spine joins; what is proved.

    The congestion is the bound's. None: the time for branch and bound was up.
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
    at = _told_apart(src, dst, first, last, room[tors][:, spines].max(axis=0), seed)
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
    """Whether all fits, None if time ran out first; and the class of each commodity. The spines are sorted by class."""
    if kind[-1] == 0:
        return True, np.zeros(src.size, dtype=np.int64)  # no ToR has more than fits, as the bound counts it
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


def _told_apart(src: Ints, dst: Ints, first: Counts, last: Counts, room: Counts, seed: int) -> Counts:
    """A spine for each commodity, of those from `first` until before `last`, whose shares are as their `room`."""
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
    """Which commodities go to the first half, which has `part` of the `whole` room: each group is split by itself.

    All but one at most of a pair's are told by rounding down; this one is a column, 1 if it goes to the first half.
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
    _, one, row = np.unique(ends, return_index=True, return_inverse=True)
    row = row.reshape(ends.shape)
    load, told = np.bincount(row.ravel()), np.bincount(row[first].ravel(), minlength=one.size)
    part, whole = part[one // 2], whole[one // 2]
    limits = load * part // whole - told, -(-load * part // whole) - told
    # Costs have pairs take turns, which leaves the dual simplex method, that begins there, little to mend.
    cost = 1 - 2 * (np.arange(left.size) & 1)
    for integer in (False, True):  # whole numbers need not be asked for, but for a solver's rounding
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
    """Whole numbers from 0 to `most`, one for each column, that keep the sums of rows within lower and upper limits.

    `rows` is by [column, which], for each column those in which it counts. Tells whether there are such numbers, None
    if time ran out first; and the cheapest, None too where a linear program's, which goes without `integer`, are not.
    """
    import highspy  # takes as long to load as many a plan to make

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
