# SPDX-License-Identifier: Apache-2.0
"""Version, commit, command and machine that results name."""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import hostlib
from testbed import provenance
from testbed.cli import main
from tests.testbed.experiments import write_spec

ROOT = Path(__file__).parents[2]


def test_the_command_is_quoted_as_a_shell_takes_it() -> None:
    made = provenance.provenance(["/usr/bin/paralet", "run", "my spec.yaml", "--seeds", "2"])
    assert made.command == "paralet run 'my spec.yaml' --seeds 2"
    assert made.cores == len(os.sched_getaffinity(0))
    assert made.kernel.startswith("Linux ")
    assert datetime.fromisoformat(made.date).utcoffset() is not None


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the sources are not a checkout of git")
def test_a_checkout_names_its_commit() -> None:
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.provenance(["paralet"]).commit.removesuffix("-dirty") == head


def test_a_folder_that_is_no_checkout_has_the_commit_of_its_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "testbed" / "provenance.py"))
    monkeypatch.setattr(hostlib, "build_commit", lambda: "0123456789ab")
    assert provenance.provenance(["paralet"]).commit == "0123456789ab"
    (tmp_path / ".git").write_text("gitdir: /nowhere")
    assert provenance.provenance(["paralet"]).commit == "unknown"


@pytest.mark.usefixtures("no_plots")
def test_a_run_and_a_later_report_name_the_command_that_ran(tmp_path: Path) -> None:
    """`paralet report` keeps what the run wrote, and refuses a damaged file in one sentence."""
    spec, folder = write_spec(tmp_path, fabric="fluid"), tmp_path / "results" / "small"
    done = CliRunner().invoke(main, ["run", str(spec), "--results", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    written = json.loads((folder / "provenance.json").read_text())
    assert json.loads((folder / "summary.json").read_text())["provenance"] == written
    assert written["date"] in (folder / "report.html").read_text()
    (folder / "provenance.json").write_text(json.dumps(written | {"command": "an <earlier> one"}))
    done = CliRunner().invoke(main, ["report", str(folder), "--json"])
    assert json.loads(done.stdout)["provenance"]["command"] == "an <earlier> one"
    assert "an &lt;earlier&gt; one" in (folder / "report.html").read_text()
    (folder / "provenance.json").write_text('{"version": 1}')
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 2
    assert "provenance.json is damaged, or is of another version of paralet" in done.output
    (folder / "provenance.json").unlink()
    done = CliRunner().invoke(main, ["report", str(folder), "--json"])
    assert json.loads(done.stdout)["provenance"] is None
