# SPDX-License-Identifier: Apache-2.0
"""Speeds of jobs that share links, against values computed by hand."""

import numpy as np
import pytest

from sim.cluster.contention import Average, PerStep
from sim.cluster.fidelities import FIDELITIES, FidelityName, contention
from sim.cluster.jobs import Job
from sim.cluster.networks import FlowPaths, Traffic
from sim.cluster.shape import Shape

SHAPE = Shape(4, 4, 2, 2)


def job(communication: float, run_s: float = 10.0) -> Job:
    return Job("job", 0.0, 2, run_s, communication)


def on(*links: int, load: float = 1.0) -> Traffic:
    """A collective of one step with flows on these links."""
    paths = FlowPaths(np.zeros(len(links), dtype=np.intp), np.array([[[link, -1]] for link in links], np.int32))
    return Traffic(np.array(links), np.full(len(links), load), np.array([0]), np.array([1.0]), paths=paths)


def speeds(network: Average | PerStep) -> list[float]:
    return network.speeds()[1].tolist()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_jobs_that_always_communicate_share_a_link_equally(fidelity: FidelityName) -> None:
    network = contention(fidelity, SHAPE)
    for slot in range(3):
        network.start(slot, job(1.0, 5.0 if slot == 1 else 10.0), on(5))
        if fidelity != "average":
            network.next(slot)
    slots, shared = network.speeds()
    assert slots.tolist() == [0, 1, 2]
    assert shared.tolist() == pytest.approx([1 / 3] * 3)
    assert network.load[5] == 3
    network.advance(15.0)
    assert network.next(1) is None
    assert network.changed
    slots, shared = network.speeds()
    assert slots.tolist() == [0, 2]
    assert shared.tolist() == pytest.approx([1 / 2] * 2)
    assert network.load[5] == 2


def test_what_others_cannot_use_is_left_to_a_job() -> None:
    """Job 0 meets job 1 on link 1, and job 1 meets three others on link 2: max-min gives job 0 three quarters."""
    network = Average(SHAPE)
    for slot, links in enumerate([(1,), (1, 2), (2,), (2,), (2,)]):
        network.start(slot, job(1.0), on(*links))
    for _ in range(3):
        found = speeds(network)
    assert found == pytest.approx([0.75, 0.25, 0.25, 0.25, 0.25])


def test_jobs_that_seldom_communicate_seldom_meet() -> None:
    """Half of the time computing: each is present with probability p = s / (1 + s), where its stretch s is 1 + p."""
    network = Average(SHAPE)
    network.start(0, job(0.5), on(5))
    assert speeds(network) == [1.0]
    network.start(1, job(0.5), on(5))
    for _ in range(5):
        found = speeds(network)
    stretch = (1 + 5**0.5) / 2
    assert found == pytest.approx([1 / (0.5 + 0.5 * stretch)] * 2, rel=1e-3)


def test_a_link_with_less_than_a_flow_stretches_nothing() -> None:
    network = Average(SHAPE)
    network.start(0, job(1.0), on(5, load=0.25))
    network.start(1, job(1.0), on(5, load=0.5))
    assert speeds(network) == [1.0, 1.0]


def test_phases_of_a_job_are_its_computation_and_its_steps() -> None:
    """A step between leaves with half of the collective's time, one with a quarter, and the rest under leaves."""
    network = PerStep(SHAPE, rounds=2)
    steps = Traffic(np.array([1, 2, 3]), np.array([2.0, 1.0, 3.0]), np.array([0, 2]), np.array([0.5, 0.25]))
    assert network.start(7, job(0.4), steps) == pytest.approx((6 + 0.25 * 4) / 2)
    assert speeds(network) == [1.0]
    for _ in range(2):
        assert network.next(7) == pytest.approx(0.5 * 4 / 2)
        assert speeds(network) == [1 / 2]
        assert network.next(7) == pytest.approx(0.25 * 4 / 2)
        assert speeds(network) == [1 / 3]
        last = network.next(7)
    assert last is None
    assert speeds(network) == []
    assert not network.load.any()


def test_an_own_link_is_worth_the_same_in_both() -> None:
    """Without other jobs, `average` takes as long as all phases of `steps`."""
    steps = Traffic(np.array([1, 2, 3]), np.array([2.0, 1.0, 3.0]), np.array([0, 2]), np.array([0.5, 0.25]))
    average, phased = Average(SHAPE), PerStep(SHAPE)
    work = average.start(0, job(0.4), steps)
    expected = work / speeds(average)[0]
    left: float | None = phased.start(0, job(0.4), steps)
    total = 0.0
    while left is not None:
        total += left / speeds(phased)[0]
        left = phased.next(0)
    assert total == pytest.approx(expected)
