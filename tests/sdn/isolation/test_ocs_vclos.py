# SPDX-License-Identifier: Apache-2.0
"""OCS-vClos: jobs get complete sub-topologies if there are any; circuits of running jobs do not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sdn.isolation import Allocation, Cluster, Gpu, ocs_vclos, vclos
from sdn.isolation.ocs_cluster import Circuit, OcsAllocation, OcsCluster, OpticalPort

ALWAYS = settings(derandomize=True, max_examples=40, deadline=None)


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> OcsCluster:
    return OcsCluster.empty(
        draw(st.integers(1, most)),
        draw(st.integers(1, most)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2])),
        draw(st.integers(1, 2)),
    )


def given_gpus(cluster: OcsCluster, wanted: int) -> int | None:
    """The least number of GPUs, in whole servers beyond one server, for which an empty cluster has a place."""
    per_server = cluster.gpus_per_server
    if wanted <= per_server:
        return wanted
    candidates = range(-(-wanted // per_server) * per_server, cluster.gpus + 1, per_server)
    return next((size for size in candidates if feasible(cluster.emptied(), size)), None)


def placed(cluster: OcsCluster, job: str, wanted: int) -> OcsAllocation | None:
    """The allocation, None where the job waits or is refused; it is refused exactly where an empty cluster has none."""
    if given_gpus(cluster, wanted) is not None:
        return ocs_vclos.place(cluster, job, wanted)
    with pytest.raises(ValueError, match="even an empty cluster has no virtual Clos for so many or more"):
        ocs_vclos.place(cluster, job, wanted)
    return None


def check(cluster: OcsCluster, got: OcsAllocation, wanted: int) -> None:
    """The definitions of section 7 and appendix A.3, and locality."""
    per_server = cluster.gpus_per_server
    size = given_gpus(cluster, wanted)
    assert size is not None
    assert len(set(got.gpus)) == len(got.gpus) == size
    assert len({(gpu.leaf, gpu.server) for gpu in got.gpus}) == -(-size // per_server)
    assert got.made == got.circuits - cluster.circuits
    ends = [(circuit.a.level, circuit.b.level) for circuit in got.circuits]
    by_leaf = Counter(gpu.leaf for gpu in got.gpus)
    if got.stage < 2:
        assert len(got.leaves) == 1
        assert not got.circuits
    elif ("leaf", "leaf") in ends:
        assert set(ends) == {("leaf", "leaf")}
        assert all({c.a.switch, c.b.switch} == set(got.leaves) for c in got.circuits)
        assert set(by_leaf.values()) == {len(got.circuits)}
    else:
        assert set(ends) == {("leaf", "spine")}
        links = Counter((circuit.a.switch, circuit.b.switch) for circuit in got.circuits)
        assert sum(links.values()) == size  # (9)
        spines = {spine for _, spine in links}
        assert all(links[leaf, spine] for leaf in got.leaves for spine in spines)  # every leaf reaches every spine
        assert all(sum(links[leaf, spine] for spine in spines) == by_leaf[leaf] for leaf in got.leaves)  # (10)
        assert (len(spines) == 1) == (got.stage == 2) or got.stage == 3


@ALWAYS
@given(clusters(), st.data())
def test_jobs_come_and_go_and_no_running_job_is_rewired(cluster: OcsCluster, data: st.DataObject) -> None:
    idle, held = cluster.idle, list[OcsAllocation]()
    for number in range(data.draw(st.integers(1, 12))):
        if held and data.draw(st.booleans()):
            cluster = cluster.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        wanted = data.draw(st.integers(1, cluster.gpus))
        got = placed(cluster, f"job{number}", wanted)
        if got is not None:
            check(cluster, got, wanted)
            cluster = cluster.take(got)
            held.append(got)
        assert all(allocation.circuits <= cluster.circuits for allocation in held)  # occupied circuits are still there
        ports = Counter(port for circuit in cluster.circuits for port in circuit.ports)
        assert set(ports.values()) <= {1}
        assert all(cluster.ocs[circuit.a] == cluster.ocs[circuit.b] for circuit in cluster.circuits)
        assert sum(len(allocation.circuits) for allocation in held) == len(cluster.busy)
        assert all(free == sorted(free) for free in cluster.free_ports().values())
    for allocation in held:
        cluster = cluster.release(allocation)
    assert cluster.idle == idle
    assert not cluster.busy


@st.composite
def worn(draw: st.DrawFn) -> OcsCluster:
    """A small cluster in which GPUs and circuits are taken at random."""
    cluster = draw(clusters(most=3))
    gpus = draw(st.lists(st.sampled_from(sorted(cluster.idle)), unique=True, max_size=cluster.gpus // 3))
    circuits = draw(st.lists(st.sampled_from(sorted(cluster.circuits)), unique=True, max_size=5))
    return cluster.take(OcsAllocation("others", 3, tuple(gpus), frozenset(circuits)))


def shares(total: int, most: list[int]) -> Iterator[tuple[int, ...]]:
    """Every way to divide `total` so that no part is more than its most."""
    return (parts for parts in product(*(range(min(total, top) + 1) for top in most)) if sum(parts) == total)


def wired(
    pairs: list[tuple[int, int, int]],
    leaf_free: Counter[tuple[int, int]],
    spine_free: Counter[tuple[int, int]],
    switches: int,
) -> bool:
    """Whether (leaf, spine, links) can all be had from these free ports by (switch, OCS)."""
    if not pairs:
        return True
    (leaf, spine, links), *rest = pairs
    most = [min(leaf_free[leaf, ocs], spine_free[spine, ocs]) for ocs in range(switches)]
    for parts in shares(links, most):
        used_leaf = Counter({(leaf, ocs): part for ocs, part in enumerate(parts)})
        used_spine = Counter({(spine, ocs): part for ocs, part in enumerate(parts)})
        if wired(rest, leaf_free - used_leaf, spine_free - used_spine, switches):
            return True
    return False


def feasible(cluster: OcsCluster, gpus: int) -> bool:
    """By trying everything that the stages may do."""
    per_server, switches = cluster.gpus_per_server, max(cluster.switches) + 1
    free = cluster.free_ports()
    leaf_free = Counter({(switch, ocs): len(ports) for (level, switch, ocs), ports in free.items() if level == "leaf"})
    spine_free = Counter(
        {(switch, ocs): len(ports) for (level, switch, ocs), ports in free.items() if level == "spine"}
    )
    room = cluster.idle.whole.tolist()
    servers = gpus // per_server
    if max(room) >= servers:
        return True
    if servers % 2 == 0:
        for one, other in combinations(range(cluster.leaves), 2):
            direct = sum(min(leaf_free[one, ocs], leaf_free[other, ocs]) for ocs in range(switches))
            if min(room[one], room[other]) >= servers // 2 and direct >= gpus // 2:
                return True
    for counts in shares(servers, room):  # one spine
        for spine in range(cluster.spines):
            pairs = [(leaf, spine, count * per_server) for leaf, count in enumerate(counts) if count]
            if wired(pairs, leaf_free, spine_free, switches):
                return True
    for count in range(2, cluster.leaves + 1):  # l virtual leaves of s GPUs
        size, left = divmod(gpus, count)
        if left or size % per_server:
            continue
        for leaves in shares(count, [servers_there * per_server // size for servers_there in room]):
            for spines in shares(size, [size] * cluster.spines):
                pairs = [
                    (leaf, spine, here * there)
                    for leaf, here in enumerate(leaves)
                    for spine, there in enumerate(spines)
                    if here * there
                ]
                if wired(pairs, leaf_free, spine_free, switches):
                    return True
    return False


@settings(ALWAYS, max_examples=120)
@given(worn(), st.data())
def test_a_place_is_found_whenever_there_is_one(cluster: OcsCluster, data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, max(1, cluster.gpus // cluster.gpus_per_server)))
    wanted = servers * cluster.gpus_per_server
    assume(wanted > cluster.gpus_per_server)  # stage 0 needs a server only
    got = placed(cluster, "job", wanted)
    if got is not None:
        check(cluster, got, wanted)
    given_ = given_gpus(cluster, wanted)
    assert (got is not None) == (given_ is not None and feasible(cluster, given_))


def fragmented() -> tuple[Cluster, OcsCluster]:
    """Two leaves with room for a job, whose only free links lead to different spines: as links, and as circuits."""
    plain = Cluster.empty(2, 2, 2)
    optical = OcsCluster.empty(2, 2, 2, 1, switches=1)
    gpus = (Gpu(0, 0, 0), Gpu(1, 0, 0))
    taken = [(0, 0), (1, 1)]
    circuits = frozenset(Circuit.of(OpticalPort("leaf", n, m), OpticalPort("spine", m, n)) for n, m in taken)
    return (
        plain.take(Allocation("others", 2, gpus, dict.fromkeys(taken, 1))),
        optical.take(OcsAllocation("others", 3, gpus, circuits)),
    )


def test_it_places_a_job_that_vclos_cannot() -> None:
    plain, optical = fragmented()
    assert vclos.place(plain, "job", 2) is None
    got = ocs_vclos.place(optical, "job", 2)
    assert got is not None
    check(optical, got, 2)
    assert len(got.made) == 1


def test_two_leaves_are_joined_directly_by_half_as_many_circuits_and_no_spine() -> None:
    cluster = OcsCluster.empty(4, 4, 2, 2, switches=1)
    got = ocs_vclos.place(cluster, "job", 8)
    assert got is not None
    assert (got.stage, len(got.circuits), len(got.leaves)) == (2, 4, 2)
    assert {port.level for circuit in got.circuits for port in circuit.ports} == {"leaf"}
    after = cluster.take(got)
    assert len(after.circuits) == len(cluster.circuits) - 8 + 4  # what the ports had before, idle, is gone


def test_present_circuits_are_used_before_others_are_set_up() -> None:
    cluster = OcsCluster.empty(3, 3, 1, 1, switches=1)
    got = ocs_vclos.place(cluster, "job", 3)
    assert got is not None
    assert got.circuits <= cluster.circuits
    assert not got.made


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (17, "job 'big' asks for 17 GPUs and the whole cluster has 16"),
        (-1, "job 'big' asks for -1 GPUs; it must ask for at least 1"),
    ],
)
def test_a_job_that_can_never_run_is_refused_in_one_sentence(wanted: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ocs_vclos.place(OcsCluster.empty(4, 4, 2, 2, switches=2), "big", wanted)


def test_used_resources_cannot_be_taken_nor_free_ones_released() -> None:
    cluster = OcsCluster.empty(2, 2, 1, 1, switches=2)
    leaf0, leaf1 = OpticalPort("leaf", 0, 0), OpticalPort("leaf", 1, 1)
    first = OcsAllocation("first", 2, (), frozenset({Circuit.of(leaf0, leaf1)}))
    taken = cluster.take(first)
    with pytest.raises(ValueError, match="an optical port that is used already"):
        taken.take(OcsAllocation("second", 2, (), frozenset({Circuit.of(leaf0, OpticalPort("spine", 0, 0))})))
    with pytest.raises(ValueError, match="between two optical switches"):
        cluster.take(OcsAllocation("third", 2, (), frozenset({Circuit.of(leaf0, OpticalPort("leaf", 1, 0))})))
    with pytest.raises(ValueError, match="released before"):
        taken.release(first).release(first)
    with pytest.raises(ValueError, match="to itself"):
        Circuit.of(leaf0, leaf0)
    with pytest.raises(ValueError, match="one or more optical switches, not 0"):
        OcsCluster.empty(2, 2, 1, 1, switches=0)
