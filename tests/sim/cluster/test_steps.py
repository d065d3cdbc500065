# SPDX-License-Identifier: Apache-2.0
"""Traffic patterns, and the links that networks choose for them."""

import numpy as np
import pytest

from sdn.isolation import Allocation, Cluster, Gpu, vclos
from sim.cluster.jobs import PATTERNS, Job, Pattern, steps_of
from sim.cluster.networks import NETWORKS, NetworkName, Traffic, traffic_of
from sim.cluster.shape import Shape

SHAPE = Shape(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2)
ALL = tuple(sorted(Cluster.empty(4, 4, 2, 2).idle))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16])
def test_every_rank_receives_from_one_in_every_step(pattern: Pattern, ranks: int) -> None:
    steps = steps_of(pattern, ranks, 2)
    assert steps.shares.sum() == pytest.approx(1.0)
    assert len(steps.shares) == len(steps.destinations)
    for destinations in steps.destinations:
        assert sorted(destinations.tolist()) == list(range(ranks))
        assert ranks == 1 or (destinations != np.arange(ranks)).all()


def test_steps_are_those_of_the_collectives() -> None:
    assert steps_of("ring", 4, 2).destinations.tolist() == [[1, 2, 3, 0]]
    assert steps_of("hierarchical_ring", 6, 2).destinations.tolist() == [[2, 3, 4, 5, 0, 1]]
    assert steps_of("hierarchical_ring", 5, 2).destinations.tolist() == [[1, 2, 3, 4, 0]]
    halving = steps_of("halving_doubling", 4, 2)
    assert halving.destinations.tolist() == [[1, 0, 3, 2], [2, 3, 0, 1]]
    assert halving.shares.tolist() == pytest.approx([2 / 3, 1 / 3])  # half of the data goes over the first distance
    assert steps_of("halving_doubling", 6, 2).destinations.tolist() == steps_of("ring", 6, 2).destinations.tolist()
    assert steps_of("pairwise_alltoall", 3, 2).destinations.tolist() == [[1, 2, 0], [2, 0, 1]]


def traffic(
    network: NetworkName, pattern: Pattern, allocation: Allocation, ranks: int, seed: int = 1, lanes: int = 8
) -> Traffic | None:
    load = np.zeros(SHAPE.links)
    return traffic_of(SHAPE, network, allocation, steps_of(pattern, ranks, 2), load, np.random.default_rng(seed), lanes)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "reserved"])
def test_every_flow_between_leaves_is_on_a_link_up_and_a_link_down(network: NetworkName, pattern: Pattern) -> None:
    got = traffic(network, pattern, Allocation("job", 2, ALL), 16)
    if network == "ideal":
        assert got is None
        return
    assert got is not None
    steps = steps_of(pattern, 16, 2)
    leaves = np.array([gpu.leaf for gpu in ALL])
    between = leaves != leaves[steps.destinations]
    counts = between.sum(axis=1)
    up = got.links < SHAPE.links // 2
    assert got.loads[up].sum() == pytest.approx(counts.sum())
    assert got.loads[~up].sum() == pytest.approx(counts.sum())
    per_step = np.add.reduceat(np.where(up, got.loads, 0.0), got.starts)
    assert per_step == pytest.approx(counts[counts > 0])
    assert got.quiet == pytest.approx(steps.shares[counts == 0].sum(), abs=1e-9)
    out_of_leaf = np.bincount(got.links[up] // SHAPE.spines, got.loads[up], minlength=4)
    assert out_of_leaf == pytest.approx(np.bincount(np.tile(leaves, len(between))[between.ravel()], minlength=4))


def test_flows_under_one_leaf_are_on_no_link() -> None:
    assert traffic("ecmp", "ring", Allocation("job", 1, ALL[:4]), 4) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_source_routing_and_vclos_put_one_flow_on_a_link(pattern: Pattern) -> None:
    """Lemma 5.1: for a job on all GPUs, and for one on all GPUs of its virtual Clos."""
    got = traffic("source_routing", pattern, Allocation("job", 2, ALL), 16)
    assert got is not None
    assert got.loads.max() == 1
    allocation = vclos.place(Cluster.empty(4, 4, 2, 2), "job", 8)
    assert allocation is not None
    assert allocation.stage == 2
    got = traffic("reserved", pattern, allocation, 8)
    assert got is not None
    assert got.loads.max() == 1
    own = {(leaf * 4 + spine) + way * 16 for leaf, spine in allocation.links for way in (0, 1)}
    assert set(got.links.tolist()) <= own


def test_balanced_takes_the_least_loaded_uplinks() -> None:
    load = np.zeros(SHAPE.links)
    load[[0, 2]] = 1.0  # of leaf 0, spines 0 and 2
    pair = Allocation("job", 2, (Gpu(0, 0, 0), Gpu(0, 0, 1), Gpu(1, 0, 0), Gpu(1, 0, 1)))
    steps = steps_of("hierarchical_ring", 4, 2)
    got = traffic_of(SHAPE, "balanced", pair, steps, load, np.random.default_rng(1))
    assert got is not None
    assert {link for link in got.links.tolist() if link < 4} == {1, 3}


def test_rounding_errors_of_jobs_that_left_break_no_tie() -> None:
    load = np.zeros(SHAPE.links)
    load[:2] = 1e-17
    steps = steps_of("hierarchical_ring", 4, 2)
    pair = Allocation("job", 2, (Gpu(0, 0, 0), Gpu(0, 0, 1), Gpu(1, 0, 0), Gpu(1, 0, 1)))
    taken: set[int] = set()
    for seed in range(20):
        got = traffic_of(SHAPE, "balanced", pair, steps, load, np.random.default_rng(seed))
        assert got is not None
        taken |= {link for link in got.links.tolist() if link < 4}
    assert taken == {0, 1, 2, 3}


def test_more_lanes_spread_a_job_more_evenly() -> None:
    def worst(lanes: int) -> float:
        found = [traffic("paralet", "hierarchical_ring", Allocation("j", 2, ALL), 16, seed, lanes) for seed in range(9)]
        return float(np.mean([offered.loads.max() for offered in found if offered is not None]))

    assert worst(1) > worst(4) > worst(32) > 0.5  # the mean: 2 flows of a leaf on 4 spines


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"arrival_s": -1.0}, "arrives at -1.0 s"),
        ({"run_s": 0.0}, "runs for 0.0 s"),
        ({"communication": 1.5}, "communicates for 1.5 of its time"),
        ({"gpus": 0}, "asks for 0 GPUs"),
    ],
)
def test_a_job_that_cannot_be_is_refused(job: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Job(**({"name": "job", "arrival_s": 0.0, "gpus": 1, "run_s": 1.0} | job))  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pins_put_one_flow_on_a_link_and_take_the_idle_ones(pattern: Pattern) -> None:
    """Whatever others use: no two flows of a step meet. A ring over two leaves with two flows takes the idle spines."""
    load = np.random.default_rng(1).uniform(0, 2, SHAPE.links)
    steps = steps_of(pattern, 16, 2)
    got = traffic_of(SHAPE, "pinned", Allocation("job", 2, ALL), steps, load, np.random.default_rng(1))
    assert got is not None
    assert got.loads.max() == 1
    busy = np.ones((2, SHAPE.leaves, SHAPE.spines))
    busy[:, :, 2:] = 0
    few = Allocation("few", 2, tuple(gpu for gpu in ALL if gpu.leaf < 2 and gpu.server == 0))
    got = traffic_of(SHAPE, "pinned", few, steps_of("hierarchical_ring", 4, 2), busy.ravel(), np.random.default_rng(1))
    assert got is not None
    assert set((got.links % SHAPE.spines).tolist()) == {2, 3}
