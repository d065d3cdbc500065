# SPDX-License-Identifier: Apache-2.0
"""Metrics of simulated clusters, by hand."""

from collections import Counter

import numpy as np
import pytest

from sim.cluster import Job, Outcome, Result
from testbed.analysis.clusters import Times, busy_gpus, metrics, worst_flows


def result() -> Result:
    """Two jobs of 2 GPUs that run 10 and 30 s instead of 10; one of 4 GPUs still runs, one waits, one is refused."""
    outcomes = [
        Outcome(Job("a", 0.0, 2, 10.0), "ended", 0.0, 10.0, 1),
        Outcome(Job("b", 0.0, 2, 10.0), "ended", 10.0, 40.0, 2),
        Outcome(Job("c", 20.0, 4, 99.0), "running", 20.0, None, 1),
        Outcome(Job("d", 50.0, 8, 10.0), "waiting"),
        Outcome(Job("e", 50.0, 9, 10.0), "refused", reason="too large"),
    ]
    return Result(outcomes, Counter(busy=3, network=1), 100.0, 60.0, 0)


def test_metrics_are_those_of_the_jobs_that_ended() -> None:
    found = metrics([result()], 8)
    assert found.jobs == {"ended": 2, "running": 1, "waiting": 1, "refused": 1}
    assert found.running_s == Times(20.0, 20.0, pytest.approx(29.8))
    assert found.waiting_s.mean == 5.0
    assert found.completion_s.mean == 25.0
    assert found.stretch == 2.0
    assert found.stretch_over_leaves == Times(3.0, 3.0, 3.0)
    assert found.instability == 1.0  # of 1 and 3
    assert found.utilisation == pytest.approx((2 * 10 + 2 * 30 + 4 * 30) / (8 * 50))  # until 50 s
    assert found.failures == {"busy": 3.0, "network": 1.0}


def test_failures_are_per_seed() -> None:
    assert metrics([result(), result()], 8).failures == {"busy": 3.0, "network": 1.0}
    assert metrics([result(), result()], 8).jobs["ended"] == 4


def test_gpus_in_use_follow_starts_and_ends() -> None:
    times, counts = busy_gpus(result())
    assert times.tolist() == [0.0, 10.0, 10.0, 20.0, 40.0]
    assert counts.tolist() == [2, 0, 2, 6, 4]


def test_gpus_of_a_preempted_job_are_not_in_use_while_it_waits() -> None:
    """On 4 GPUs from 0 to 5 s and from 8 to 10 s; another job was preempted at 6 s and has not gone on."""
    jobs = [Job("a", 0.0, 4, 7.0), Job("b", 2.0, 2, 9.0), Job("c", 10.0, 1, 1.0)]
    outcomes = [
        Outcome(jobs[0], "ended", 0.0, 10.0, 1, "", ((5.0, 8.0),)),
        Outcome(jobs[1], "preempted", 2.0, None, 1, "", ((6.0, float("inf")),)),
        Outcome(jobs[2], "waiting"),
    ]
    run = Result(outcomes, Counter(), 36.0, 10.0, 8)
    times, counts = busy_gpus(run)
    assert dict(zip(times.tolist(), counts.tolist(), strict=True)) == {0: 4, 2: 6, 5: 2, 6: 0, 8: 4, 10: 0}
    found = metrics([run], 8)
    assert found.utilisation == pytest.approx((4 * 7 + 2 * 4) / (8 * 10))
    assert found.preemptions == 2
    assert (found.running_s.mean, found.waiting_s.mean, found.completion_s.mean) == (7.0, 3.0, 10.0)


def test_flows_on_the_busiest_link_are_averaged_over_time() -> None:
    """None until 2 s, then 3 flows, one from 8 s on."""
    run = Result([], Counter(), 0.0, 20.0, 0, worst_flows=[(2.0, 3.0), (8.0, 1.0)])
    assert worst_flows(run, np.array([0.0, 4.0, 6.0, 10.0, 20.0])).tolist() == [1.5, 3.0, 2.0, 1.0]
    assert worst_flows(result(), np.array([0.0, 5.0, 10.0])).tolist() == [0.0, 0.0]


def test_without_an_ended_job_times_are_zero() -> None:
    waiting = Result([Outcome(Job("d", 5.0, 8, 10.0), "waiting")], Counter(), 0.0, 5.0, 8)
    assert metrics([waiting], 8).completion_s == Times(0.0, 0.0, 0.0)
