# SPDX-License-Identifier: Apache-2.0
"""Lanes of a host with real packets: the committed times, and what the page says of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from testbed.research.papers.paralet import host_lanes
from testbed.research.papers.paralet.real_runs import FABRICS
from testbed.spec import load

ROOT = Path(__file__).parents[4]
TIMES = host_lanes.measured()


def test_every_spec_has_the_policies_and_seeds_that_were_measured() -> None:
    specs = [load(file) for file in sorted((ROOT / "experiments" / "host_lanes").glob("*.yaml"))]
    assert {experiment.spec.name for experiment in specs} == {*host_lanes.CONDITIONS}
    for experiment in specs:
        lanes = {policy.name: (policy.m, policy.lanes_per) for policy in experiment.spec.policies}
        assert lanes == {host_lanes.PEER: (8, "peer"), host_lanes.HOST: (8, "host")}
        for fabric in FABRICS:
            for policy in lanes:
                assert len(TIMES[fabric, experiment.spec.name, policy]) == experiment.spec.seeds
    assert all(time > 1 for each in TIMES.values() for time in each)  # no run beats the ideal


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_time_that_changes_by_ten_per_cent_changes_page_and_verdict(factor: float) -> None:
    with (ROOT / "docs" / "papers" / "paralet.csv").open() as file:
        ours = {row["what"]: row["ours"] for row in csv.DictReader(file)}
    assert all(ours[claim.what] == f"{claim.ours:.3f}" for claim in host_lanes.claims(TIMES))
    for number, name in enumerate(host_lanes.CONDITIONS):
        same = {
            (FABRICS[0], each, policy): [1.5] for each in host_lanes.CONDITIONS for policy in ("per-peer", "per-host")
        }
        changed = {**same, (FABRICS[0], name, host_lanes.HOST): [factor * 1.5]}
        verdicts = [claim.verdict for claim in host_lanes.claims(changed)]
        assert verdicts[number] == "differs"
        assert verdicts.count("agrees") == len(verdicts) - 1


def test_the_table_of_the_page_has_the_measured_means() -> None:
    page = (ROOT / "testbed" / "research" / "papers" / "paralet" / "introduction.md").read_text("utf-8")
    assert host_lanes.table(TIMES) in page
