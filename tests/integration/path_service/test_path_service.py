# SPDX-License-Identifier: Apache-2.0
"""The path service on the emulated fabric: shortened experiments of docs/path-service.md. They check ratios, not times.

That page reports the full experiments, with ten placements on a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ROOT / "experiments"
PARALET = (sys.executable, "-c", "from testbed.cli import main; main()")

pytestmark = [pytest.mark.paced, pytest.mark.long, pytest.mark.timeout(300)]


def half(experiment: str, folder: Path) -> Path:
    """An experiment of the project with half of its data, slices and restarts, and with its cuts at half of their time.

    A slice keeps its size, so elephants stay elephants.
    """
    document = yaml.safe_load((EXPERIMENTS / f"{experiment}.yaml").read_text())
    document["workload"]["bytes"] //= 2
    document["workload"]["slices"] //= 2
    events = document.pop("events", [])
    if restarts := [event for event in events if event.get("path_service") == "restart"]:
        document["events"] = restarts[: len(restarts) // 2]
    elif events:
        document["events"] = [{**event, "at_s": event["at_s"] / 2} for event in events]
    spec = folder / f"{experiment}.yaml"
    spec.write_text(yaml.safe_dump(document))
    return spec


def run(spec: Path, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Run a spec; its summary's policies by name. Every byte of every run has been right."""
    done = subprocess.run(
        [*PARALET, "run", spec, "--results", folder, "--json", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr  # 1 where a byte was wrong, or a message failed
    policies = {policy["name"]: policy for policy in json.loads(done.stdout)["policies"]}
    assert all(policy["verified"] for policy in policies.values())
    return policies


def test_planned_jobs_hardly_slow_each_other(tmp_path: Path) -> None:
    names = ("alone", "ecmp", "optimal")
    ran = run(
        half("two_jobs", tmp_path), tmp_path, "--seeds", "2", *(word for name in names for word in ("--policy", name))
    )
    assert ran["optimal"]["mean_s"] < 1.4 * ran["alone"]["mean_s"]  # 1.05 on a quiet machine
    assert ran["optimal"]["mean_s"] < 0.8 * ran["ecmp"]["mean_s"]
    for policy in ran.values():
        assert [len(times) for times in policy["jobs"].values()] == [2, 2]
        assert all(0.5 <= index <= 1 + 1e-9 for index in policy["fairness"])
    for clients in ran["optimal"]["clients"]:
        assert clients["connected"] == 16
        assert clients["assigns"] >= clients["announces"] >= 16
        assert clients["invalid"] == clients["dropped"] == 0


def test_devices_use_ecmp_while_the_path_service_is_down_and_plans_after_its_restart(tmp_path: Path) -> None:
    ran = run(EXPERIMENTS / "path_service_killed.yaml", tmp_path, "--seeds", "1", "--policy", "optimal")["optimal"]
    (events,) = ran["events"]
    assert [event["what"] for event in events] == ["kill path service", "start path service"]
    (clients,) = ran["clients"]
    assert clients["connections"] == 2 * 16  # everybody came back
    assert clients["connected"] == 16
    ((planned, without, again),) = ran["paces_bps"]
    assert planned > 1.2 * without
    assert again > 1.1 * without


def test_restarts_lose_nothing(tmp_path: Path) -> None:
    ran = run(half("path_service_restarts", tmp_path), tmp_path)["optimal"]
    (events,) = ran["events"]
    (clients,) = ran["clients"]
    assert len(events) >= 5  # ten where processes start within a second
    assert clients["connections"] >= 16 * 3
    assert clients["invalid"] == 0


def test_a_cut_link_is_avoided_by_the_plan(tmp_path: Path) -> None:
    ran = run(half("link_cut", tmp_path), tmp_path, "--seeds", "1", "--policy", "optimal", "--policy", "ecmp")
    for policy in ran.values():
        ((cut,),) = policy["events"]
        assert cut["what"] == "cut leaf1:5"
        assert 0 < cut["at_s"] < cut["done_s"]
    ((cut,),) = ran["optimal"]["events"]
    assert cut["sent_s"] is not None
    assert ran["optimal"]["service"][0]["links changed"] == 1
    assert ran["optimal"]["mean_s"] < 0.9 * ran["ecmp"]["mean_s"]
