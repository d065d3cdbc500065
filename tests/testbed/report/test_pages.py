# SPDX-License-Identifier: Apache-2.0
"""The plots of a result folder: which there are, and their formats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from testbed.cli import main
from tests.testbed.experiments import write_spec


def ran(folder: Path, **changes: Any) -> Path:
    """The result folder of a run on the fluid model."""
    arguments = ["run", str(write_spec(folder, fabric="fluid", **changes)), "--results", str(folder)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return folder / "small"


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_a_report_has_no_plot_and_no_part_that_could_only_be_empty(tmp_path: Path) -> None:
    """On the fluid model there are no packets to send again, and no path is observed."""
    folder = ran(tmp_path, workload={"kind": "permutation", "bytes": 1_000_000})
    page = (folder / "report.html").read_text()
    assert "Retransmitted" not in page
    assert "observed paths" not in page
    drawn = {path.stem for path in folder.glob("*.png")}
    assert {"topology", "completion", "uplinks"} <= drawn
    assert drawn.isdisjoint({"retransmits", "predictions", "losses", "steps"})


def test_a_recovery_that_cannot_be_measured_is_null_and_a_dash(tmp_path: Path) -> None:
    folder = ran(
        tmp_path,
        topology={"direct_connect": {"hosts": 4, "degree": 2, "rate": "10 Mbit/s"}},
        optical={"strides": [1, 3]},
        workload={"kind": "ring_allreduce", "strides": [1, 3], "bytes": 4_000_000},
        placement={"rule": "in_order"},
        policies=[{"name": "direct", "policy": "ecmp"}],
        seeds=1,
        events=[{"at_s": 1.0, "cut": "ocs1:3"}],
    )
    (policy,) = json.loads((folder / "summary.json").read_text())["policies"]
    assert policy["recovery_s"] == [[None]]
    page = (folder / "report.html").read_text()
    assert re.search(r"<td>direct</td>(?:\s*<td>[^<]*</td>){3}\s*<td>-</td>", page)


def test_plots_for_papers_have_text_as_text(tmp_path: Path) -> None:
    folder = ran(tmp_path)
    done = report(folder, "--plots", "svg", "--plots", "pdf")
    assert done.exit_code == 0, done.output
    drawn = {path.stem for path in folder.glob("*.png")}
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.pdf")} == drawn
    assert re.search(r"<text[^>]*>[^<]*completion time", (folder / "completion.svg").read_text())
    assert b"/FontFile2" in (folder / "completion.pdf").read_bytes()  # TrueType, not outlines
    refused = report(folder, folder, "--plots", "svg")
    assert refused.exit_code == 2
    assert "give one FOLDER" in refused.output
