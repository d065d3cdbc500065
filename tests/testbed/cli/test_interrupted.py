# SPDX-License-Identifier: Apache-2.0
"""Interrupted runs: what has ended is kept, reported, and not done again. Earlier results are not overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from testbed.analysis.kept_runs import KeptRuns
from testbed.analysis.observations import RunRecord
from testbed.cli import main
from testbed.simulate import fluid
from tests.testbed.experiments import write_spec

pytestmark = pytest.mark.usefixtures("no_plots")

RUNS = [("ecmp", 1), ("pinned", 1), ("ecmp", 2), ("pinned", 2)]


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


class Machine:
    """The model of flows, which counts its runs and fails after some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.done: list[tuple[str, int]] = []
        self._run = fluid._run
        monkeypatch.setattr(fluid, "_run", self.run)

    def run(self, instance: Any, policy: Any, links: Any) -> RunRecord:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.done.append((policy.name, instance.seed))
        return self._run(instance, policy, links)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, machine: Machine) -> None:
    spec, results = write_spec(tmp_path, fabric="fluid"), tmp_path / "results"
    whole = json.loads(paralet("run", spec, "--results", tmp_path / "whole", "--json").stdout)
    assert machine.done == RUNS
    machine.left, machine.done = 3, []
    assert paralet("run", spec, "--results", results).exit_code == 130
    again = paralet("run", spec, "--results", results, "--json")
    assert "small has 3 of 4 runs from before; they are kept (--overwrite: start anew)" not in again.stdout
    assert machine.left == 0
    assert again.exit_code == 130
    machine.left = float("inf")
    again = paralet("run", spec, "--results", results, "--json")
    assert "small has 3 of 4 runs from before; they are kept (--overwrite: start anew)" in again.stderr
    assert machine.done == RUNS
    assert json.loads(again.stdout)["policies"] == whole["policies"]
    assert not (results / "small" / "runs.jsonl").exists()


@pytest.mark.parametrize(
    ("ended", "policies", "seeds"), [(1, ["ecmp"], [1]), (2, ["ecmp", "pinned"], [1]), (3, ["ecmp", "pinned"], [1])]
)
def test_an_interrupted_run_has_a_report_of_what_has_ended(
    tmp_path: Path, machine: Machine, ended: int, policies: list[str], seeds: list[int]
) -> None:
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    machine.left = ended
    paralet("run", spec, "--results", folder.parent)
    told = paralet("report", folder, "--json")
    assert f"is of an interrupted run: {ended} of 4 runs have ended" in told.stderr
    summary = json.loads(told.stdout)
    assert ([policy["name"] for policy in summary["policies"]], summary["seeds"]) == (policies, seeds)


def test_a_report_does_not_end_an_interrupted_run(tmp_path: Path, machine: Machine) -> None:
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    machine.left = 2
    paralet("run", spec, "--results", folder.parent)
    assert paralet("report", folder).exit_code == 0
    machine.left = float("inf")
    assert paralet("run", spec, "--results", folder.parent).exit_code == 0
    assert machine.done == RUNS


def test_a_run_whose_writer_was_killed_is_done_again(tmp_path: Path, machine: Machine) -> None:
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    machine.left = 2
    paralet("run", spec, "--results", folder.parent)
    lines = (folder / "runs.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "runs.jsonl").write_bytes(lines[0] + lines[1][:-20])
    machine.left, machine.done = float("inf"), []
    assert paralet("run", spec, "--results", folder.parent).exit_code == 0
    assert machine.done == RUNS[1:]


def test_damaged_runs_are_refused(tmp_path: Path, machine: Machine) -> None:
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    machine.left = 2
    paralet("run", spec, "--results", folder.parent)
    (folder / "runs.jsonl").write_text("{}\n")
    for arguments in (("run", spec, "--results", folder.parent), ("report", folder)):
        told = paralet(*arguments)
        assert told.exit_code == 2
        assert "runs.jsonl is damaged, or is of another" in told.stderr
    machine.left = float("inf")
    assert paralet("run", spec, "--results", folder.parent, "--overwrite").exit_code == 0


def test_a_second_run_leaves_earlier_results_alone(tmp_path: Path, machine: Machine) -> None:
    spec, results = write_spec(tmp_path, fabric="fluid"), tmp_path / "results"
    assert paralet("run", spec, "--results", results).exit_code == 0
    first = (results / "small" / "summary.json").read_bytes()
    told = paralet("run", spec, "--results", results, "--seeds", "1")
    assert f"small has other results, so these go to {results}/small-2 (--overwrite: replace them)" in told.stderr
    assert (results / "small" / "summary.json").read_bytes() == first
    assert json.loads((results / "small-2" / "summary.json").read_text())["seeds"] == [1]
    assert (results / "latest").resolve() == results / "small-2"
    assert paralet("run", spec, "--results", results, "--seeds", "1", "--overwrite").exit_code == 0
    assert json.loads((results / "small" / "summary.json").read_text())["seeds"] == [1]
    assert not (results / "small-3").exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    folder.mkdir(parents=True)
    (folder / "notes.csv").write_text("mine")
    assert paralet("run", spec, "--results", folder.parent).exit_code == 0
    assert (folder / "notes.csv").read_text() == "mine"
    assert (folder.parent / "small-2" / "summary.json").is_file()


def test_another_spec_does_not_continue_an_interrupted_run(tmp_path: Path, machine: Machine) -> None:
    spec, results = write_spec(tmp_path, fabric="fluid"), tmp_path / "results"
    machine.left = 2
    paralet("run", spec, "--results", results)
    machine.left, machine.done = float("inf"), []
    assert paralet("run", spec, "--results", results, "--seeds", "3").exit_code == 0
    assert len(machine.done) == 6
    assert len(KeptRuns(results / "small" / "runs.jsonl").kept) == 2
