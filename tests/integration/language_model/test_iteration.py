# SPDX-License-Identifier: Apache-2.0
"""Two iterations of GPT-22B with experts, real packets and small sizes: ranks compute, and send what the task graph
says."""

from __future__ import annotations

import csv
from pathlib import Path

from testbed import spec
from testbed.workloads.language_model import LanguageModel
from tests.integration import paralet

SPEC = Path(__file__).with_name("spec.yaml")


def test_processes_run_iterations(tmp_path: Path) -> None:
    summary = paralet.run(SPEC, tmp_path)
    (policy,) = summary["policies"]
    assert policy["verified"]
    assert 0 < summary["predictions"]["checked"] == summary["predictions"]["matched"]
    workload = spec.load(SPEC).spec.workload
    assert isinstance(workload, LanguageModel)
    assert policy["mean_s"] > summary["ideal_s"] > 0
    with (tmp_path / "language_model" / "flows.csv").open(newline="") as file:
        sent = {(int(row["src_rank"]), int(row["dst_rank"])): int(row["bytes"]) for row in csv.DictReader(file)}
    wanted: dict[tuple[int, int], int] = {}
    for transfer in workload.schedule(8, 1):
        wanted[transfer.src, transfer.dst] = wanted.get((transfer.src, transfer.dst), 0) + 8 * transfer.count
    # Of each half of a tensor group, devices 0 and 1 are copies of the first stage, 2 and 3 of the last.
    devices = [(a, b) for a in range(4) for b in range(4) if a != b and a + b != 3]
    assert wanted.keys() == {(2 * a + half, 2 * b + half) for a, b in devices for half in range(2)}
    assert sent == wanted
