# SPDX-License-Identifier: Apache-2.0
"""Figures 5 and 11 of vClos: scaling factors by hand, and the hundred jobs with real packets."""

from __future__ import annotations

import csv
from collections import Counter
from fractions import Fraction
from math import perm
from pathlib import Path
from statistics import fmean, median

import pytest

from testbed.research.papers.vclos import replayed, scaling
from testbed.spec.cluster import load_cluster

ROOT = Path(__file__).parents[4]
SPEEDUP = 25
"""Of the spec's `replay`."""


def committed() -> dict[str, str]:
    with (ROOT / "docs" / "papers" / "vclos.csv").open() as file:
        return {row["what"]: row["ours"] for row in csv.DictReader(file)}


def test_flows_share_uplinks_as_often_as_random_choices_do() -> None:
    """Four flows of each leaf take eight uplinks: on two leaves none shares with (8 x 7 x 6 x 5 / 8^4)^2."""
    assert scaling.shared(4) == scaling.shared(8) == (1,)
    for leaves in (2, 4):
        drawn = Counter(scaling.shared(8 * leaves))
        alone = Fraction(perm(8, 4), 8**4) ** leaves
        assert drawn[1] / drawn.total() == pytest.approx(float(alone), abs=0.03)


def test_another_seed_only_renames_uplinks(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scaling.shared(32)
    monkeypatch.setattr(scaling, "_SEED", 12_345)
    assert scaling.shared.__wrapped__(32) == expected


def test_an_all_reduce_takes_as_many_times_as_long_as_flows_share_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of 0.1 and two flows: 0.9 of 1.1. One server has no network between its GPUs."""
    monkeypatch.setattr(scaling, "shared", lambda gpus: (2,))
    assert scaling.factor(0.1, 16, ecmp=True) == pytest.approx(0.9 / 1.1)
    assert scaling.factor(0.1, 16, ecmp=False) == pytest.approx(0.9)
    assert scaling.factor(0.1, 4, ecmp=True) == 1.0


def test_a_share_that_nothing_meets_fails_what_the_paper_says() -> None:
    assert all(scaling.factor(share, 32, ecmp=True) < scaling.factor(share, 8, ecmp=True) for share in (0.02, 0.12))
    assert scaling.factor(0.0, 32, ecmp=True) == scaling.factor(0.0, 8, ecmp=True)


def test_the_measured_jobs_are_those_of_the_spec_as_it_is_simulated() -> None:
    from testbed.run.replay_plan import plan_replay

    _, results = plan_replay(load_cluster(ROOT / "experiments" / "clusters" / "vclos_testbed.yaml"))
    simulated = {outcome.job.name: outcome for outcome in results["sr"].outcomes}
    jobs = replayed.measured()
    assert len(jobs) == len(simulated) == 100
    for job in jobs:
        outcome = simulated[job.job]
        assert (job.running_s, job.waiting_s) == pytest.approx((outcome.running_s, outcome.waiting_s), abs=0.006)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_times_that_change_by_ten_per_cent_change_the_page(factor: float) -> None:
    jobs, ours = replayed.measured(), committed()
    assert all(ours[claim.what] == f"{claim.ours:.3f}" for claim in replayed.claims(jobs))
    changed = [job._replace(running_s=factor * job.running_s, waiting_s=factor * job.waiting_s) for job in jobs]
    assert all(ours[claim.what] != f"{claim.ours:.3f}" for claim in replayed.claims(changed))


def test_a_replay_becomes_a_line_for_each_job() -> None:
    job = {
        "job": "1",
        "running_s": {"simulated": 60.0, "measured": 66.0},
        "completion_s": {"simulated": 90.0, "measured": 99.0},
    }
    assert replayed.table({"strategies": [{"jobs": [job]}]}).splitlines()[1:] == ["1,60.00,66.00,30.00,33.00"]


def test_a_wait_below_0_is_written_as_it_is() -> None:
    """Such a wait would be a fault of the replay. Rounding errors are no sign of one."""
    times = ({"simulated": 60.0, "measured": 66.0}, {"simulated": 60.0 - 1e-12, "measured": 65.0})
    job = {"job": "1", "running_s": times[0], "completion_s": times[1]}
    assert replayed.table({"strategies": [{"jobs": [job]}]}).splitlines()[1:] == ["1,60.00,66.00,0.00,-1.00"]


def test_the_text_says_how_far_the_jobs_differ() -> None:
    jobs = replayed.measured()
    ratios = [job.measured_running_s / job.running_s for job in jobs]
    added_s = [(job.measured_waiting_s - job.waiting_s) / SPEEDUP for job in jobs]
    off = [sum(abs(ratio - 1) > most for ratio in ratios) for most in (0.02, 0.05)]
    said = (
        f"{off[0]} of the 100 jobs differ by more, {off[1]} by more than 5 % "
        f"({min(ratios):.3f} to {max(ratios):.3f} times)",
        f"mean of {fmean(added_s):.2f} s and a median of {median(added_s):.2f} s",
        f"{sum(job.measured_waiting_s == 0 for job in jobs)} jobs do not wait at all",
    )
    introduction = ROOT / "testbed" / "research" / "papers" / "vclos" / "introduction.md"
    text = " ".join(introduction.read_text("utf-8").split())
    assert [part for part in said if part not in text] == []
