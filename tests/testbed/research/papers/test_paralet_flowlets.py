# SPDX-License-Identifier: Apache-2.0
"""The size of flowlets with real packets: the committed times, and what the page says of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest

from testbed.research.papers.paralet import flowlets
from testbed.research.papers.paralet.real_runs import FABRICS
from testbed.spec import load

ROOT = Path(__file__).parents[4]
TIMES = flowlets.measured()


def test_every_spec_has_the_sizes_and_seeds_that_were_measured() -> None:
    specs = [load(file) for file in sorted((ROOT / "experiments" / "flowlets").glob("*.yaml"))]
    assert {experiment.spec.name for experiment in specs} == {*flowlets.CONDITIONS}
    for experiment in specs:
        assert [policy.name for policy in experiment.spec.policies] == list(flowlets.SIZES)
        for fabric in FABRICS:
            for policy in flowlets.SIZES:
                assert len(TIMES[fabric, experiment.spec.name, policy]) == experiment.spec.seeds
    assert all(time > 1 for each in TIMES.values() for time in each)  # no run beats the ideal


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_time_that_changes_by_ten_per_cent_changes_the_page(factor: float) -> None:
    with (ROOT / "docs" / "papers" / "paralet.csv").open() as file:
        ours = {row["what"]: row["ours"] for row in csv.DictReader(file)}
    assert all(ours[claim.what] == f"{claim.ours:.3f}" for claim in flowlets.claims(TIMES))
    for name in flowlets.CONDITIONS:
        place = "real packets", name, "by-rule"
        changed = {**TIMES, place: [factor * time for time in TIMES[place]]}
        assert any(ours[claim.what] != f"{claim.ours:.3f}" for claim in flowlets.claims(changed))


def test_a_size_that_beats_the_rule_by_a_tenth_differs() -> None:
    for fastest, verdict in ((1.0, "agrees"), (0.9, "differs")):
        took = dict.fromkeys(flowlets.SIZES, (1.0,)) | {"16-KiB": (fastest,), "512-KiB": (2.0,)}
        times = {("real packets", name, size): took[size] for name in flowlets.CONDITIONS for size in flowlets.SIZES}
        verdicts = {claim.verdict for claim in flowlets.claims(times) if claim.relation == "equals"}
        assert verdicts == {verdict}


def test_the_verdict_is_that_of_the_columns_of_the_table() -> None:
    """A column that is better than the rule's is not left out, and not merged with it."""
    for claim in flowlets.claims(TIMES):
        (name,) = (name for name, about in flowlets.CONDITIONS.items() if f", {about}:" in claim.what)
        mean = {size: fmean(TIMES["real packets", name, size]) for size in flowlets.SIZES}
        better = min(mean.values()) if claim.relation == "equals" else mean["by-rule"]
        shown = mean["by-rule"] if claim.relation == "equals" else mean["512-KiB"]
        assert claim.ours == pytest.approx(shown / better)
    took = dict.fromkeys(flowlets.SIZES, (1.0,)) | {"4-KiB": (0.9,), "512-KiB": (2.0,)}
    times = {("real packets", name, size): took[size] for name in flowlets.CONDITIONS for size in flowlets.SIZES}
    assert {claim.verdict for claim in flowlets.claims(times) if claim.relation == "equals"} == {"differs"}


def test_the_length_of_flowlets_by_rule_is_that_of_the_lanes(tmp_path: Path) -> None:
    for name in flowlets.CONDITIONS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps({"spec": {"workload": {"bytes": 8192}}}))
        lanes = ["policy,seed,rank,flowlets", "by-rule,1,0,1", "by-rule,1,0,1", "by-rule,1,1,1", "4-KiB,1,0,100"]
        (tmp_path / name / "lanes.csv").write_text("\n".join(lanes))
    lines = flowlets.chosen(tmp_path).splitlines()
    assert lines == [f"{name}: 4,096 to 8,192 B" for name in flowlets.CONDITIONS]


def test_the_table_of_the_page_has_the_measured_means() -> None:
    page = (ROOT / "testbed" / "research" / "papers" / "paralet" / "introduction.md").read_text("utf-8")
    assert flowlets.table(TIMES) in page
