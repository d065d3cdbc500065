# SPDX-License-Identifier: Apache-2.0
"""Placement in pods: as local as possible, and virtual Clos over several pods found whenever they exist."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.isolation import Allocation, Cluster, Gpu, vclos
from sdn.isolation.packing import packed, relaxed
from sdn.isolation.pods_vclos import over_pods, sizes

ALWAYS = settings(derandomize=True, max_examples=60, deadline=None)


def empty() -> Cluster:
    """Three pods of two leaves with two servers of one GPU each, two aggs, and two cores for each agg."""
    return Cluster.empty(6, 2, 2, pods=3, cores=2)


@st.composite
def worn(draw: st.DrawFn) -> Cluster:
    """With GPUs and links taken at random, as no scheduler would."""
    cluster = empty()
    few = {"unique": True, "max_size": 6}
    gpus = draw(st.lists(st.sampled_from(sorted(cluster.idle)), **few))
    links = draw(st.lists(st.sampled_from(list(np.ndindex(6, 2))), **few))
    above = draw(st.lists(st.sampled_from(list(np.ndindex(3, 2, 2))), **few))
    return cluster.take(Allocation("others", 2, tuple(gpus), dict.fromkeys(links, 1), frozenset(above)))


def exists(cluster: Cluster, gpus: int) -> bool:
    """Whether there is a virtual Clos over several pods, by trying all of them."""
    for pods, own, size in sizes(gpus, 3, 2, 2, 1):
        for chosen, aggs in product(combinations(range(3), pods), combinations(range(2), size)):
            for leaves in product(*(combinations((2 * pod, 2 * pod + 1), own) for pod in chosen)):
                every = [leaf for of_pod in leaves for leaf in of_pod]
                if (
                    all(cluster.idle.whole[leaf] >= size for leaf in every)
                    and cluster.free[np.ix_(every, aggs)].all()
                    and all(cluster.free_above[list(chosen), agg].all(axis=0).sum() >= own for agg in aggs)
                ):
                    return True
    return False


@ALWAYS
@given(worn(), st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_a_clos_over_pods_is_complete_and_found_whenever_one_exists(cluster: Cluster, gpus: int) -> None:
    got = over_pods(cluster, gpus, "job")
    assert (got is not None) == exists(cluster, gpus)
    if got is None:
        return
    taken = cluster.take(got)  # raises for a GPU or a link that is not free
    assert taken.release(got).free_above.tolist() == cluster.free_above.tolist()
    leaves, aggs, pods = got.leaves, got.spines, sorted({leaf // 2 for leaf in got.leaves})
    own = len(leaves) // len(pods)
    assert got.stage == 3
    assert len(set(got.gpus)) == gpus == len(leaves) * len(aggs)
    assert [sum(leaf // 2 == pod for leaf in leaves) for pod in pods] == [own] * len(pods)
    assert set(got.links) == set(product(leaves, aggs))
    assert list(got.cores) == aggs
    assert all(len(cores) == own for cores in got.cores.values())
    assert got.core_links == {(pod, agg, core) for pod in pods for agg, cores in got.cores.items() for core in cores}


def test_a_job_gets_one_pod_where_it_can_and_the_fullest_that_has_room() -> None:
    """Pod 1 has three idle servers, the others four: a job of three servers fits there."""
    cluster = empty().take(Allocation("others", 0, (Gpu(2, 0, 0),)))
    for rule in (packed, relaxed):
        got = rule(cluster, "job", 3)
        assert got is not None
        assert (got.stage, {gpu.leaf // 2 for gpu in got.gpus}) == (2, {1})
    got = packed(cluster, "job", 9)
    assert got is not None
    assert (got.stage, [sum(gpu.leaf // 2 == pod for gpu in got.gpus) for pod in range(3)]) == (3, [4, 1, 4])
    got = vclos.place(empty().take(Allocation("others", 0, (Gpu(0, 0, 0),))), "job", 4)
    assert got is not None
    assert (got.stage, got.leaves, got.core_links) == (2, [2, 3], frozenset())


def test_a_job_waits_where_another_has_the_cores() -> None:
    first = vclos.place(empty(), "first", 8)
    assert first is not None
    assert first.stage == 3
    cluster = empty().take(first)
    assert vclos.place(cluster, "second", 4) is not None  # in the pod that is left
    assert vclos.place(cluster, "third", 8) is None
    with pytest.raises(ValueError, match="cannot take a link that another has"):
        cluster.take(Allocation("thief", 3, (), {}, frozenset([next(iter(first.core_links))])))


def test_pods_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="5 leaves cannot be shared out equally over 2 pods"):
        Cluster.empty(5, 2, 2, pods=2, cores=1)
