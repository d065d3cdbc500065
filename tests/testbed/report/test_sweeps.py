# SPDX-License-Identifier: Apache-2.0
"""The page of `paralet sweep`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.sweeps import Row
from testbed.report import sweeps


def rows(**values: list[Any]) -> list[Row]:
    """Two policies at all combinations of the values."""
    combinations: list[dict[str, Any]] = [{}]
    for key, chosen in values.items():
        combinations = [{**before, key: value} for before in combinations for value in chosen]
    return [
        Row(parameters, policy, 1, 3, times * 0.25, times * 0.5, 0.1, 0.125)
        for parameters in combinations
        for policy, times in (("ecmp", 3), ("pinned", 1))
    ]


def test_the_axis_has_the_numbers_with_the_most_values() -> None:
    assert sweeps.axis_of(rows(m=[1, 2], bytes=[1, 2, 3], rule=["a", "b", "c", "d"])) == "bytes"
    assert sweeps.axis_of(rows(rule=["a", "b"], m=[4])) == "rule"
    assert sweeps.axis_of(rows(m=[4])) is None
    assert sweeps.axis_of(rows()) is None


def test_a_curve_has_a_line_per_policy_over_the_values_in_order() -> None:
    (axes,) = sweeps.curve(rows(m=[8, 1, 64]), "m").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["ecmp"] == [[1, 6.0], [8, 6.0], [64, 6.0]]
    assert lines["pinned"] == [[1, 2.0], [8, 2.0], [64, 2.0]]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "m"
    assert axes.get_ylim()[1] > 6.0


def test_sizes_have_a_unit() -> None:
    (axes,) = sweeps.curve(rows(**{"workload.bytes": [2_000_000, 3_000_000]}), "workload.bytes").axes
    assert axes.get_xlabel() == "workload.bytes (MB)"
    assert axes.lines[0].get_xdata().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("others", "pictures"), [([1], 1), ([1, 2], 2), (list(range(10)), 8)])
def test_each_combination_of_the_other_values_has_a_curve(tmp_path: Path, others: list[int], pictures: int) -> None:
    page = sweeps.write(tmp_path, "<b>", "fluid", rows(m=list(range(1, 12)), other=others)).read_text()
    assert page.count("<img ") == len(list(tmp_path.glob("curve*.png"))) == pictures
    assert ("2 further combinations" in page) == (len(others) == 10)
    assert page.count("<tr>") == 1 + 2 * 11 * len(others)
    assert "<h1>&lt;b&gt;, swept</h1>" in page
    assert re.findall(r'href="#(.*?)"', page) == re.findall(r'<h2 id="(.*?)"', page)
