# SPDX-License-Identifier: Apache-2.0
"""Small integer programs, solved by HiGHS on one thread, so that the result depends on the program alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

TIME_LIMIT_S = 30.0
"""Time limit of a program in seconds."""


class Undecided(ValueError):
    """The time limit passed before a solution was found or excluded; the text is one sentence for the user."""


@dataclass(slots=True)
class IntegerProgram:
    """Minimises the sum of cost times column; all columns are integers from 0 to their upper bounds."""

    _cost: list[float] = field(default_factory=list)
    _upper: list[int] = field(default_factory=list)
    _rows: list[tuple[list[int], list[float], float, float]] = field(default_factory=list)

    def column(self, upper: int, cost: float = 0.0) -> int:
        """Adds a column. Returns its number."""
        self._cost.append(cost)
        self._upper.append(upper)
        return len(self._cost) - 1

    def row(self, terms: dict[int, float], lower: float = -np.inf, upper: float = np.inf) -> None:
        """Constrains the sum of value times column to lower..upper."""
        self._rows.append((list(terms), list(terms.values()), lower, upper))

    def solve(self) -> list[int] | None:
        """The columns of an optimal solution, or of the best one found in time; None when there is none.

        Raises Undecided when the time limit has passed without a solution.
        """
        import highspy  # imported here, because loading it takes as long as many programs

        if not self._cost:
            return None if any(lower > 0 for _, _, lower, _ in self._rows) else []
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._cost), len(self._rows)
        lp.col_cost_ = np.array(self._cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self._cost)), np.array(self._upper, dtype=float)
        lp.row_lower_ = np.array([lower for _, _, lower, _ in self._rows])
        lp.row_upper_ = np.array([upper for _, _, _, upper in self._rows])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self._cost)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(columns) for columns, *_ in self._rows)])
        lp.a_matrix_.index_ = np.array([column for columns, *_ in self._rows for column in columns], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([value for _, values, *_ in self._rows for value in values])
        solver = highspy.Highs()
        for option, value in (("output_flag", False), ("time_limit", TIME_LIMIT_S), ("threads", 1), ("random_seed", 0)):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        if solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            return [round(value) for value in solver.getSolution().col_value]
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return None
        raise Undecided(
            f"the integer program of {len(self._cost)} columns has no solution after {TIME_LIMIT_S:g} s, and none is "
            "excluded; try again when more of the cluster is free"
        )


_Found = TypeVar("_Found")


def first_found(attempts: Iterable[Callable[[], _Found | None]]) -> _Found | None:
    """The result of the first of these attempts to have one; None when all exclude one.

    Raises Undecided when none has a result, and one of them was undecided.
    """
    undecided: Undecided | None = None
    for attempt in attempts:
        try:
            if (found := attempt()) is not None:
                return found
        except Undecided as error:
            undecided = error
    if undecided is not None:
        raise undecided
    return None
