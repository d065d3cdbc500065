# SPDX-License-Identifier: Apache-2.0
"""A training script between emulated hosts, over Gloo and over paralet: the same losses, on the predicted paths."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import paralet

SPEC = Path(__file__).with_name("spec.yaml")

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: run 'make torch'"),
    pytest.mark.timeout(580),
    pytest.mark.long,
]


def run(results: Path, spec: Path = SPEC) -> dict[str, Any]:
    """The summary of a run of `spec`."""
    return paralet.run(spec, results, timeout_s=560)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The result folder and the summary of a run."""
    results = tmp_path_factory.mktemp("torch")
    return results / "torch", run(results)


def test_losses_are_equal_under_every_policy_of_paralet(done: tuple[Path, dict[str, Any]]) -> None:
    gloo, *ours = done[1]["policies"]
    assert [policy["name"] for policy in ours] == ["paralet-4", "pinned", "controller"]
    assert all(policy["verified"] for policy in (gloo, *ours))
    ((losses,),) = ours[0]["losses"]
    assert len(losses) == 3
    assert all(policy["losses"] == [[losses]] for policy in ours)
    assert gloo["losses"][0][0] == pytest.approx(losses, rel=1e-4)  # another order of additions


def test_flows_take_the_predicted_paths(done: tuple[Path, dict[str, Any]]) -> None:
    assert 0 < done[1]["predictions"]["checked"] == done[1]["predictions"]["matched"]


def test_no_policy_beats_the_ideal(done: tuple[Path, dict[str, Any]]) -> None:
    assert all(policy["mean_s"] > done[1]["ideal_s"] for policy in done[1]["policies"])


def test_lanes_carry_the_gradients_around_the_ring(done: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = done
    with (folder / "lanes.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "pinned"]
    workload = summary["spec"]["workload"]
    ring = workload["steps"] * 4 * 2 * 3 * workload["bytes"] // 4
    assert ring <= sum(int(row["tx_bytes"]) for row in rows) < 1.3 * ring


def test_the_report_shows_steps_and_losses(done: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = done
    page = (folder / "report.html").read_text()
    assert "Steps and losses" in page
    assert (folder / "losses.png").is_file()
    with (folder / "steps.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4 * 3
    for policy in summary["policies"]:
        assert 0 < policy["step_s"]["median"] <= policy["step_s"]["p99"]


def test_training_goes_on_over_other_links_when_one_is_cut(done: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The pinned ring has a flow on each uplink of leaf1, so that one of them is cut off."""
    changed = yaml.safe_load(SPEC.read_text())
    changed["workload"]["script"] = done[1]["spec"]["workload"]["script"]
    changed["policies"] = [policy for policy in changed["policies"] if policy["name"] == "pinned"]
    changed["events"] = [{"at_s": 0.2, "cut": "leaf1:3"}]
    spec = tmp_path / "cut.yaml"
    spec.write_text(yaml.safe_dump(changed))
    (pinned,) = run(tmp_path, spec)["policies"]
    (happened,) = pinned["events"][0]
    assert happened["what"] == "cut leaf1:3"
    assert pinned["verified"]
    assert pinned["losses"] == next(policy for policy in done[1]["policies"] if policy["name"] == "pinned")["losses"]
