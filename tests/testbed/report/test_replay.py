# SPDX-License-Identifier: Apache-2.0
"""The replay of a report, in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed import report
from testbed.analysis import metrics, results
from testbed.analysis.flows import flows_of
from testbed.analysis.metrics import PolicyResult
from testbed.progress import Silent
from testbed.report.replay import replay
from testbed.report.scales import said
from testbed.simulate import fluid
from testbed.spec import Experiment
from tests.testbed.experiments import experiment

BROWSER = shutil.which("chromium")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
]


def simulated(folder: Path, **changes: Any) -> tuple[Experiment, list[PolicyResult]]:
    made = experiment(folder, fabric="fluid", **changes)
    return made, metrics.by_policy(made, flows_of(made, fluid.observe(made, Silent())))


def shown(page: Path, at_s: float, folder: Path) -> str:
    """The page's document after its program has run, opened at a time of the replay."""
    command = [
        str(BROWSER),
        *QUIET,
        f"--user-data-dir={folder / 'browser'}",
        "--dump-dom",
        f"{page.as_uri()}#at={at_s}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def test_the_data_have_every_link_and_a_run_of_each_policy(tmp_path: Path) -> None:
    made, judged = simulated(tmp_path)
    data = replay(made, judged)
    assert data is not None
    assert (data["lower"], data["upper"]) == (["leaf1", "leaf2"], ["spine1", "spine2"])
    assert sorted(data["links"]) == [[low, high, up] for low in (0, 1) for high in (0, 1) for up in (0, 1)]
    assert [(run["name"], run["seed"]) for run in data["runs"]] == [("ecmp", 1), ("pinned", 1)]
    for run in data["runs"]:
        assert len(run["until_s"]) == len(run["percent"]) > 10
        assert 0 <= min(map(min, run["percent"])) <= max(map(max, run["percent"])) <= 101


def test_results_without_a_history_have_no_replay(tmp_path: Path) -> None:
    made, judged = simulated(tmp_path)
    bare = [
        replace(
            result,
            flows=tuple(replace(flows, run=flows.run.model_copy(update={"history": None})) for flows in result.flows),
        )
        for result in judged
    ]
    assert replay(made, bare) is None
    page = report.write(tmp_path, made, bare, [], results.ideal_of(made), None).read_text()
    assert "replay-data" not in page


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")
@pytest.mark.parametrize("leaves", [2, 12])  # lines, and cells: 12 x 12 x 2 links are more than 256
def test_a_browser_shows_the_load_at_the_time_asked_for(tmp_path: Path, leaves: int) -> None:
    clos = {"leaves": leaves, "spines": leaves, "hosts_per_leaf": 2, "host_rate": "100 Mbit/s"}
    made, judged = simulated(tmp_path, topology={"leaf_spine": clos}, seeds=1)
    page = report.write(tmp_path, made, judged, [], results.ideal_of(made), None)
    data = replay(made, judged)
    assert data is not None
    at_s = data["runs"][0]["until_s"][5] * 0.999
    document = shown(page, at_s, tmp_path)
    body = re.search(r'<table aria-live="polite">.*?</table>', document, re.DOTALL)
    assert body is not None
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r'<tr data-row="\d">.*?</tr>', body[0], re.DOTALL)]
    percent = data["runs"][0]["percent"][5]
    busiest = max(percent)
    low, high, up = data["links"][percent.index(busiest)]
    ends = [data["lower"][low], data["upper"][high]]
    assert rows[0] == [
        "ecmp",
        "running",
        f"{sum(percent) / len(percent):.0f} %",
        " to ".join(ends if up else reversed(ends)),
        f"{busiest} %",
    ]
    assert len(rows) == 2
    mark = "line" if leaves == 2 else "rect"
    assert document.count(f"<{mark} ") == 2 * len(data["links"])
    assert 'hidden=""' not in document
    first, last = sorted(data["runs"], key=lambda run: run["completion_s"])
    assert f"done at {said(first['completion_s'])}" in shown(page, last["completion_s"], tmp_path)
