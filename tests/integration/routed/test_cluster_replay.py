# SPDX-License-Identifier: Apache-2.0
"""`paralet cluster --replay` on routers: jobs over two pods, with real packets on the paths of the simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from emul.routed.requirements import lack
from testbed.run.replay_plan import plan_replay
from testbed.spec.cluster import load_cluster
from tests.integration.paralet import ROOT

LACK = lack()
pytestmark = pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else "")

JOBS = """JobID|Submit|ElapsedRaw|AllocTRES
wide|2026-01-01T00:00:00|100|gres/gpu=6
pair|2026-01-01T00:00:01|100|gres/gpu=2
next|2026-01-01T00:00:02|100|gres/gpu=8
"""
FRAME_BYTES = 4096 + 64


@pytest.mark.timeout(300)
def test_jobs_over_pods_load_the_links_that_they_have_in_the_simulation(tmp_path: Path) -> None:
    """Counted at every leaf's uplinks. `ecmp` draws paths, some of which share links, and others carry nothing."""
    (tmp_path / "jobs.txt").write_text(JOBS)
    document = {
        "name": "pods",
        "cluster": {
            "clos": {"pods": 2, "leaves": 2, "aggs": 2, "cores_per_agg": 2},
            "servers_per_leaf": 2,
            "gpus_per_server": 1,
        },
        "trace_file": {"file": "jobs.txt", "format": "sacct", "pattern": "ring", "communication": 0.9},
        "fidelity": "fair",
        "replay": {"fabric": "routed", "speedup": 100, "rate": "10 Mbit/s"},
        "strategies": [{"name": "ecmp", "placement": "packed", "network": "ecmp"}],
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "cluster", str(spec)]
    options = ["--replay", "--json", "--results", str(tmp_path)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    (strategy,) = summary["strategies"]
    assert summary["fabric"] == "routed"
    assert [job["job"] for job in strategy["jobs"]] == ["wide", "pair", "next"]
    assert not any(job["wrong_bytes"] for job in strategy["jobs"])

    plan, _ = plan_replay(load_cluster(spec))
    expected: Counter[str] = Counter()
    for job in plan.strategies[0].jobs:
        (row,) = job.workload.destinations
        for src, dst in enumerate(row):
            for path in job.paths.get(src, {}).get(dst, []):
                expected[path[1]] += job.workload.bytes
    assert 0 < len(expected) < len(strategy["uplink_bytes"])
    most = max(expected.values())
    assert most > min(expected.values())
    again = FRAME_BYTES * sum(job["retransmits"] for job in strategy["jobs"])
    for port, sent in strategy["uplink_bytes"].items():
        # Beside data: headers, acknowledgements of data that came here, and BGP.
        assert expected[port] <= sent <= 1.1 * expected[port] + 0.05 * most + again
