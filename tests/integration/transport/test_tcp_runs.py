# SPDX-License-Identifier: Apache-2.0
"""`paralet run` with lanes over TCP: every flow goes as predicted, on Open vSwitch and on routers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from emul.routed.requirements import lack
from netmodel import IPPROTO_TCP, ROCE_PORT
from tests.integration.paralet import run

pytestmark = pytest.mark.long

SPEC: dict[str, Any] = {
    "name": "over-tcp",
    "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "20 Mbit/s"}},
    "workload": {"kind": "pairwise_alltoall", "bytes": 524288},  # ranks send to each other, also over pinned lanes
    "placement": {"rule": "cross_leaf", "ranks": 4},
    "seeds": 1,
}
PAIRS = 8
"""Ordered pairs of ranks on different leaves."""


def over_tcp(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "transport": "tcp", **options}


@pytest.mark.parametrize("fabric", ["mininet", "routed"])
def test_every_flow_goes_as_predicted(fabric: str, tmp_path: Path) -> None:
    policies = [over_tcp("random", policy="ecmp", m=4), over_tcp("pinned", policy="pinned", m=2)]
    if fabric == "routed":
        if (lacking := lack()) is not None:
            pytest.skip(lacking.what)
    else:
        policies.append(over_tcp("controller", policy="controller", elephant_bytes=4096))
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({**SPEC, "fabric": fabric, "policies": policies}))
    summary = run(spec, tmp_path)
    assert all(policy["verified"] for policy in summary["policies"])
    assert summary["predictions"]["matched"] == summary["predictions"]["checked"] >= PAIRS * (4 + 2)
    observations = json.loads((tmp_path / "over-tcp" / "observations.json").read_text())
    seen = [flow for one in observations["runs"] for flow in one["seen"]]
    assert {flow["protocol"] for flow in seen if flow["dst_port"] == ROCE_PORT} == {IPPROTO_TCP}
