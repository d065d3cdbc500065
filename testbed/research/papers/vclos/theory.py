# SPDX-License-Identifier: Apache-2.0
"""What follows from counting: sizes of fabrics, flows on a link, and collisions of hashes."""

from collections import Counter
from collections.abc import Sequence
from math import lgamma, log
from statistics import fmean
from time import process_time

import numpy as np

from sdn.isolation import ocs_vclos, vclos
from sdn.isolation.cluster import Cluster
from sdn.isolation.ocs_cluster import OcsCluster
from sdn.planners.rates import max_min_rates
from sdn.topoopt import double_binary_tree

Pair = tuple[int, int]
"""Source and destination GPU."""


def rearrangeable(radix: int) -> tuple[int, int]:
    """GPUs and switches of a leaf-spine of full bisection, rearrangeably non-blocking."""
    return radix * radix // 2, radix + radix // 2


def strictly_non_blocking(radix: int) -> tuple[int, int]:
    """GPUs and switches where p_u >= 2 p_d - 1 (section 5.1): p_d is as large as the leaf's ports allow."""
    down = (radix + 1) // 3
    return down * radix, 2 * down - 1 + radix


def most_flows(pairs: Sequence[Pair], per_leaf: int) -> int:
    """The most flows on a link by source routing with f_m(i) = i, on a leaf-spine with as many spines as GPUs per leaf.

    The spine of a flow is the place of its source on its leaf.
    """
    loads: Counter[tuple[str, int, int]] = Counter()
    for source, destination in pairs:
        leaf, far, spine = source // per_leaf, destination // per_leaf, source % per_leaf
        if leaf != far:
            loads["up", leaf, spine] += 1
            loads["down", far, spine] += 1
    return max(loads.values(), default=0)


def to_parents(ranks: int) -> list[Pair]:
    """The flows of one phase of a double binary tree: in both trees, from each rank to its parent."""
    trees = double_binary_tree(ranks)
    return [(rank, parent) for tree in trees for rank, parent in enumerate(tree) if parent is not None]


def at_most(flows: int, ports: int, most: int) -> float:
    """The probability that no port gets more than `most` flows, where each flow's port is drawn.

    n! / p^n times the coefficient of x^n in (sum of x^k / k! for k <= most)^p.
    """
    port = [1.0 / np.prod(np.arange(1.0, k + 1)) for k in range(most + 1)]
    power = np.ones(1)
    for _ in range(ports):
        power = np.convolve(power, port)[: flows + 1]
    if len(power) <= flows or power[flows] <= 0:
        return 0.0
    return float(np.exp(lgamma(flows + 1) - flows * log(ports) + log(power[flows])))


def exactly(flows: int, ports: int, most: int) -> float:
    """The probability that the fullest port has `most` flows."""
    return at_most(flows, ports, most) - at_most(flows, ports, most - 1)


def lost_part(flows: int) -> float:
    """The part of its throughput that a flow loses where so many share a link fairly, over having it alone."""
    alone, shared = (max_min_rates(np.ones(1), np.zeros((n, 1), np.int32), np.ones(n))[0] for n in (1, flows))
    return float(1 - shared / alone)


def placement_s(optical: bool, arrivals: int = 40) -> float:
    """The mean processor time to place a job over several leaves on 2,048 GPUs, nine tenths full, in seconds.

    Jobs of one to eight servers come, and random ones go when the cluster is full.
    """
    rng = np.random.default_rng(1)
    size = (64, 32, 4, 8)
    cluster: Cluster | OcsCluster = OcsCluster.empty(*size, 8) if optical else Cluster.empty(*size)
    place = ocs_vclos.place if optical else vclos.place
    running: list[object] = []
    times: list[float] = []
    while len(times) < arrivals:
        if len(cluster.idle) < cluster.gpus // 10:
            cluster = cluster.release(running.pop(int(rng.integers(len(running)))))  # type: ignore[arg-type]
        begun = process_time()
        found = place(cluster, "job", 8 << int(rng.integers(6)))  # type: ignore[arg-type]
        taken = process_time() - begun
        if found is None:
            cluster = cluster.release(running.pop(int(rng.integers(len(running)))))  # type: ignore[arg-type]
        else:
            cluster = cluster.take(found)  # type: ignore[arg-type]
            running.append(found)
        if found is None or found.stage > 1:
            times.append(taken)
    return fmean(times)
