# SPDX-License-Identifier: Apache-2.0
"""Rail-only on a real fabric of 4 domains of 4: what stays on its rail, and what a dead rail does.

The experiments are those that users have, with half of their data.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.papers.rail_only import times

pytestmark = pytest.mark.timeout(480)  # up to three runs, which a busy machine takes a minute each for

ROOT = Path(__file__).parents[3]
BYTES = 800_000


class Done:
    """A run of `paralet run` and its results."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        spec = folder / f"{document['name']}.spec.yaml"
        spec.write_text(yaml.safe_dump(document))
        argv = [
            sys.executable,
            "-c",
            "from testbed.cli import main; main()",
            "run",
            spec,
            "--json",
            "--results",
            folder,
        ]
        self.process = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        self.folder = folder / document["name"]

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of a run that went well."""
        assert self.process.returncode == 0, self.process.stderr
        summary: dict[str, Any] = json.loads(self.process.stdout)
        assert all(policy["verified"] for policy in summary["policies"])
        return summary

    def best_s(self) -> float:
        """The shortest completion: what else the machine does only adds to it."""
        (policy,) = self.summary["policies"]
        return float(min(policy["completions_s"]))

    def sent(self, *switches: str) -> dict[str, int]:
        """Bytes that left by each port of those switches, over all runs."""
        totals: dict[str, int] = {}
        with (self.folder / "links.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if row["port"].partition(":")[0] in switches:
                    totals[row["port"]] = totals.get(row["port"], 0) + int(row["tx_bytes"])
        return totals


def document(name: str, **changes: Any) -> dict[str, Any]:
    """One of the experiments with half of the data and some keys replaced."""
    made = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    made["workload"]["bytes"] = BYTES
    return {**made, **changes}


def test_a_hierarchical_allreduce_never_leaves_its_rail(tmp_path: Path) -> None:
    done = Done(tmp_path, document("rail_only_allreduce", seeds=1))
    assert done.summary["ideal_s"] == pytest.approx(times.all_reduce_s(times.Grid(4, 4, 10e6, 2.5e6), BYTES))
    spines = done.sent("spine1", "spine2")
    assert len(spines) == 2 * 4
    assert set(spines.values()) == {0}
    rails = done.sent("rail1", "rail2", "rail3", "rail4")
    uplinks = {port: count for port, count in rails.items() if int(port.partition(":")[2]) > 4}
    assert len(uplinks) == 4 * 2
    assert set(uplinks.values()) == {0}
    payload = 2 * 3 * BYTES // 16  # two rings over the rail, three steps of a sixteenth each
    for port, count in rails.items():
        if port not in uplinks:
            assert payload < count < 1.3 * payload


def test_live_rails_carry_what_a_dead_rail_switch_cannot(tmp_path: Path) -> None:
    done = Done(tmp_path, document("rail_only_failed_rail", seeds=1))
    assert done.best_s() > 0.99 * done.summary["ideal_s"]
    assert set(done.sent("rail2").values()) == {0}
    payload = (12 + 4) * BYTES // 16
    for count in done.sent("rail1", "rail3", "rail4").values():
        assert payload < count < 1.3 * payload
