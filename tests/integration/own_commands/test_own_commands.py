# SPDX-License-Identifier: Apache-2.0
"""Programs of a user's own on the emulated fabric: iperf3, whose bytes are in the counters of the links."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.integration import paralet

SPEC = paralet.ROOT / "experiments" / "iperf3.yaml"


def test_iperf3_sends_between_hosts(tmp_path: Path) -> None:
    summary = paralet.run(SPEC, tmp_path)
    folder = tmp_path / "iperf3"
    moved = summary["spec"]["workload"]["bytes"]
    with (folder / "links.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["port"] in ("leaf1:1", "leaf1:2")]
    assert len(rows) == 2 * len(summary["seeds"])
    assert all(moved < int(row["tx_bytes"]) < 1.2 * moved for row in rows)
    assert all(time_s > summary["ideal_s"] for time_s in summary["policies"][0]["completions_s"])
    assert "iperf Done." in (folder / "logs" / "agent-h1.log").read_text()
    assert "Whether the bytes are right is not known" in (folder / "report.html").read_text()
