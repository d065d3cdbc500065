# SPDX-License-Identifier: Apache-2.0
"""Three tiers and planes: which links flows take, and what keeps them apart."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sdn.isolation import Allocation, Cluster, vclos
from sim.cluster.contention import Replanned
from sim.cluster.jobs import PATTERNS, Job, Pattern, steps_of
from sim.cluster.networks import NETWORKS, NetworkName, Traffic, traffic_of
from sim.cluster.shape import Shape

PODS = Shape(leaves=8, spines=4, servers_per_leaf=2, gpus_per_server=2, pods=4, cores=2)
"""Full bisection: 4 GPUs under a leaf with 4 aggs, 2 leaves in a pod with 2 cores for each agg."""
ALL = Allocation("job", 3, tuple(sorted(Cluster.empty(8, 4, 2, 2).idle)))
UNRESERVED = [name for name in NETWORKS if name not in ("ideal", "reserved")]


def traffic(network: NetworkName, pattern: Pattern, shape: Shape = PODS, load: float = 0.0, seed: int = 1) -> Traffic:
    """Of one job on all 32 GPUs."""
    rng = np.random.default_rng(seed)
    steps = steps_of(pattern, 32, 2)
    found = traffic_of(shape, network, ALL, steps, load * rng.random(shape.links), rng, 3, with_paths=True)
    assert found is not None
    return found


@pytest.mark.parametrize("network", UNRESERVED)
@pytest.mark.parametrize("planes", [1, 2])
def test_flows_between_pods_take_a_core_of_their_aggs_group(network: NetworkName, planes: int) -> None:
    """Told by the numbers of `Shape`, link by link: one agg number and core for both ends, in one plane."""
    shape = replace(PODS, planes=planes)
    got = traffic(network, "pairwise_alltoall", shape)
    assert got.paths is not None
    steps = steps_of("pairwise_alltoall", 32, 2)
    leaves = np.array([gpu.leaf for gpu in ALL.gpus])
    step, rank = np.nonzero(leaves != leaves[steps.destinations])
    ends = zip(leaves[rank].tolist(), leaves[steps.destinations[step, rank]].tolist(), strict=True)
    lanes = 3 if network == "paralet" else 1
    assert got.paths.links.shape == (len(step), planes * lanes, 4)
    assert shape.links == planes * 2 * (8 * 4 + 4 * 4 * 2)
    kinds: Counter[bool] = Counter()
    for (leaf, far), ways in zip(ends, got.paths.links.tolist(), strict=True):
        kinds[leaf // 2 == far // 2] += 1
        for number, (up, down, core_up, core_down) in enumerate(ways):
            first = number // lanes * 128
            agg = (up - first) % 4
            assert (up - first, down - first) == (leaf * 4 + agg, 32 + far * 4 + agg)
            if leaf // 2 == far // 2:
                assert (core_up, core_down) == (-1, -1)
                continue
            core = (core_up - first) % 2
            assert core_up - first == 64 + (leaf // 2 * 4 + agg) * 2 + core
            assert core_down - first == 96 + (far // 2 * 4 + agg) * 2 + core
    assert min(kinds[False], kinds[True]) > 0
    crossed = 2 * kinds[True] + 4 * kinds[False]
    assert got.loads.sum() == pytest.approx(planes * crossed)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("network", ["source_routing", "pinned"])
def test_with_full_bisection_no_two_flows_of_a_step_share_a_link(network: NetworkName, pattern: Pattern) -> None:
    assert traffic(network, pattern).loads.max() == 1
    assert traffic(network, pattern, load=2.0).loads.max() == 1
    half = replace(PODS, cores=1)  # 8 flows leave a pod by 4 links in the worst step
    assert traffic("pinned", pattern, half).loads.max() <= 2


def test_pins_and_balanced_flows_avoid_the_cores_that_others_use() -> None:
    pair = Allocation("pair", 3, tuple(gpu for gpu in ALL.gpus if gpu.leaf in (0, 2) and gpu.server == 0))
    busy = np.zeros(PODS.links)
    busy[64::2] = 1.0  # core 0 of every group, both ways
    for network in ("pinned", "balanced"):
        got = traffic_of(PODS, network, pair, steps_of("hierarchical_ring", 4, 2), busy, np.random.default_rng(1))
        assert got is not None
        assert {link % 2 for link in got.links.tolist() if link >= 64} == {1}


def test_planes_draw_paths_of_their_own_and_plan_the_same_ones() -> None:
    shape = replace(PODS, planes=2)
    for network, same in (("ecmp", False), ("pinned", True)):
        paths = traffic(network, "ring", shape).paths  # type: ignore[arg-type]
        assert paths is not None
        first, second = paths.links[:, 0], paths.links[:, 1]
        assert (np.where(second < 0, -1, second - shape.plane_links) == first).all() == same


def test_replanned_flows_have_links_of_their_own_in_every_tier() -> None:
    """Two jobs whose steps begin in turns, so that flows come and go between those of the other."""
    network = Replanned(PODS)
    rng = np.random.default_rng(1)
    order = rng.permutation(32)
    for slot, own in enumerate((order[:16], order[16:])):
        gpus = tuple(ALL.gpus[number] for number in sorted(own.tolist()))
        steps = steps_of("pairwise_alltoall", 16, 2)
        made = traffic_of(PODS, "replanned", Allocation(f"job{slot}", 3, gpus), steps, np.zeros(PODS.links), rng)
        assert made is not None
        network.start(slot, Job(f"job{slot}", 0.0, 16, 10.0, 0.5, "pairwise_alltoall"), made)
    going = {0, 1}
    while going:
        for slot in sorted(going):
            if rng.random() < 0.5 and network.next(slot) is None:
                going.discard(slot)
            assert max(network._low.most(), network._high.most()) <= 1
    assert network.paths_moved > 0
    assert not network._above
    assert not network._below


def test_jobs_in_virtual_clos_share_no_link_within_and_between_them() -> None:
    """Jobs come and go on 4 pods; in every step of every collective a flow has links that are its job's, alone."""
    rng = np.random.default_rng(1)
    cluster, held, stages = Cluster.empty(8, 4, 2, 2, pods=4, cores=2), list[Allocation](), Counter[int]()
    for number in range(60):
        gpus = int(rng.choice([4, 8, 16, 24, 32]))
        if (got := vclos.place(cluster, f"job{number}", gpus)) is None:
            cluster = cluster.release(held.pop(int(rng.integers(len(held)))))
            continue
        cluster, ranks = cluster.take(got), len(got.gpus)
        held.append(got)
        stages[got.stage] += 1
        own = links_of(got)
        assert not own & set().union(*map(links_of, held[:-1]))
        for pattern in PATTERNS:
            steps = steps_of(pattern, ranks, 2)
            made = traffic_of(PODS, "reserved", got, steps, np.zeros(PODS.links), rng)
            if made is None:
                assert got.stage == 1
                continue
            assert made.loads.max() == 1
            assert set(made.links.tolist()) <= own
    assert min(stages[stage] for stage in (1, 2, 3)) > 2


def links_of(allocation: Allocation) -> set[int]:
    """By the numbers of `Shape`, both ways."""
    low = {leaf * 4 + agg for leaf, agg in allocation.links}
    high = {64 + (pod * 4 + agg) * 2 + core for pod, agg, core in allocation.core_links}
    return low | {link + 32 for link in low | high} | high
