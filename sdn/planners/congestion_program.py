# SPDX-License-Identifier: Apache-2.0
"""Integer programs that minimise the congestion of the worst link, solved by HiGHS.

Columns are numbers of commodities. Column 0 is the congestion in units of the largest demand on the fastest link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sdn.planners.model import SAME, Floats

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """A column whose commodities cross some link, how many there are at most, and the demand of each."""

    column: int
    most: float
    demand: float


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """lower <= sum of values[i] * column[columns[i]] <= upper."""

    columns: list[int]
    values: list[float]
    lower: float
    upper: float


class CongestionProgram:
    """A program under construction. `unit` is the congestion that column 0 counts."""

    def __init__(self, unit: float) -> None:
        self.unit = unit
        self._rows: list[_Row] = []
        self._most: list[float] = [np.inf]  # the upper bound of each column

    def column(self, most: float) -> int:
        """A new column of integers from 0 to `most`."""
        self._most.append(float(most))
        return len(self._most) - 1

    def total(self, columns: Sequence[int], count: float) -> None:
        """These columns add up to `count`."""
        self._rows.append(_Row(list(columns), [1.0] * len(columns), count, count))

    def limit(self, rates_bps: Floats, terms: Sequence[Term]) -> dict[tuple[int, float], int]:
        """The parallel links of these rates carry what crosses them at the congestion of column 0.

        Returns the columns by which commodities are divided among several live links, by link and demand.
        """
        if not terms:
            return {}
        rate = rates_bps * self.unit  # the demand of congestion 1 on this link
        links = np.flatnonzero(rate > 0)
        if links.size == 1:
            self._load([(term.column, term.demand) for term in terms], rate[links[0]])
            return {}
        demands = sorted({term.demand for term in terms})
        by_link: dict[tuple[int, float], int] = {}
        for demand in demands:
            alike = [term for term in terms if term.demand == demand]
            total = sum(term.most for term in alike)
            columns = [by_link.setdefault((link, demand), self.column(total)) for link in links.tolist()]
            spread = [term.column for term in alike]
            self._rows.append(_Row(columns + spread, [1.0] * len(columns) + [-1.0] * len(spread), 0.0, 0.0))
        for link in links.tolist():
            self._load([(by_link[link, demand], demand) for demand in demands], rate[link])
        return by_link

    def _load(self, terms: list[tuple[int, float]], rate: float) -> None:
        """Limits the load of these columns on a link to its rate times the congestion."""
        columns, demands = [column for column, _ in terms], [demand for _, demand in terms]
        scale = max(demands)
        self._rows.append(_Row([*columns, 0], [d / scale for d in demands] + [-rate / scale], -np.inf, 0.0))

    def solve(
        self, congestion: float, exactly: bool, time_limit_s: float, seed: int
    ) -> tuple[bool | None, Counts | None, float]:
        """Solves for a plan of exactly this congestion, or of the least congestion from there.

        Returns whether there is one, None if time ran out first; the columns of the best plan found, if any; and the
        congestion proved necessary.
        """
        import highspy  # imported here, because loading it takes as long as many plans

        least = congestion / self.unit
        first = np.eye(1, len(self._most)).ravel()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._most), len(self._rows)
        lp.col_cost_ = 0 * first if exactly else first
        lp.col_lower_ = first * least * (1 - SAME)
        lp.col_upper_ = np.array([least * (1 + SAME) if exactly else np.inf, *self._most[1:]])
        lp.row_lower_ = np.array([row.lower for row in self._rows])
        lp.row_upper_ = np.array([row.upper for row in self._rows])
        lp.integrality_ = [highspy.HighsVarType.kContinuous] + [highspy.HighsVarType.kInteger] * (lp.num_col_ - 1)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0] + [len(row.columns) for row in self._rows])
        lp.a_matrix_.index_ = np.concatenate([row.columns for row in self._rows])
        lp.a_matrix_.value_ = np.concatenate([row.values for row in self._rows])
        solver = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("time_limit", time_limit_s),
            ("threads", 1),
            ("random_seed", seed),
            ("mip_rel_gap", SAME),
        ):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        info, status = solver.getInfo(), solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return False, None, congestion
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        counts = np.rint(solver.getSolution().col_value).astype(np.int64) if found else None
        if exactly:
            return found or None, counts, congestion
        proved = info.mip_dual_bound * self.unit if np.isfinite(info.mip_dual_bound) else 0.0
        return status == highspy.HighsModelStatus.kOptimal or None, counts, proved
