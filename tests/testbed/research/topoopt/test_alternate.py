# SPDX-License-Identifier: Apache-2.0
"""Strategies and topologies found together: estimates against the fluid model, searches against each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.research.topoopt import alternate as alternation
from testbed.research.topoopt import fabrics
from testbed.research.topoopt.alternate import alternate, on_fabric
from testbed.research.topoopt.estimates import Estimator, Job, Strategy, block, data_parallel, hybrid
from testbed.research.topoopt.fabrics import Fabric
from testbed.research.topoopt.iterations import simulate_s
from testbed.research.topoopt.search import coordinate_descent, markov_chain
from testbed.training.hardware import A100
from testbed.training.networks import Layer, LayeredModel, bert, candle, dlrm, networks, vgg16
from testbed.training.per_operator import overlaps, roofline

RATE_BPS = 100e9
NAMES = {network.name: network for network in networks()}


def job_of(network: LayeredModel, servers: int = 8) -> Job:
    return Job(network, servers, 4 * servers * network.batch, roofline(A100, 4), 4, A100.memory_bytes)


def small(servers: int, layers: int = 3) -> Job:
    """A chain of layers, in seconds and gigabytes."""
    chain = tuple(Layer(str(n), 1.0, 0.2e9 * (n + 1), 1e7, (n - 1,) if n else ()) for n in range(layers))
    return Job(LayeredModel("chain", 1, chain), servers, servers, lambda layer, samples: 0.1 * samples)


@given(st.integers(1, 24), st.integers(1, 24))
def test_overlaps_are_those_of_two_divisions_of_the_samples(parts: int, others: int) -> None:
    found = {(have, need): share for have, need, share in overlaps(parts, others)}
    for have, need in product(range(parts), range(others)):
        share = min((have + 1) / parts, (need + 1) / others) - max(have / parts, need / others)
        assert found.get((have, need), 0.0) == pytest.approx(max(share, 0.0), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choose", [data_parallel, hybrid])
def test_estimates_of_the_papers_strategies_are_those_of_the_fluid_model(
    name: str, choose: Callable[[Job], Strategy]
) -> None:
    job = job_of(NAMES[name])
    strategy = choose(job)
    for fabric in (fabrics.direct(job.demand(strategy), 3, RATE_BPS), fabrics.switch(job.servers, RATE_BPS)):
        estimate = Estimator(job, fabric)(strategy)
        assert simulate_s(job, strategy, fabric) == pytest.approx(estimate.schedule_s, rel=0.03)


@pytest.mark.parametrize("network", [bert(), candle(), vgg16()], ids=lambda network: network.name)
def test_estimates_of_layers_on_different_servers_are_near_the_fluid_model(network: LayeredModel) -> None:
    """Servers compute one layer after another, and transfers of samples share links with all-reduces."""
    job, random = job_of(network), Random(3)
    count = len(network.layers)
    strategies = [
        tuple(block(8, random.choice([1, 2, 4, 8]), random.randrange(8)) for _ in range(count)) for _ in range(4)
    ]
    strategies += [
        tuple(block(8, d, 8 * n // count // d * d) for n in range(count)) for d in (1, 2, 4)
    ]  # in a pipeline
    for strategy in strategies:
        for fabric in (fabrics.direct(job.demand(strategy), 3, RATE_BPS), fabrics.switch(8, 3 * RATE_BPS)):
            seconds = simulate_s(job, strategy, fabric)
            assert 0.8 * seconds < Estimator(job, fabric)(strategy).schedule_s < 1.25 * seconds


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_iteration_is_shorter_than_the_bound(data: st.DataObject) -> None:
    job = small(4)
    place = st.builds(block, st.just(4), st.sampled_from([1, 2, 4]), st.integers(0, 3))
    strategy: Strategy = tuple(data.draw(st.tuples(place, place, place)))
    fabric = data.draw(
        st.sampled_from(
            [
                fabrics.direct(job.demand(strategy), 2, 8e9),
                fabrics.switch(4, 16e9),
                fabrics.oversubscribed(4, 16e9, rack=2),
                fabrics.expander(4, 2, 8e9),
            ]
        )
    )
    seconds = simulate_s(job, strategy, fabric)
    assert seconds >= Estimator(job, fabric)(strategy).bound_s * (1 - 1e-9)


@pytest.mark.parametrize("network", [vgg16(), bert(), candle()], ids=lambda network: network.name)
def test_data_parallel_jobs_take_as_long_as_on_an_ideal_switch(network: LayeredModel) -> None:
    """An all-reduce is divided among rings of circuits, which have the bandwidth of the switch (section 4.3)."""
    job = job_of(network)
    strategy = data_parallel(job)
    circuits = fabrics.direct(job.demand(strategy), 3, RATE_BPS)
    assert len(circuits.orders(tuple(range(8)))) == 3
    times = [simulate_s(job, strategy, fabric) for fabric in (circuits, fabrics.switch(8, 3 * RATE_BPS))]
    assert times[0] == pytest.approx(times[1], rel=1e-6)


def test_loads_are_those_of_the_routes() -> None:
    job = job_of(dlrm(tables=3))
    fabric = fabrics.direct(job.demand(hybrid(job)), 2, RATE_BPS)
    sizes = np.arange(64.0) % 7
    sizes[::9] = 0
    wanted = np.zeros(fabric.links_bps.size)
    for pair, size in enumerate(sizes):
        wanted[fabric.route(*divmod(pair, 8))] += size
    assert fabric.load(sizes) == pytest.approx(wanted)


def test_racks_have_half_the_bandwidth_of_their_servers() -> None:
    fabric = fabrics.oversubscribed(4, 10.0, rack=2)
    to_the_other_rack = np.zeros((4, 4))
    to_the_other_rack[0, 2] = to_the_other_rack[1, 3] = 1.0
    assert (fabric.load(to_the_other_rack.ravel()) / fabric.links_bps).max() == pytest.approx(2 / 10)
    within = np.zeros((4, 4))
    within[0, 1] = 1.0
    assert (fabric.load(within.ravel()) / fabric.links_bps).max() == pytest.approx(1 / 10)


def test_a_smaller_last_rack_has_fewer_uplinks() -> None:
    fabric = fabrics.oversubscribed(5, 10.0, rack=2)
    from_the_last_rack = np.zeros((5, 5))
    from_the_last_rack[4, 0] = 1.0
    assert (fabric.load(from_the_last_rack.ravel()) / fabric.links_bps).max() == pytest.approx(1 / 5)


@pytest.mark.parametrize(("servers", "degree"), [(5, 3), (4, 4), (4, 1)])
def test_an_impossible_expander_is_refused_in_a_sentence(servers: int, degree: int) -> None:
    with pytest.raises(ValueError, match=rf"^no expander joins {servers} servers with {degree} circuits each: take a"):
        fabrics.expander(servers, degree, 1e9)


def test_a_strategy_that_does_not_fit_into_memory_is_not_chosen() -> None:
    job = Job(dlrm(), 8, 4 * 8 * 128, roofline(A100, 4), 4, 40 * 2**30)
    estimator = Estimator(job, fabrics.switch(8, RATE_BPS))
    assert estimator(data_parallel(job)).seconds == inf  # 82 GB of tables on each GPU
    assert estimator(hybrid(job)).seconds < inf
    assert estimator(coordinate_descent(estimator, data_parallel(job), single=False)).seconds < inf


@pytest.mark.parametrize("bps", [1e9, 8e9, 64e9])
def test_descent_comes_within_5_percent_of_the_best_of_all_strategies(bps: float) -> None:
    """Exhaustive over aligned blocks of four servers, three layers."""
    job = small(4)
    estimator = Estimator(job, fabrics.switch(4, bps))
    places = [block(4, degree, first) for degree in (1, 2, 4) for first in range(0, 4, degree)]
    best = min(estimator(strategy).seconds for strategy in product(places, repeat=3))
    found = coordinate_descent(Estimator(job, fabrics.switch(4, bps)), data_parallel(job))
    assert best * (1 - 1e-9) <= estimator(found).seconds <= 1.05 * best


@pytest.mark.parametrize("network", [dlrm(tables=8), candle()], ids=lambda network: network.name)
def test_descent_beats_the_markov_chain_with_fewer_estimates(network: LayeredModel) -> None:
    job = job_of(network, 16)
    fabric = fabrics.switch(16, 4 * RATE_BPS)
    chain, descent = Estimator(job, fabric), Estimator(job, fabric)
    by_chain = chain(markov_chain(chain, hybrid(job), budget=500)).seconds
    by_descent = descent(coordinate_descent(descent, hybrid(job), single=False)).seconds
    assert by_descent <= by_chain <= chain(hybrid(job)).seconds
    assert descent.estimated < chain.estimated


@pytest.mark.parametrize("network", [dlrm(tables=8), candle()], ids=lambda network: network.name)
def test_alternation_keeps_the_best(network: LayeredModel) -> None:
    job = job_of(network)
    found = alternate(job, 3, RATE_BPS, single=False)
    assert list(found.history_s) == sorted(found.history_s, reverse=True)
    assert found.simulated_s == simulate_s(job, found.strategy, found.fabric)
    plain = hybrid(job)
    fabric: Fabric = fabrics.direct(job.demand(plain), 3, RATE_BPS)
    assert found.history_s[-1] <= Estimator(job, fabric)(plain).seconds
    fixed = on_fabric(job, fabric, simulated=0, single=False)
    assert fixed.simulated_s is None
    assert fixed.estimated_s <= Estimator(job, fabric)(plain).seconds


def simulations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Strategy, Fabric]]:
    """What is simulated from now on, each of which takes a second."""
    seen: list[tuple[Strategy, Fabric]] = []

    def simulated(_: Job, strategy: Strategy, fabric: Fabric) -> float:
        seen.append((strategy, fabric))
        return 1.0

    monkeypatch.setattr(alternation, "simulate_s", simulated)
    return seen


@pytest.mark.parametrize("network", [dlrm(tables=8), candle()], ids=lambda network: network.name)
def test_each_design_is_simulated_once(monkeypatch: pytest.MonkeyPatch, network: LayeredModel) -> None:
    """The last round of an alternation repeats the strategy of the one before, on the same circuits."""
    seen = simulations(monkeypatch)
    alternate(job_of(network), 3, RATE_BPS, simulated=4, single=False)
    different = {(strategy, fabric.paths.tobytes(), fabric.links_bps.tobytes()) for strategy, fabric in seen}
    assert 2 <= len(seen) == len(different)


def test_designs_that_do_not_fit_into_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = simulations(monkeypatch)
    job = Job(dlrm(), 8, 4 * 8 * 128, roofline(A100, 4), 4, 40 * 2**30)
    alternate(job, 3, RATE_BPS, simulated=100, single=False)
    on_fabric(job, fabrics.switch(8, RATE_BPS), simulated=100, single=False)
    assert seen
    assert all(Estimator(job, fabric)(strategy).seconds < inf for strategy, fabric in seen)


def test_a_job_that_does_not_fit_into_memory_is_refused_in_a_sentence() -> None:
    job = Job(dlrm(), 8, 4 * 8 * 128, roofline(A100, 4), 4, 2**30)
    with pytest.raises(ValueError, match=r"needs more than the 1\.1 GB of each GPU"):
        alternate(job, 3, RATE_BPS, simulated=0, single=False)
    with pytest.raises(ValueError, match=r"needs more than the 1\.1 GB of each GPU"):
        on_fabric(job, fabrics.switch(8, RATE_BPS), simulated=0, single=False)
