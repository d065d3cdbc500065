# SPDX-License-Identifier: Apache-2.0
"""Placement without reservations: each rule gives the GPUs it promises, and waits only when it must."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from sdn.isolation import Allocation, Cluster, Gpu, vclos
from sdn.isolation.packing import packed, relaxed, scattered

ALWAYS = settings(derandomize=True, max_examples=40, deadline=None)


@st.composite
def used(draw: st.DrawFn) -> Cluster:
    """A small cluster with GPUs taken at random."""
    cluster = Cluster.empty(draw(st.integers(1, 4)), 8, draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])))
    gpus = draw(st.lists(st.sampled_from(sorted(cluster.idle)), unique=True))
    return cluster.take(Allocation("others", 2, tuple(gpus)))


@ALWAYS
@given(used(), st.data())
def test_each_rule_waits_exactly_when_it_must(cluster: Cluster, data: st.DataObject) -> None:
    gpus = data.draw(st.integers(1, cluster.gpus))
    per_server = cluster.gpus_per_server
    whole = int(cluster.idle.whole.sum())
    locally = bool((cluster.idle.per_server >= gpus).any()) if gpus <= per_server else whole >= -(-gpus // per_server)
    anywhere = len(cluster.idle) >= gpus
    random = partial(scattered, np.random.default_rng(1))
    for rule, fits in ((packed, locally), (relaxed, anywhere), (random, anywhere)):
        got = rule(cluster, "job", gpus)
        assert (got is not None) == fits
        if got is not None:
            cluster.take(got)  # raises for a GPU that is not idle
            assert len(set(got.gpus)) == len(got.gpus) >= gpus
            assert not got.links
            assert (got.stage == 2) == (len(got.leaves) > 1)


def test_as_few_leaves_as_possible_are_used() -> None:
    cluster = Cluster.empty(4, 8, 4).take(Allocation("others", 2, (Gpu(0, 0, 0), Gpu(1, 1, 0), Gpu(2, 2, 0))))
    got = packed(cluster, "job", 5)
    assert got is not None
    assert got.leaves == [0, 3]
    assert [gpu.leaf for gpu in got.gpus] == [0, 3, 3, 3, 3]


def test_relaxed_breaks_locality_only_when_packed_has_no_place() -> None:
    cluster = Cluster.empty(2, 4, 2, 2)
    assert relaxed(cluster, "job", 4) == packed(cluster, "job", 4)
    halves = cluster.take(Allocation("others", 2, tuple(Gpu(leaf, server, 0) for leaf in (0, 1) for server in (0, 1))))
    assert packed(halves, "job", 2) is None
    got = relaxed(halves, "job", 2)
    assert got is not None
    assert got.gpus == (Gpu(0, 0, 1), Gpu(0, 1, 1))


@ALWAYS
@given(used(), st.data())
def test_packed_places_whatever_vclos_places(cluster: Cluster, data: st.DataObject) -> None:
    """So a job that vClos makes wait although `packed` has a place waits for links."""
    gpus = data.draw(st.integers(1, cluster.gpus))
    try:
        found = vclos.place(cluster, "job", gpus)
    except ValueError:
        reject()
    assert found is None or packed(cluster, "job", gpus) is not None


@pytest.mark.parametrize("rule", [packed, relaxed, partial(scattered, np.random.default_rng(1))])
def test_a_job_that_can_never_run_is_refused(rule: partial[Allocation | None]) -> None:
    with pytest.raises(ValueError, match="job 'big' asks for 9 GPUs and the whole cluster has 8"):
        rule(Cluster.empty(2, 4, 2, 2), "big", 9)
