# SPDX-License-Identifier: Apache-2.0
"""The journal of an experiment, and its policies side by side."""

from __future__ import annotations

from testbed.live.runs_so_far import Began, Entry, Finished, Happened, entries, happenings, line, standing

IDEALS = {1: 1.0, 2: 2.0}


def test_policies_are_compared_by_the_ideal_of_each_seed() -> None:
    journal = [Finished("ecmp", 1, 3.0), Finished("pinned", 1, 1.5), Finished("ecmp", 2, 8.0)]
    assert standing(journal, ["pinned", "adaptive", "ecmp"], IDEALS.__getitem__, 6, 50.0).splitlines() == [
        "3 of 6 runs",
        "pinned  1.50 x ideal " + 13 * "█",
        "ecmp    3.50 x ideal " + 30 * "█",
    ]


def test_the_present_run_is_told_with_its_ideal() -> None:
    journal = [Finished("ecmp", 1, 3.0), Began("pinned", 2, 40.0), Happened("cut leaf1:5")]
    first, *_ = standing(journal, ["ecmp", "pinned"], IDEALS.__getitem__, 4, 41.5).splitlines()
    assert first == "1 of 4 runs; pinned, seed 2: 1.5 s of 2.0 s ideal"
    assert standing([], ["ecmp"], IDEALS.__getitem__, 6, 0.0) == "0 of 6 runs"


def test_many_policies_take_few_lines() -> None:
    journal = [Finished(f"p{number}", 1, 1.0) for number in range(9)]
    lines = standing(journal, [f"p{number}" for number in range(9)], IDEALS.__getitem__, 9, 0.0).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "and 4 policies more"


def test_a_line_that_is_not_complete_is_left_out() -> None:
    journal: list[Entry] = [Began("ecmp", 1, 2.5), Happened("cut leaf1:5"), Finished("pinned", 2, 1.5)]
    text = "".join(map(line, journal))
    assert entries(text.splitlines(keepends=True)) == journal
    assert entries(text[:-1].splitlines(keepends=True)) == journal[:2]
    assert happenings(1, journal) == ["event: cut leaf1:5", "pinned, seed 2, took 1.5 s"]
