# SPDX-License-Identifier: Apache-2.0
"""The real NCCL between emulated hosts: right sums over its own sockets and over the plugin, on the predicted paths."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.nccl import devices

ROOT = Path(__file__).parents[3]
SPEC = Path(__file__).with_name("spec.yaml")
ARGV = [sys.executable, "-c", "from testbed.cli import main; main()", "run"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the summary of a run."""
    if not devices.installed():
        pytest.skip("NCCL is not installed: `make nccl` installs it")
    results = tmp_path_factory.mktemp("nccl")
    argv = [*ARGV, SPEC, "--results", results, "--json"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    return results / "nccl-real", json.loads(ended.stdout)


@pytest.mark.timeout(300)
def test_every_policy_gives_the_right_sums_on_the_predicted_paths(done: tuple[Path, dict[str, Any]]) -> None:
    _, summary = done
    assert [policy["name"] for policy in summary["policies"]] == ["socket", "paralet-4", "pinned", "controller"]
    assert all(policy["verified"] for policy in summary["policies"])
    assert all(policy["mean_s"] > summary["ideal_s"] for policy in summary["policies"])
    assert 0 < summary["predictions"]["checked"] == summary["predictions"]["matched"]


def test_nccls_log_says_which_network_it_used(done: tuple[Path, dict[str, Any]]) -> None:
    log = (done[0] / "logs" / "agent-h1.log").read_text()
    for network in ("NET/Socket/0", "NET/paralet/0"):
        assert f"via {network}" in log
    assert "m = 4 lanes, policy ecmp" in log


def test_lanes_carry_the_bytes_of_the_ring(done: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = done
    with (folder / "lanes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sent = sum(int(row["tx_bytes"]) for row in rows if row["policy"] == "pinned")
    ring = 2 * 4 * (2 * 3 * 400_020 // 4)  # iterations, ranks, bytes of each
    assert ring * 0.99 <= sent < 1.3 * ring


def test_a_release_that_is_not_installed_is_one_sentence(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    changed = yaml.safe_load(SPEC.read_text())
    changed["workload"]["version"] = "1.2.3"
    spec.write_text(yaml.safe_dump(changed))
    ended = subprocess.run([*ARGV, spec, "--results", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2, ended.stderr
    assert "NCCL 1.2.3 is not installed" in ended.stderr
    assert "Traceback" not in ended.stderr
