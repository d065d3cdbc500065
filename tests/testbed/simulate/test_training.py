# SPDX-License-Identifier: Apache-2.0
"""Training jobs: the ideal times of "Routing for Large ML Models", and what planners make of them."""

from __future__ import annotations

import numpy as np
import pytest

from sdn.planners import Clos, ecmp, greedy, optimal
from testbed.bench.fluid import run
from testbed.simulate.training import placed, placed_by_tor, train
from testbed.workloads.training_models import BLOOM, GPT3, LLAMA2, Model

IDEAL_MS = {
    (BLOOM, 2): 1173.3,
    (BLOOM, 4): 1760,
    (BLOOM, 8): 2053.3,
    (GPT3, 2): 875,
    (GPT3, 4): 1312.5,
    (GPT3, 8): 1531.25,
    (LLAMA2, 2): 175,
    (LLAMA2, 4): 262.5,
    (LLAMA2, 8): 306.25,
}


@pytest.mark.parametrize(("model", "copies"), IDEAL_MS, ids=lambda value: getattr(value, "name", value))
def test_a_job_alone_takes_the_ideal_time(model: Model, copies: int) -> None:
    fabric = Clos.of(32, 32, 32, 100e9)
    [job] = placed([(model, copies)], fabric.nics, 1.0, seed=1)
    trained = train(fabric, [job], 2, optimal)
    assert trained.phase_s[0] == pytest.approx(job.ideal_s)
    assert 1000 * job.ideal_s == pytest.approx(IDEAL_MS[model, copies], rel=1e-4)
    assert trained.simulation.now_s == pytest.approx(job.arrival_s + 2 * (model.compute_s + job.ideal_s))


def test_flows_without_competition_take_their_serialisation_time() -> None:
    fabric = Clos.of(32, 32, 32, 100e9)
    [job] = placed([(GPT3, 4)], fabric.nics, 1.0, seed=1)
    [flow_s] = train(fabric, [job], 2, optimal).message_s
    assert flow_s.shape == (2 * 6 * 4 * GPT3.parts,)
    assert flow_s == pytest.approx(8 * GPT3.part_bytes / 4 / 100e9)


def test_copies_fill_tor_after_tor() -> None:
    fabric = Clos.of(64, 32, 32, 100e9)
    jobs = placed_by_tor([(BLOOM, 8), (GPT3, 8), (LLAMA2, 8)], fabric, 1.0, seed=1)
    taken = np.concatenate([job.nics.ravel() for job in jobs])
    assert np.unique(taken).size == taken.size == 1920
    for job in jobs[:1]:
        tors = fabric.nic_tor[job.nics]
        assert max(np.unique(tors[:, copy]).size for copy in range(job.copies)) <= 3
    with pytest.raises(ValueError, match="need 2304 NICs, and there are 2048"):
        placed_by_tor([(LLAMA2, 16), (GPT3, 4)], fabric, 1.0, seed=1)


def test_no_planner_beats_the_ideal_and_the_optimum_has_it() -> None:
    small = Model("small", 1e9, 1, 1, 1, tensor=4, pipeline=1, compute_s=0.01)
    fabric = Clos.of(8, 4, 4, 100e9)
    jobs = placed([(small, 4), (small, 2), (small, 2)], fabric.nics, 0.01, seed=3)
    times = {planner: train(fabric, jobs, 3, planner).phase_s for planner in (ecmp, greedy, optimal)}
    for allreduce_s in times.values():
        for job, own in zip(jobs, allreduce_s, strict=True):
            assert own.shape == (3,)
            assert (own >= job.ideal_s * (1 - 1e-9)).all()
    assert np.concatenate(times[optimal]) == pytest.approx(np.repeat([job.ideal_s for job in jobs], 3))
    assert max(own.max() for own in times[ecmp]) > 1.5 * jobs[0].ideal_s


def test_jobs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="need 384 NICs, and there are 64"):
        placed([(BLOOM, 8)], 64, 1.0, seed=1)


def test_the_benchmark_names_its_limits() -> None:
    rows = list(run(1, largest=False))
    assert len(rows) == 6
    assert all(row.ours > 0 and row.peer_name == "limit" for row in rows)
