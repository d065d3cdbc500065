# SPDX-License-Identifier: Apache-2.0
"""`paralet report`: a report written again, and several results compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from testbed.cli import main
from tests.testbed.experiments import write_spec

pytestmark = pytest.mark.usefixtures("no_plots")


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def ran(folder: Path, **changes: Any) -> Path:
    """The result folder of a run on the fluid model."""
    folder.mkdir()
    done = paralet("run", write_spec(folder, fabric="fluid", **changes), "--results", folder)
    assert done.exit_code == 0, done.output
    return folder / changes.get("name", "small")


def test_a_report_is_written_again_and_is_the_same(tmp_path: Path) -> None:
    folder = ran(tmp_path / "one")
    names = ("report.html", "summary.json", "links.csv")
    before = [(folder / name).read_bytes() for name in names]
    for name in names:
        (folder / name).unlink()
    done = paralet("report", folder, "--json")
    assert [(folder / name).read_bytes() for name in names] == before
    assert json.loads(done.stdout) == json.loads((folder / "summary.json").read_text())


def test_a_report_says_which_delays_links_have(tmp_path: Path) -> None:
    shape = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}
    for name, delays, said in (
        ("none", {}, None),
        ("one", {"host_delay": "5 us"}, "links with delays of 5 us"),
        ("two", {"host_delay": "5 us", "fabric_delay": 0.001}, "links with delays of 5 us to 1 ms"),
    ):
        text = (ran(tmp_path / name, topology={"leaf_spine": {**shape, **delays}}) / "report.html").read_text()
        assert ("with delays" in text) == (said is not None)
        assert said is None or f", {said}, fluid" in text


def test_results_are_compared_relative_to_their_own_ideal(tmp_path: Path) -> None:
    small = ran(tmp_path / "one")
    large = ran(
        tmp_path / "two",
        name="large",
        workload={"kind": "ring_allreduce", "bytes": 8_000_000, "slices": 3},
        policies=[{"name": "pinned", "policy": "pinned"}, {"name": "two", "policy": "ecmp", "m": 2}],
    )
    page = tmp_path / "page.html"
    rows = json.loads(paralet("report", small, large, "--out", page, "--json").stdout)
    assert [(row["result"], row["policy"], row["m"]) for row in rows] == [
        ("small", "ecmp", 1),
        ("small", "pinned", 1),
        ("large", "pinned", 1),
        ("large", "two", 2),
    ]
    assert rows[2]["ideal_s"] == pytest.approx(100 * rows[1]["ideal_s"])
    assert [row["to_first"] for row in rows] == [1, 1, rows[2]["x_ideal"] / rows[1]["x_ideal"], None]
    text = page.read_text()
    assert text.count("<figure data-run=") == 4  # both fabrics have the same links
    assert "small: ecmp (m = 1), seed 1" in text
    shown = paralet("report", small, large, "--out", page)
    assert f"Report: {page}" in shown.stdout
    assert "to small" in shown.stdout
    assert shown.stdout.count(" ms  ") == 6
    assert shown.stdout.count(" s  ") == 2  # each time has the unit that fits it
    assert text.count("<td>-</td>") == 5  # a model has no packets to send again; one policy is not in the first result


def test_results_of_different_fabrics_are_compared_without_a_replay(tmp_path: Path) -> None:
    clos = {"leaves": 2, "spines": 3, "hosts_per_leaf": 2, "host_rate": "100 Mbit/s"}
    folders = ran(tmp_path / "one"), ran(tmp_path / "two", topology={"leaf_spine": clos})
    page = tmp_path / "page.html"
    rows = json.loads(paralet("report", *folders, "--out", page, "--json").stdout)
    assert {row["result"] for row in rows} == {str(folder) for folder in folders}  # both are named `small`
    assert "There is no replay" in page.read_text()


def test_mistakes_are_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the page of a comparison is tried first
    folder = ran(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    for arguments, sentence in [
        ([tmp_path / "empty"], f"{tmp_path / 'empty'} is not a result folder of a run: it has no spec.yaml"),
        ([folder, folder.parent / "latest"], f"{folder} and {folder.parent / 'latest'} are the same folder"),
        ([], "Missing argument 'FOLDER...'"),
    ]:
        done = paralet("report", *arguments)
        assert done.exit_code == 2
        assert sentence in done.stderr
    (folder / "observations.json").write_text('{"runs": [{')
    done = paralet("report", folder)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "observations.json" in done.stderr
