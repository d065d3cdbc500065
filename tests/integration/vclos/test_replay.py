# SPDX-License-Identifier: Apache-2.0
"""`paralet cluster --replay` as a user runs it: jobs that start and end during a run, on links of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.paced

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "experiments" / "clusters" / "replay.yaml"
FRAME_BYTES = 4096 + 64
"""A full packet."""
LATE_BYTES = 1_000
"""A few acknowledgements, which a slow machine may forward after it has counted."""


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The strategy `vclos` of the example, twice as fast."""
    folder = tmp_path_factory.mktemp("replay")
    document = yaml.safe_load(EXAMPLE.read_text())
    document["strategies"] = [strategy for strategy in document["strategies"] if strategy["name"] == "vclos"]
    document["trace_file"]["file"] = str(EXAMPLE.with_name(document["trace_file"]["file"]))
    document["replay"]["speedup"] *= 2
    (folder / "spec.yaml").write_text(yaml.safe_dump(document))
    command = [sys.executable, "-c", "from testbed.cli import main; main()", "cluster", str(folder / "spec.yaml")]
    options = ["--replay", "--json", "--results", str(folder)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary == json.loads((folder / "replay-cluster" / "replay.json").read_text())
    (strategy,) = summary["strategies"]
    return {job["job"]: job for job in strategy["jobs"]} | {"": strategy}


def jobs_of(replayed: dict[str, Any]) -> list[dict[str, Any]]:
    return [job for name, job in replayed.items() if name]


@pytest.mark.timeout(300)
def test_every_byte_arrives_and_jobs_end_in_the_order_of_the_simulation(replayed: dict[str, Any]) -> None:
    jobs = jobs_of(replayed)
    assert [job["job"] for job in jobs] == ["a", "b", "c", "d", "e", "f"]
    for job in jobs:
        assert job["wrong_bytes"] == 0
        assert job["bytes"] > 0
        # Links cannot be faster than they are, except for what a token bucket has saved while the job computed.
        assert job["running_s"]["ratio"] > 0.8
        assert job["start_s"]["measured"] >= job["start_s"]["simulated"] - 1e-6
    # A job ends after those for which it waited, and after those that ended long before it in the simulation while
    # others were waiting. Jobs that run side by side may end in another order on a slow machine.
    pairs = 0
    for early, late in permutations(jobs, 2):
        ratio = late["end_s"]["simulated"] / early["end_s"]["simulated"]
        if early["job"] in late["after"] or (late["after"] and ratio > 2.5):
            pairs += 1
            assert early["end_s"]["measured"] < late["end_s"]["measured"]
    assert pairs >= 7


@pytest.mark.timeout(300)
def test_jobs_that_wait_for_links_start_when_these_were_released(replayed: dict[str, Any]) -> None:
    waits = {job["job"]: job["after"] for job in jobs_of(replayed)}
    assert (waits["a"], waits["b"], waits["c"]) == ([], [], [])
    assert "a" in waits["d"]
    assert "b" in waits["e"]
    for name, others in waits.items():
        for other in others:
            assert replayed[name]["start_s"]["measured"] >= replayed[other]["end_s"]["measured"]


@pytest.mark.timeout(300)
def test_a_link_carries_the_bytes_of_the_job_that_has_it_and_no_others(replayed: dict[str, Any]) -> None:
    counted: dict[str, list[int]] = {}
    for job in jobs_of(replayed):
        for port, count in job["uplink_bytes"].items():
            counted.setdefault(port, []).append(count)
        if job["leaves"] < 2:
            assert job["uplink_bytes"] == {}
            continue
        # In an all-to-all a rank sends equally much to every other; those on its leaf need no uplink.
        far = 1 - (job["gpus"] // job["leaves"] - 1) / (job["gpus"] - 1)
        payload = job["bytes"] * far
        again = (job["retransmits"] + job["gpus"] * (job["gpus"] - 1)) * FRAME_BYTES  # and warm-up
        assert payload <= sum(job["uplink_bytes"].values()) <= 1.1 * payload + again
        assert min(job["uplink_bytes"].values()) > 0.5 * max(job["uplink_bytes"].values())
    whole = replayed[""]
    assert sum(whole["strays"].values()) <= len(jobs_of(replayed))  # late acknowledgements, at most
    for port, count in whole["uplink_bytes"].items():
        own = counted.get(port, [])
        assert sum(own) <= count <= sum(own) + LATE_BYTES * len(own)
