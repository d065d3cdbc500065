# SPDX-License-Identifier: Apache-2.0
"""Finished runs side by side."""

from __future__ import annotations

from testbed.live.runs_so_far import FinishedRun, compared, finished_runs


def test_policies_are_compared_by_the_ideal_of_each_seed() -> None:
    runs = [FinishedRun("ecmp", 1, 3.0), FinishedRun("pinned", 1, 1.5), FinishedRun("ecmp", 2, 8.0)]
    ideals = {1: 1.0, 2: 2.0}
    assert compared(runs, ["pinned", "adaptive", "ecmp"], ideals.__getitem__, 6) == (
        "3 of 6 runs; completion in multiples of the ideal: pinned 1.50, ecmp 3.50"
    )
    assert compared([], ["ecmp"], ideals.__getitem__, 6) == "0 of 6 runs"


def test_a_line_that_is_not_complete_is_left_out() -> None:
    runs = [FinishedRun("ecmp", 1, 3.0), FinishedRun("pinned", 2, 1.5)]
    text = "".join(run.line() for run in runs)
    assert finished_runs(text.splitlines(keepends=True)) == runs
    assert finished_runs(text[:-1].splitlines(keepends=True)) == runs[:1]
