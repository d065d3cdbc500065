# SPDX-License-Identifier: Apache-2.0
"""Circuits that change during an iteration: against circuits that do not, closed forms and bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.research.topoopt import fabrics
from testbed.research.topoopt.estimates import Estimator, Job, Strategy, block, data_parallel
from testbed.research.topoopt.iterations import shortest_s, simulate_s
from testbed.research.topoopt.reconfigured import Reconfiguration, iteration_s, repeated
from testbed.training.networks import Layer, LayeredModel
from testbed.training.per_operator import iteration

RATE_BPS = 8e9
QUICK = Reconfiguration(1e-6, 1e-2, forwarding=False, always=False)


def small(servers: int = 4) -> Job:
    """Three layers in a chain, in seconds and gigabytes."""
    chain = tuple(Layer(str(n), 1.0, 0.2e9 * (n + 1), 1e7, (n - 1,) if n else ()) for n in range(3))
    return Job(LayeredModel("chain", 1, chain), servers, servers, lambda layer, samples: 0.1 * samples)


def test_copies_of_a_graph_follow_one_another() -> None:
    job = small()
    graph = iteration(job.network, data_parallel(job), job.servers, job.batch, job.profile)
    many, joins = repeated(graph, 3)
    assert len(many.tasks) == 3 * len(graph.tasks) + 3
    assert many.longest_chain_s(RATE_BPS) == pytest.approx(3 * graph.longest_chain_s(RATE_BPS))
    assert joins == [len(graph.tasks), 2 * len(graph.tasks) + 1, 3 * len(graph.tasks) + 2]


@pytest.mark.parametrize("forwarding", [False, True])
def test_circuits_that_stay_on_the_ring_take_as_long_as_those_of_topoopt(forwarding: bool) -> None:
    job = small()
    strategy = data_parallel(job)
    still = simulate_s(job, strategy, fabrics.direct(job.demand(strategy), 2, RATE_BPS))
    found = iteration_s(job, strategy, 2, RATE_BPS, replace(QUICK, forwarding=forwarding))
    assert found == pytest.approx(still, rel=1e-6)


def test_circuits_found_while_nothing_waits_are_wrong_until_the_next_measurement() -> None:
    """Algorithm 5 joins pairs in numerical order then, so that the ring stops for a latency and an interval."""
    job = small()
    strategy = data_parallel(job)
    slow = replace(QUICK, latency_s=0.05, period_s=0.25)
    kept = iteration_s(job, strategy, 2, RATE_BPS, slow)
    assert iteration_s(job, strategy, 2, RATE_BPS, replace(slow, always=True)) > kept + 0.05


@pytest.mark.parametrize("diminish", [0.5, 1.0])
@pytest.mark.parametrize("forwarding", [False, True])
def test_no_iteration_is_shorter_than_on_an_ideal_switch(forwarding: bool, diminish: float) -> None:
    """Layers on different servers exchange samples between all of them."""
    job = small()
    strategy = (block(4, 1, 0), block(4, 4, 0), block(4, 2, 2))
    how = replace(QUICK, forwarding=forwarding, diminish=diminish)
    ideal = Estimator(job, fabrics.switch(4, 2 * RATE_BPS))(strategy).bound_s
    times = [iteration_s(job, strategy, 2, RATE_BPS, replace(how, latency_s=latency_s)) for latency_s in (1e-6, 0.1)]
    assert ideal <= times[0] < times[1]


@pytest.mark.parametrize("forwarding", [False, True])
def test_a_strategy_that_cannot_be_the_shortest_is_not_simulated(forwarding: bool) -> None:
    """All servers, one server, and one server for each layer: sums of gradients take far longer than computing."""
    job, how, rate_bps = small(), replace(QUICK, period_s=0.25, forwarding=forwarding), RATE_BPS / 8
    single = block(4, 1, 0)
    strategies = (data_parallel(job), (single,) * 3, (single, block(4, 1, 1), block(4, 1, 2)))
    every = {strategy: iteration_s(job, strategy, 2, rate_bps, how) for strategy in strategies}
    asked: list[Strategy] = []

    def seconds(strategy: Strategy) -> float:
        asked.append(strategy)
        return every[strategy]

    assert shortest_s(job, strategies, 2 * rate_bps, seconds) == min(every.values())
    ideal = Estimator(job, fabrics.switch(4, 2 * rate_bps))
    assert all(ideal(strategy).bound_s <= every[strategy] for strategy in strategies)
    assert data_parallel(job) not in asked
    assert asked
