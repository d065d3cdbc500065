# SPDX-License-Identifier: Apache-2.0
"""An experiment spec on fabric `softroce`: the runner as `paralet run` starts it, and its observations.

The engine's `verbs` back end drives the kernel's rxe at every host; every byte is compared, and every flow has to take
the uplinks that were predicted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emul import sandbox
from testbed import spec
from testbed.analysis import metrics
from testbed.analysis.flows import check_flows, flows_of
from testbed.analysis.observations import Observations
from tests.softroce.interop.conftest import PROPERTY

ROOT = Path(__file__).parents[3]
SPECS = {
    "ring all-reduce, ECMP and pinned paths over 2 uplinks": ROOT / "experiments" / "softroce.yaml",
    "ring all-reduce over the NCCL plugin, ECMP and pinned paths": Path(__file__).with_name("nccl.yaml"),
}
LIMIT_S = 1400  # it takes two minutes on an idle machine; the emulated one gets what others leave

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not sandbox.inside(), reason="the fabric comes up in a guest or a sandbox only"),
]


@pytest.mark.parametrize("what", SPECS)
def test_a_ring_over_verbs_on_rxe(tmp_path: Path, record_property: Callable[[str, object], None], what: str) -> None:
    record_property(PROPERTY, (what, "verbs to verbs", "MTU 1024"))
    specification = SPECS[what]
    out = tmp_path / "observations.json"
    argv = [
        sys.executable,
        "-m",
        "testbed.run.runner",
        "--spec",
        specification,
        "--out",
        out,
        "--log-dir",
        tmp_path / "logs",
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    logs = "".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted((tmp_path / "logs").glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    experiment, observations = spec.load(specification), Observations.load(out)
    runs = flows_of(experiment, observations)
    results = metrics.by_policy(experiment, runs)
    assert {result.name for result in results} == {policy.name for policy in experiment.spec.policies}
    assert all(result.verified for result in results)
    assert {row.lane.port_method for run in observations.runs for row in run.lanes} == {"flow_label"}
    checks = [check for check in check_flows(experiment, runs) if check.tx_bytes]
    assert checks
    assert [check for check in checks if not (check.checked and check.matched)] == []
