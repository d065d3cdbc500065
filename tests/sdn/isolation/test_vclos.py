# SPDX-License-Identifier: Apache-2.0
"""vClos: for any sequence of jobs, virtual Clos are complete and disjoint, and found whenever they exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from sdn.isolation import Allocation, Cluster, Gpu, integer_program, vclos

ALWAYS = settings(derandomize=True, max_examples=40, deadline=None)


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    return Cluster.empty(
        draw(st.integers(1, most)),
        draw(st.integers(1, most)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 4])),
    )


@st.composite
def worn(draw: st.DrawFn) -> Cluster:
    """A small cluster with GPUs and links taken at random, as no scheduler would."""
    cluster = draw(clusters(most=3))
    gpus = draw(st.lists(st.sampled_from(sorted(cluster.idle)), unique=True, max_size=cluster.gpus // 2))
    links = draw(
        st.lists(
            st.sampled_from([(n, m) for n, m in np.ndindex(cluster.free.shape) if cluster.free[n, m]]), unique=True
        )
    )
    return cluster.take(Allocation("others", 2, tuple(gpus), dict.fromkeys(links, 1)))


def check(cluster: Cluster, allocation: Allocation, wanted: int) -> None:
    """The definitions of appendix A.2, (2) to (5), and locality."""
    per_server = cluster.gpus_per_server
    given_ = given_gpus(cluster, wanted)
    assert len(set(allocation.gpus)) == len(allocation.gpus) == given_
    assert cluster.idle.holds(allocation.gpus).all()
    servers = Counter((gpu.leaf, gpu.server) for gpu in allocation.gpus)
    assert len(servers) == -(-given_ // per_server)
    if allocation.stage < 2:
        assert len(allocation.leaves) == 1
        assert not allocation.links
        return
    leaves, spines = allocation.leaves, allocation.spines
    assert len(leaves) > 1
    assert set(allocation.links) == {
        (leaf, spine) for leaf in leaves for spine in spines
    }  # (3): every leaf to every spine
    assert len(leaves) * len(spines) == given_  # (2)
    assert all(cluster.free[link] >= count == 1 for link, count in allocation.links.items())  # (4)
    assert set(Counter(gpu.leaf for gpu in allocation.gpus).values()) == {len(spines)}  # (5)


@ALWAYS
@given(clusters(), st.data())
def test_jobs_come_and_go_and_never_share_a_link(cluster: Cluster, data: st.DataObject) -> None:
    empty, held = cluster, list[Allocation]()
    for number in range(data.draw(st.integers(1, 12))):
        if held and data.draw(st.booleans()):
            leaving = held.pop(data.draw(st.integers(0, len(held) - 1)))
            cluster = cluster.release(leaving)
        wanted = data.draw(st.integers(1, empty.gpus))
        got = placed(cluster, f"job{number}", wanted)
        if got is not None:
            check(cluster, got, wanted)
            cluster = cluster.take(got)
            held.append(got)
        gpus = [gpu for allocation in held for gpu in allocation.gpus]
        assert len(set(gpus)) == len(gpus)
        taken = sum((Counter(allocation.links) for allocation in held), Counter[tuple[int, int]]())
        assert all(count <= empty.free[link] for link, count in taken.items())
    for allocation in held:
        cluster = cluster.release(allocation)
    assert cluster.idle == empty.idle
    assert np.array_equal(cluster.free, empty.free)


def given_gpus(cluster: Cluster, wanted: int) -> int | None:
    """The least number of GPUs, in whole servers beyond one server, for which an empty cluster has a place."""
    per_server = cluster.gpus_per_server
    if wanted <= per_server:
        return wanted
    empty = Cluster.empty(cluster.leaves, cluster.spines, cluster.servers_per_leaf, per_server)
    candidates = range(-(-wanted // per_server) * per_server, cluster.gpus + 1, per_server)
    return next((size for size in candidates if feasible(empty, size)), None)


def placed(cluster: Cluster, job: str, wanted: int) -> Allocation | None:
    """The allocation, None where the job waits or is refused; it is refused exactly where an empty cluster has none."""
    if given_gpus(cluster, wanted) is not None:
        return vclos.place(cluster, job, wanted)
    with pytest.raises(ValueError, match="even an empty cluster has no virtual Clos for so many or more"):
        vclos.place(cluster, job, wanted)
    return None


def feasible(cluster: Cluster, gpus: int) -> bool:
    """By trying everything: is there a place for a job on one leaf, or a virtual Clos?"""
    servers = gpus // cluster.gpus_per_server
    idle = cluster.idle.whole.tolist()
    if max(idle) >= servers:
        return True
    for count in range(2, cluster.leaves + 1):
        size, left = divmod(gpus, count)
        if left or size > cluster.spines or size % cluster.gpus_per_server:
            continue
        ready = [n for n in range(cluster.leaves) if idle[n] * cluster.gpus_per_server >= size]
        for leaves in combinations(ready, count):
            for spines in combinations(range(cluster.spines), size):
                if all(cluster.free[leaf, spine] for leaf in leaves for spine in spines):
                    return True
    return False


@settings(ALWAYS, max_examples=120)
@given(worn(), st.data())
def test_a_place_is_found_whenever_there_is_one(cluster: Cluster, data: st.DataObject) -> None:
    assume(cluster.gpus > cluster.gpus_per_server)
    wanted = data.draw(st.integers(cluster.gpus_per_server + 1, cluster.gpus))
    got = placed(cluster, "job", wanted)
    if got is not None:
        check(cluster, got, wanted)
    given_ = given_gpus(cluster, wanted)
    assert (got is not None) == (given_ is not None and feasible(cluster, given_))


@settings(ALWAYS, max_examples=120)
@given(worn(), st.data())
def test_decisions_are_the_best_among_all(cluster: Cluster, data: st.DataObject) -> None:
    """Stages 0 and 1 take the first server or leaf with the fewest that suffice; stage 2 minimises (6)."""
    got = placed(cluster, "job", data.draw(st.integers(1, cluster.gpus)))
    if got is None:
        reject()
    per_server, number = cluster.gpus_per_server, len(got.gpus)
    idle = Counter((gpu.leaf, gpu.server) for gpu in cluster.idle)
    whole = Counter(leaf for (leaf, _), count in idle.items() if count == per_server)
    if got.stage == 0:
        leaf, server = min((s for s in idle if idle[s] >= number), key=lambda s: (idle[s], s))
        own = sorted(gpu for gpu in cluster.idle if (gpu.leaf, gpu.server) == (leaf, server))
        assert list(got.gpus) == own[:number]
    elif got.stage == 1:
        leaf = min((n for n in whole if whole[n] * per_server >= number), key=lambda n: (whole[n], n))
        servers = sorted(server for (n, server), count in idle.items() if n == leaf and count == per_server)
        assert [gpu.server for gpu in got.gpus[::per_server]] == servers[: number // per_server]
        assert got.leaves == [leaf]
    else:
        assert cost(cluster, got.leaves, got.spines) == min(
            cost(cluster, leaves, spines)
            for leaves in combinations([n for n in whole if whole[n] * per_server >= len(got.spines)], len(got.leaves))
            for spines in combinations(range(cluster.spines), len(got.spines))
            if cluster.free[np.ix_(leaves, spines)].all()
        )


def cost(cluster: Cluster, leaves: Iterable[int], spines: Iterable[int]) -> int:
    """(6): the idle GPUs, in whole servers, of the leaves, and the free ports of the spines."""
    gpus = cluster.idle.whole[list(leaves)].sum() * cluster.gpus_per_server
    return int(gpus + cluster.free[:, list(spines)].sum())


@pytest.mark.parametrize(("wanted", "given_"), [(5, 6), (7, 8), (10, 12), (11, 12), (13, 16), (15, 16)])
def test_sizes_without_a_virtual_clos_are_raised_to_the_next_that_has_one(wanted: int, given_: int) -> None:
    got = vclos.place(Cluster.empty(4, 4, 4), "job", wanted)
    assert got is not None
    assert len(got.gpus) == given_


@pytest.mark.parametrize("wanted", [9, 16])
def test_a_job_for_which_no_spines_suffice_is_refused(wanted: int) -> None:
    """Two spines carry at most virtual leaves of two GPUs each."""
    with pytest.raises(ValueError, match=f"asks for {wanted} GPUs, and even an empty cluster has no virtual Clos"):
        vclos.place(Cluster.empty(4, 2, 4), "big", wanted)


def test_a_program_that_runs_out_of_time_is_no_infeasible_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(_: integer_program.IntegerProgram) -> None:
        raise integer_program.Undecided("the time is over")

    monkeypatch.setattr(integer_program.IntegerProgram, "solve", undecided)
    diagonal = {(n, n): 1 for n in range(4)}  # the cheapest leaves and spines have not all links: a program decides
    with pytest.raises(integer_program.Undecided, match="the time is over"):
        vclos.place(Cluster.empty(4, 4, 2).take(Allocation("others", 2, (), diagonal)), "job", 4)


def test_a_time_limit_without_a_solution_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_program, "TIME_LIMIT_S", 0.0)
    program = integer_program.IntegerProgram()
    rng = np.random.default_rng(1)
    columns = [program.column(1, cost) for cost in rng.uniform(1, 2, 200)]
    for weights in rng.integers(1, 1000, (5, 200)).tolist():  # market split: hard, and no heuristic solves it
        program.row(dict(zip(columns, map(float, weights), strict=True)), sum(weights) // 2, sum(weights) // 2)
    with pytest.raises(integer_program.Undecided, match="of 200 columns has no solution after 0 s"):
        program.solve()


def test_small_jobs_fill_the_fullest_server_and_leaf_first() -> None:
    cluster = Cluster.empty(2, 4, 2, 4)
    placement = vclos.place(cluster, "one", 1)
    assert placement is not None
    assert placement.stage == 0
    cluster = cluster.take(placement)
    two = vclos.place(cluster, "two", 3)
    assert two is not None
    assert {(gpu.leaf, gpu.server) for gpu in two.gpus} == {(placement.gpus[0].leaf, placement.gpus[0].server)}
    whole = vclos.place(cluster, "whole", 8)
    assert whole is not None
    assert (whole.stage, whole.leaves) == (1, [1])


def test_virtual_leaves_are_as_large_as_spines_allow() -> None:
    """Algorithm 3, line 1: 8 GPUs on 4 spines begin with 2 virtual leaves."""
    got = vclos.place(Cluster.empty(4, 4, 4), "job", 8)
    assert got is not None
    assert (len(got.leaves), len(got.spines)) == (2, 4)
    assert list(vclos.sizes(8, 4, 4, 1)) == [(2, 4), (4, 2)]
    assert list(vclos.sizes(9, 4, 4, 1)) == [(3, 3)]  # 2, 4, 8 miss it


def test_links_can_be_missing_where_gpus_are_not() -> None:
    """Fragmentation of the network (table 2): two leaves have room, and no spine has a free link to both."""
    cluster = Cluster.empty(2, 2, 2).take(Allocation("others", 2, (Gpu(0, 0, 0), Gpu(1, 0, 0)), {(0, 0): 1, (1, 1): 1}))
    assert len(cluster.idle) == 2
    assert vclos.place(cluster, "job", 2) is None


def test_gpus_chosen_by_others_get_the_spines_with_the_least_free_ports() -> None:
    cluster = Cluster.empty(4, 4, 4)
    first = [Gpu(leaf, server, 0) for leaf in range(4) for server in (0, 1)]
    allocation = vclos.spines_for(cluster, "one", first)
    assert allocation.spines == [0, 1]
    assert len(allocation.links) == 8
    cluster = cluster.take(allocation)
    two = vclos.spines_for(cluster, "two", [Gpu(leaf, 2, 0) for leaf in range(4)])
    assert two.spines == [2]
    cluster = cluster.take(two)
    with pytest.raises(ValueError, match="needs 2 spines with a free link to each of its 2 leaves, and there is 1"):
        vclos.spines_for(cluster, "three", [Gpu(leaf, server, 0) for leaf in (0, 1) for server in (2, 3)])
    assert vclos.spines_for(cluster, "local", [Gpu(0, 3, 0)]).links == {}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (33, "job 'big' asks for 33 GPUs and the whole cluster has 32"),
        (0, "job 'big' asks for 0 GPUs; it must ask for at least 1"),
    ],
)
def test_a_job_that_can_never_run_is_refused_in_one_sentence(wanted: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        vclos.place(Cluster.empty(2, 4, 4, 4), "big", wanted)


def test_nothing_is_taken_or_released_twice() -> None:
    cluster = Cluster.empty(2, 2, 2)
    got = vclos.place(cluster, "job", 4)
    assert got is not None
    with pytest.raises(ValueError, match="a GPU that another has"):
        cluster.take(got).take(got)
    with pytest.raises(ValueError, match="a link that another has"):
        cluster.take(Allocation("a", 2, (), {(0, 0): 2}))
    with pytest.raises(ValueError, match="released before"):
        cluster.release(got)
    with pytest.raises(ValueError, match="one or more spines, not 0"):
        Cluster.empty(2, 0, 2)
