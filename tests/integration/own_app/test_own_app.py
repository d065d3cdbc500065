# SPDX-License-Identifier: Apache-2.0
"""Switches that an os-ken app of the user's programs in place of ours."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.integration import paralet

EXAMPLE = paralet.ROOT / "experiments" / "own_app" / "spine_by_receiver.yaml"


def written(folder: Path, **changes: Any) -> Path:
    """The example with these changes: a ring over both leaves, whose pairs have eight lanes."""
    spec = yaml.safe_load(EXAMPLE.read_text())
    spec |= {
        "openflow": {"app": str(EXAMPLE.with_suffix(".py"))},
        "workload": {"kind": "ring_allreduce", "bytes": 1_000_000},
        "placement": {"rule": "in_order"},
        "policies": [{"name": "ecmp", "policy": "ecmp", "m": 8}],
        "seeds": 1,
        **changes,
    }
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    return file


def sent(folder: Path) -> dict[str, int]:
    """The bytes that each port of a switch has sent."""
    with (folder / "links.csv").open(newline="") as file:
        return {row["port"]: int(row["tx_bytes"]) for row in csv.DictReader(file)}


def test_the_users_app_decides_on_the_paths(tmp_path: Path) -> None:
    """h2 sends to h3, and h4 to h1: both have the first spine, whatever the ports of their eight lanes."""
    summary = paralet.run(written(tmp_path), tmp_path / "results")
    bytes_of = sent(tmp_path / "results" / "spine_by_receiver")
    assert summary["policies"][0]["verified"]
    assert summary["predictions"] == {"checked": 0, "matched": 0}
    for leaf in ("leaf1", "leaf2"):
        assert bytes_of[f"{leaf}:3"] > 1_000_000
        assert bytes_of[f"{leaf}:4"] < 100_000  # acknowledgements, whose receivers have the other spine


def test_the_users_app_routes_around_a_dead_link(tmp_path: Path) -> None:
    events = [{"at_s": 0.1, "cut": "leaf1:3"}, {"at_s": 0.4, "mend": "leaf1:3"}]
    summary = paralet.run(written(tmp_path, events=events), tmp_path / "results")
    bytes_of = sent(tmp_path / "results" / "spine_by_receiver")
    assert summary["policies"][0]["verified"]
    assert bytes_of["leaf1:4"] > 100_000
    cut, _ = summary["policies"][0]["events"][0]
    assert cut["concerned"] == ["leaf1:1", "leaf1:2", "leaf2:1", "leaf2:2"]  # nobody knows whose path it was


def test_what_the_users_app_raises_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    app = EXAMPLE.with_suffix(".py").read_text().replace("self.names[event.msg.datapath_id]]", "self.nothing]")
    (tmp_path / "mine.py").write_text(app)
    spec = written(tmp_path, openflow={"app": "mine.py"})
    argv = [
        sys.executable,
        "-c",
        "from testbed.cli import main; main()",
        "run",
        spec,
        "--results",
        tmp_path / "results",
    ]
    done = subprocess.run(argv, cwd=paralet.ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "AttributeError" in done.stderr.splitlines()[-1]
    assert "openflow-app.log" in done.stderr.splitlines()[-1]
