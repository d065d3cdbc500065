# SPDX-License-Identifier: Apache-2.0
"""Jobs beside one another: their ideals, their speeds, their fairness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.flows import RunFlows
from testbed.analysis.jobs import fairness, slowdowns, speeds
from testbed.analysis.observations import JobRecord
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of
from tests.testbed.run.fake_fabric import made_up


def two_jobs(folder: Path, **changes: Any) -> Experiment:
    return experiment(folder, jobs=2, placement={"rule": "cross_leaf"}, **changes)


def test_a_job_alone_is_never_slower_than_beside_others(tmp_path: Path) -> None:
    made = two_jobs(tmp_path, fabric="fluid")
    ring_of_two = 2 * 1 / 2 * 80_000 * 8 / 100e6
    assert [first_of(made).ideal_s(job) for job in made.jobs] == [pytest.approx(ring_of_two)] * 2
    assert first_of(made).ideal_s() == pytest.approx(ring_of_two)  # two uplinks for two jobs


def test_speeds_and_fairness_follow_their_definitions(tmp_path: Path) -> None:
    made = two_jobs(tmp_path)
    run = made_up(made).runs[0]
    ideal = first_of(made).ideal_s(made.jobs[0])

    def with_times(*times: float) -> float:
        jobs = [JobRecord(name=job.name, ranks=2, completion_s=t) for job, t in zip(made.jobs, times, strict=True)]
        return fairness(RunFlows(first_of(made), run.model_copy(update={"jobs": jobs})))

    assert speeds(RunFlows(first_of(made), run)) == [pytest.approx(ideal / job.completion_s) for job in run.jobs]
    assert with_times(1.0, 1.0) == pytest.approx(1.0)
    assert with_times(1.0, 2.0) == pytest.approx((1 + 0.5) ** 2 / (2 * (1 + 0.25)))
    assert with_times(1e-9, 1.0) == pytest.approx(0.5)


def test_slowdowns_compare_runs_of_one_seed(tmp_path: Path) -> None:
    made = two_jobs(tmp_path, seeds=3)
    runs = made_up(made).runs
    ecmp, pinned = ([run for run in runs if run.policy == name] for name in ("ecmp", "pinned"))
    assert slowdowns(pinned, ecmp[:2]) == [pytest.approx(1.6 / 1.1), pytest.approx(1.7 / 1.2)]
