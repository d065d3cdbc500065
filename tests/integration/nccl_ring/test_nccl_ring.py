# SPDX-License-Identifier: Apache-2.0
"""All-reduces over the NCCL net plugin on an emulated fabric: correct sums and predicted paths, for every policy.

Every rank is `paralet-nccl-driver` on its host, which loads the plugin and calls it as NCCL does.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
SPEC = Path(__file__).with_name("spec.yaml")
HOSTS = {"10.0.0.1": "h1", "10.0.0.2": "h2", "10.0.1.1": "h3", "10.0.1.2": "h4"}
POLICIES = ["ecmp", "paralet-4", "adaptive-4", "pinned"]


@dataclass(frozen=True)
class Done:
    folder: Path
    status: int
    errors: str
    summary: dict[str, Any]

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))


def run(folder: Path, **changes: Any) -> Done:
    """`paralet run` of the spec beside this file, with some keys replaced."""
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump({**yaml.safe_load(SPEC.read_text()), **changes}))
    argv = [sys.executable, "-c", "from testbed.cli import main; main()"]
    done = subprocess.run(
        [*argv, "run", spec, "--results", folder / "results", "--json"],
        cwd=ROOT,
        env={**os.environ, "NCCL_DEBUG": "INFO"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    summary = json.loads(done.stdout) if done.stdout else {}
    return Done(folder / "results" / "nccl-ring", done.returncode, done.stderr, summary)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run(tmp_path_factory.mktemp("ring"))


def assert_right_and_as_predicted(done: Done) -> None:
    assert done.status == 0, done.errors
    assert [policy["name"] for policy in done.summary["policies"]] == POLICIES
    assert all(policy["verified"] for policy in done.summary["policies"])
    assert 0 < done.summary["predictions"]["checked"] == done.summary["predictions"]["matched"]
    assert all(policy["mean_s"] > done.summary["ideal_s"] for policy in done.summary["policies"])


def test_ring_sums_are_right_and_paths_as_predicted(ring: Done) -> None:
    assert_right_and_as_predicted(ring)


def test_tree_sums_are_right_and_paths_as_predicted(tmp_path: Path) -> None:
    workload = {"kind": "nccl_tree_allreduce", "bytes": 200_020, "slices": 5}
    assert_right_and_as_predicted(run(tmp_path, workload=workload))


def test_the_plugin_used_the_settings_of_each_policy(ring: Done) -> None:
    log = (ring.folder / "logs" / "agent-h1.log").read_text()
    banners = [line for line in log.splitlines() if "back end soft" in line]
    lanes_and_policies = [(1, "ecmp"), (4, "ecmp"), (4, "adaptive"), (1, "pinned")]
    assert len(banners) == len(lanes_and_policies)
    for banner, (lanes, policy) in zip(banners, lanes_and_policies, strict=True):
        assert f"m = {lanes} lanes, policy {policy}" in banner
        assert "10.0.0.1" in banner
        assert "path MTU 2048" in banner


def test_every_pair_sends_the_bytes_of_the_schedule(ring: Done) -> None:
    demands = {(row["policy"], row["src_host"], row["dst_host"]): int(row["bytes"]) for row in ring.table("flows.csv")}
    assert len(demands) == len(POLICIES) * 4
    lanes = defaultdict[tuple[str, str, str], list[dict[str, str]]](list)
    for row in ring.table("lanes.csv"):
        lanes[row["policy"], row["host"], HOSTS[row["peer"]]].append(row)
    for pair, count in demands.items():
        sent, again = (sum(int(row[name]) for row in lanes[pair]) for name in ("tx_bytes", "retransmits"))
        assert count <= sent <= count + 2048 * again, (pair, lanes[pair])


def test_pinned_flows_share_no_uplink(ring: Done) -> None:
    rows = [row for row in ring.table("links.csv") if row["uplink_to"] and row["policy"] == "pinned"]
    assert len(rows) == 4
    share = 2 * 3 * 400_020 // 4
    for row in rows:  # packets sent again, headers and acknowledgements add a little
        assert 0.99 * share <= int(row["predicted_payload_bytes"]) < 1.2 * share
        assert share < int(row["tx_bytes"]) < 1.3 * share


def test_the_plugin_announces_its_elephants_and_takes_the_planned_paths(tmp_path: Path) -> None:
    policy = {"name": "optimal", "policy": "controller", "planner": "optimal"}
    done = run(tmp_path, policies=[{**policy, "elephant_bytes": 1024, "assign_wait_s": 10.0}])
    assert done.status == 0, done.errors
    (result,) = done.summary["policies"]
    assert result["verified"]
    assert 0 < done.summary["predictions"]["checked"] == done.summary["predictions"]["matched"]
    (clients,) = result["clients"]
    assert clients["connected"] == 4
    assert 4 <= clients["assigned"] <= clients["announced"]
    assert clients["invalid"] == clients["dropped"] == 0
    log = (done.folder / "logs" / "agent-h1.log").read_text()
    assert "m = 1 lanes, policy controller" in log


def test_a_run_beyond_its_time_limit_fails_with_one_sentence(tmp_path: Path) -> None:
    silent = {"at_s": 0.05, "links": {"h1:1": {"loss": "100 %"}}}
    done = run(tmp_path, timeouts={"run_s": 0.5}, events=[silent])
    assert done.status == 1
    *_, sentence = done.errors.splitlines()
    assert sentence.startswith("paralet: the agent on h")
    # Any agent may be the first: one that lacks a message, or one whose sends are not acknowledged.
    assert re.search(r"timed out after 0\.5 s waiting for (message|its own sends)", sentence)
