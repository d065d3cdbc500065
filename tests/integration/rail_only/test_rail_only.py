# SPDX-License-Identifier: Apache-2.0
"""Rail-only on an emulated fabric of 4 domains of 4 GPUs: traffic per rail, and the effect of a dead rail.

The experiments are those that users have, with half of their data.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from emul.shaping import burst_bytes
from netmodel import PortRef
from testbed.research.papers.rail_only import times

pytestmark = [
    pytest.mark.timeout(480),  # up to three runs, each a minute on a busy machine
    pytest.mark.long,
]

ROOT = Path(__file__).parents[3]
BYTES = 800_000
MTU_BYTES = 9000


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

    def refusal(self) -> str:
        """The error output of a failed run, without its progress."""
        assert self.process.returncode == 1, self.process.stderr
        (line,) = [line for line in self.process.stderr.splitlines() if line.startswith("paralet: ")]
        return line

    def sent(self, *switches: str) -> dict[str, int]:
        """Bytes that left by each port of those switches, over all runs."""
        totals: dict[str, int] = {}
        with (self.folder / "links.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if PortRef.parse(row["port"]).node in switches:
                    totals[row["port"]] = totals.get(row["port"], 0) + int(row["tx_bytes"])
        return totals


def document(name: str, **changes: Any) -> dict[str, Any]:
    """One of the experiments with half of the data and some keys replaced."""
    made = yaml.safe_load((ROOT / "experiments" / "rail_only" / f"{name}.yaml").read_text())
    made["workload"]["bytes"] = BYTES
    return {**made, **changes}


def test_a_hierarchical_allreduce_never_leaves_its_rail(tmp_path: Path) -> None:
    done = Done(tmp_path, document("allreduce", seeds=1))
    bursts_s = 2 * sum(8 * burst_bytes(rate, MTU_BYTES) / rate for rate in (10_000_000, 2_500_000))  # one a phase
    expected_s = times.all_reduce_s(times.Grid(4, 4, 10e6, 2.5e6), BYTES) - bursts_s
    assert expected_s == pytest.approx(done.summary["ideal_s"])
    assert done.best_s() > done.summary["ideal_s"]
    spines = done.sent("spine1", "spine2")
    assert len(spines) == 2 * 4
    assert set(spines.values()) == {0}
    rails = done.sent("rail1", "rail2", "rail3", "rail4")
    uplinks = {port: count for port, count in rails.items() if PortRef.parse(port).port > 4}
    assert len(uplinks) == 4 * 2
    assert set(uplinks.values()) == {0}
    payload = 2 * 3 * BYTES // 16  # two rings over the rail, three steps of a sixteenth each
    for port, count in rails.items():
        if port not in uplinks:
            assert payload < count < 1.3 * payload


def test_live_rails_carry_the_traffic_of_a_dead_rail_switch(tmp_path: Path) -> None:
    done = Done(tmp_path, document("failed_rail", seeds=1))
    assert done.best_s() > done.summary["ideal_s"]
    assert set(done.sent("rail2").values()) == {0}
    page = (done.folder / "report.html").read_text()
    assert "d1g1 (nic1) → d1g3 (nic0) → d2g3" in page  # by whom it is relayed
    assert not re.search(r"d\dg2 \(nic0\)", page)  # rail 2 is nobody's way
    payload = (12 + 4) * BYTES // 16
    for count in done.sent("rail1", "rail3", "rail4").values():
        assert payload < count < 1.3 * payload


def test_a_rail_that_dies_in_a_run_is_carried_by_the_others(tmp_path: Path) -> None:
    """The rings of rail 2 are under way when its switch dies; every byte arrives, over GPUs of both HB domains."""
    x, y, size = 3, 2, 1_200_000
    numbers = {"domains": y, "gpus_per_domain": x, "rail_rate": 2_500_000, "hb_rate": 10_000_000}
    changes = {
        "topology": {"rail_only": numbers},
        "workload": {"kind": "hierarchical_allreduce", "gpus_per_domain": x, "bytes": size},
        "events": [{"at_s": 1.5, "kill": "rail2"}],
    }
    done = Done(tmp_path, document("dying_rail", seeds=1, **changes))
    assert done.best_s() > done.summary["ideal_s"]
    payload = 2 * (y - 1) * size // (x * y)  # of each port of a rail
    for count in done.sent("rail2").values():
        assert 0.1 * payload < count < 0.9 * payload
    assert sum(done.sent("rail1", "rail2", "rail3").values()) > x * y * payload
    assert any(count > 1.1 * payload for count in done.sent("rail1", "rail3").values())


@pytest.mark.alone
def test_rail_only_is_slower_by_the_predicted_bandwidth_ratio(tmp_path: Path) -> None:
    """Equation 3 over Equation 2, at two ratios of rail to HB domain, on 2 domains of 4."""
    rail, pair = 2_500_000, BYTES / 8
    numbers = {"domains": 2, "gpus_per_domain": 4, "rail_rate": rail}

    def run(name: str, example: str, **topology: Any) -> float:
        made = {**document(example, seeds=2), "name": name}
        made["topology"] = {next(iter(made["topology"])): {**numbers, **topology}}
        made["policies"] = made["policies"][-1:]
        done = Done(tmp_path, made)
        assert done.best_s() > done.summary["ideal_s"]
        return done.best_s()

    reference = run("optimised", "rail_optimised_alltoall", hb_rate=4 * rail, spines=2)
    slowdowns = []
    for ratio, name in ((4, "quarter"), (1, "equal")):
        grid = times.Grid(4, 2, ratio * rail, rail)
        expected = times.rail_only_alltoall_s(grid, pair) / times.rail_optimised_alltoall_s(grid, pair)
        slowdowns.append(run(name, "alltoall", hb_rate=ratio * rail) / reference)
        assert 0.75 * expected < slowdowns[-1] < 1.3 * expected
    assert slowdowns[1] > 1.3 * slowdowns[0]  # 2.5 and 1.375 by the equations


def test_a_rail_that_dies_unannounced_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    made = document("failed_rail", seeds=1)
    del made["workload"]["failed_rails"]
    made["topology"]["rail_only"]["domains"] = 2
    made["events"] = [{"at_s": 0.3, "cut": port} for port in ("rail2:1", "rail2:2")]
    refusal = Done(tmp_path, made).refusal()
    assert "no path leads" in refusal
    assert "rail2:1, rail2:2 are cut" in refusal
    assert "workload.failed_rails" in refusal
