# SPDX-License-Identifier: Apache-2.0
"""Failures of rails and GPUs during a job: times by hand on the fluid model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.research.papers.rail_only.faults import Recovery, TrainingJob, duration_s
from testbed.research.papers.rail_only.times import Grid

GRID = Grid(x=4, y=4, hb_bps=32e9, nic_bps=8e9)
JOB = TrainingJob(
    GRID, iterations=4, compute_s=0.5, gradient_bytes=1e9 / 3, reroute_s=0.1, optical_s=0.2, restart_s=3.0
)
"""A GPU sends 0.5 GB in an iteration, 0.5 s at 8 Gbit/s: an iteration takes 1 s."""


def test_without_a_failure_iterations_take_computing_and_the_ring() -> None:
    assert duration_s(JOB) == pytest.approx(4.0)


def test_other_rails_carry_the_ring_of_a_rail_that_has_failed() -> None:
    """At 1.6 s the second ring has 0.4 s to go; those of other rails get 1 / 3 more until all is sent."""
    # 0.1 s later the others have 0.3 s left and rail 1 0.4 s: (3 * 0.3 + 0.4) / 3 s. Two more rings take 4 / 3 each.
    assert duration_s(JOB, "forwarding", 1.6) == pytest.approx(1.7 + 1.3 / 3 + 2 * (0.5 + 4 / 3 * 0.5))


def test_a_failure_during_computing_costs_only_the_later_rings() -> None:
    assert duration_s(JOB, "forwarding", 1.2) == pytest.approx(1.0 + 3 * (0.5 + 4 / 3 * 0.5))


def test_slow_hb_domains_limit_what_other_rails_carry() -> None:
    """The whole ring of the dead rail leaves and enters a GPU over its HB domain, here at half of a NIC's rate."""
    job = replace(JOB, grid=replace(GRID, hb_bps=4e9), reroute_s=0.0)
    assert duration_s(job, "forwarding", 0.0) == pytest.approx(4 * (0.5 + 1.0))


def test_a_spare_switch_costs_the_time_until_it_takes_over() -> None:
    assert duration_s(JOB, "spare_switch", 1.6) == pytest.approx(4.1)
    assert duration_s(JOB, "spare_switch", 1.1) == pytest.approx(4.0)  # nothing is sent meanwhile


@pytest.mark.parametrize(("recovery", "more_s"), [("spare_gpu", 3.2), ("moved_domain", 3.0)])
def test_a_failed_gpu_costs_the_restart_and_the_work_since_the_checkpoint(recovery: Recovery, more_s: float) -> None:
    assert duration_s(JOB, recovery, 2.7) == pytest.approx(4.0 + more_s + 0.7)
    rarely = replace(JOB, checkpoint_iterations=4)
    assert duration_s(rarely, recovery, 2.7) == pytest.approx(4.0 + more_s + 2.7)


@settings(max_examples=30, deadline=None)
@given(
    recovery=st.sampled_from(["forwarding", "spare_switch", "spare_gpu", "moved_domain"]),
    fails_s=st.floats(0, 6),
    gpus=st.integers(2, 5),
    domains=st.integers(2, 5),
)
def test_no_failure_makes_a_job_faster(recovery: Recovery, fails_s: float, gpus: int, domains: int) -> None:
    job = replace(JOB, grid=Grid(gpus, domains, 32e9, 8e9))
    whole_s = duration_s(job)
    found_s = duration_s(job, recovery, fails_s)
    assert found_s >= whole_s * (1 - 1e-9)
    if fails_s >= whole_s:
        assert found_s == pytest.approx(whole_s)


@pytest.mark.parametrize("changes", [{"iterations": 0}, {"compute_s": -1.0}, {"grid": Grid(1, 4, 1.0, 1.0)}])
def test_jobs_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"needs two GPUs|must be 0 or more"):
        replace(JOB, **changes)
    with pytest.raises(ValueError, match="cannot be 1 s before the start"):
        duration_s(JOB, "forwarding", -1.0)
