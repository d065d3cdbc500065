# SPDX-License-Identifier: Apache-2.0
"""`paralet run` on a direct-connect fabric: circuits, relays and the report of paths."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.analysis.observations import Observations

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


def ran(tmp_path: Path, spec: Path) -> Path:
    """The results of a run that went well."""
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "run", str(spec)]
    done = subprocess.run(
        [*command, "--results", str(tmp_path / "results")], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = [path for path in (tmp_path / "results").iterdir() if not path.is_symlink()]
    return folder


def run(tmp_path: Path, spec: Path) -> tuple[dict[str, Any], str]:
    """Summary and report of a run that went well."""
    folder = ran(tmp_path, spec)
    return json.loads((folder / "summary.json").read_text()), (folder / "report.html").read_text()


def test_topology_finder_joins_hosts_that_exchange_data(tmp_path: Path) -> None:
    summary, page = run(tmp_path, ROOT / "experiments" / "topoopt" / "found.yaml")
    (policy,) = summary["policies"]
    assert policy["verified"]
    # A matching beside the ring: nothing is relayed, where the ring alone would carry every byte twice.
    assert policy["bandwidth_tax"]["predicted"] == [1.0, 1.0]
    assert all(1 < counted < 1.5 for counted in policy["bandwidth_tax"]["counted"])
    assert "those that TopologyFinder chose" in page
    assert "h1 (nic1) → h3" in page
    assert "h5 (nic1) → h7" in page


def test_an_all_to_all_is_relayed_as_predicted_for_two_jobs(tmp_path: Path) -> None:
    document = {
        "name": "shards",
        "topology": {"direct_connect": {"hosts": 6, "degree": 1, "rate": "20 Mbit/s"}},
        "optical": {"strides": [1]},
        "workload": {"kind": "pairwise_alltoall", "bytes": 300_000},
        "placement": {"hosts": ["h1", "h3", "h5", "h2", "h4", "h6"]},
        "jobs": 2,
        "policies": [{"name": "relayed", "policy": "ecmp"}],
        "path_mtu": 4096,
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(document))
    summary, page = run(tmp_path, spec)
    (policy,) = summary["policies"]
    assert policy["verified"]
    # In one-way rings of three, half of what a rank sends crosses one circuit and half two.
    (predicted,), (counted,) = policy["bandwidth_tax"]["predicted"], policy["bandwidth_tax"]["counted"]
    assert predicted == 1.5
    assert predicted < counted < 1.3 * predicted
    assert "h1 (nic0) → h3 (nic0) → h5" in page
    assert "h2 (nic0) → h4" in page


def test_nccls_rings_run_over_the_plugin_on_nics_of_their_own(tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "experiments" / "topoopt" / "nccl.yaml").read_text())
    document["topology"]["direct_connect"]["hosts"] = 4
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(document))
    folder = ran(tmp_path, spec)
    (policy,) = json.loads((folder / "summary.json").read_text())["policies"]
    assert policy["verified"]
    assert policy["bandwidth_tax"]["predicted"] == [1.0]
    (run,) = Observations.load(folder / "observations.json").runs
    sent: dict[tuple[int, str | None], int] = {}
    for entry in run.lanes:  # lanes back to the sender carry receive advertisements only
        device = entry.rank, entry.lane.local
        sent[device] = max(sent.get(device, 0), entry.lane.tx_bytes)
    assert len(sent) == 4 * 2
    # 6 chunks of an eighth of the data each.
    assert set(sent.values()) == {6 * 1048576 // 8}
