# SPDX-License-Identifier: Apache-2.0
"""Virtual Clos on switches: a job reaches all of its hosts, no others, and only on its own links."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from netmodel import Flow, NoRouteError, OvsHash, PortRef, Topology, check_circuits, leaf_spine, path_of, with_circuits
from sdn.isolation import optical_clos
from sdn.isolation.virtual_clos import SubClos, VirtualClos, placed, sub_clos
from sdn.openflow.program import programs
from sdn.openflow.steering import Steer
from tests.sdn import patterns
from tests.sdn.isolation.test_source_routing import forwarded

RATE = 10**6


def flow(topology: Topology, src: str, dst: str) -> Flow:
    return Flow(topology.host(src).nics[0].address, topology.host(dst).nics[0].address, 0xC123)


@st.composite
def shared(draw: st.DrawFn) -> tuple[Topology, dict[str, list[str]]]:
    """A fabric with as many uplinks as hosts per leaf, and two jobs whose hosts lie anyhow, with some left over."""
    per_leaf, parallel = draw(st.sampled_from([(2, 1), (4, 1), (4, 2), (6, 3)]))
    topology = leaf_spine(draw(st.integers(2, 4)), per_leaf // parallel, per_leaf, RATE, parallel_links=parallel)
    order = draw(st.permutations([host.name for host in topology.hosts]))
    first, rest = draw(st.integers(1, len(order))), draw(st.integers(0, len(order)))
    return topology, {"one": order[:first], "two": order[first : first + rest]}


def placed_or_rejected(topology: Topology, jobs: Mapping[str, int]) -> tuple[VirtualClos, Topology]:
    """The jobs over cables, or over the circuits of OCS-vClos where the fabric has optical switches.

    The second result is the fabric with its circuits. Hypothesis draws another example where the jobs do not fit.
    """
    try:
        if all(switch.role != "ocs" for switch in topology.switches):
            return placed(topology, jobs), topology
        found = optical_clos.placed(topology, jobs)
    except ValueError:
        reject()
    return found.clos, with_circuits(topology, found.circuits)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(shared(), st.data())
def test_jobs_stay_on_links_of_their_own_also_when_links_die(
    made: tuple[Topology, dict[str, list[str]]], data: st.DataObject
) -> None:
    topology, jobs = made
    try:
        steering = sub_clos(topology, jobs)
    except ValueError:
        reject()  # too few spines for jobs that lie like that
    between = [link for link in topology.links if not topology.has_host(link.a.node)]
    dead = frozenset(data.draw(st.lists(st.sampled_from(between), max_size=2, unique=True)))
    routes, held = steering.routes(topology, dead), programs(topology, dead, steering=steering)
    users: defaultdict[PortRef, set[str]] = defaultdict(set)
    job_of = {host: job for job, hosts in jobs.items() for host in hosts}
    for src in topology.hosts:
        for dst in topology.hosts:
            if src == dst:
                continue
            wanted, job = flow(topology, src.name, dst.name), job_of.get(src.name)
            way = forwarded(topology, held, wanted)
            if way is None:
                assert dead or job is None or job != job_of.get(dst.name)
                with pytest.raises(NoRouteError):
                    path_of(topology, wanted, OvsHash(), routes=routes)
                continue
            assert job is not None
            assert job == job_of.get(dst.name)
            assert tuple(way) == path_of(topology, wanted, OvsHash(), routes=routes)
            for port in way[1:-1]:
                users[port].add(job)
                assert topology.link_at(port) not in dead
    assert all(len(jobs_there) == 1 for jobs_there in users.values())


def test_hosts_of_one_job_and_leaf_go_by_links_of_their_own() -> None:
    topology = leaf_spine(2, 4, 4, RATE)
    routes = sub_clos(topology, {"a": ["h1", "h2", "h5", "h6"], "b": ["h3", "h4", "h7", "h8"]}).routes(topology)
    ways = [path_of(topology, flow(topology, f"h{n}", f"h{n + 4}"), OvsHash(), routes=routes) for n in (1, 2, 3, 4)]
    assert len({way[1] for way in ways}) == 4
    assert len({way[2] for way in ways}) == 4


def test_when_a_link_dies_the_job_goes_on_over_its_others() -> None:
    topology = leaf_spine(2, 4, 4, RATE)
    steering = sub_clos(topology, {"a": ["h1", "h2", "h5", "h6"], "b": ["h3", "h4", "h7", "h8"]})
    own = {topology.link_at(port) for port in steering.jobs[0].uplinks}
    (gone, *_) = [link for link in own if "leaf1" in (link.a.node, link.b.node)]
    routes = steering.routes(topology, frozenset({gone}))
    used = {
        topology.link_at(port)
        for n in (1, 2)
        for port in path_of(topology, flow(topology, f"h{n}", f"h{n + 4}"), OvsHash(), routes=routes)[1:3]
    }
    assert len(used) == 2
    assert used <= own - {gone}


def test_a_steering_request_survives_serialization() -> None:
    steering = sub_clos(leaf_spine(2, 2, 2, RATE), {"a": ["h1", "h3"], "b": ["h2", "h4"]})
    assert Steer.model_validate_json(Steer(steer=steering).model_dump_json()).steer == steering


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ((SubClos("a", ("h9",)),), "virtual Clos of 'a': topology .* has no host 'h9'"),
        ((SubClos("a", ("h1",), (PortRef("leaf1", 1),)),), "leaf1:1 is not a leaf's port to a spine"),
        ((SubClos("a", ("h1",)), SubClos("b", ("h1",))), "h1 is given 2 times; a host or a link belongs to one job"),
        (
            (SubClos("a", ("h1",), (PortRef("leaf1", 3),)), SubClos("b", ("h2",), (PortRef("leaf1", 3),))),
            "leaf1:3 is given 2 times",
        ),
    ],
)
def test_an_invalid_virtual_clos_is_refused_in_one_sentence(jobs: tuple[SubClos, ...], sentence: str) -> None:
    topology = leaf_spine(2, 2, 2, RATE)
    with pytest.raises(ValueError, match=sentence):
        VirtualClos(jobs).routes(topology)


def test_hosts_and_links_are_chosen_for_jobs_of_which_only_the_size_is_known() -> None:
    topology = leaf_spine(4, 4, 4, RATE)
    one, two = placed(topology, {"one": 8, "two": 6}).jobs
    leaves = [topology.peer(PortRef(host, 1)).node for host in one.hosts]
    assert sorted(Counter(leaves).values()) == [4, 4]
    assert leaves == sorted(leaves)  # so that a ring of the ranks crosses as few links as can be
    assert set(one.hosts).isdisjoint(two.hosts)
    assert set(one.uplinks).isdisjoint(two.uplinks)
    assert (len(two.hosts), len({topology.peer(PortRef(host, 1)).node for host in two.hosts})) == (6, 2)


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ({"big": 17}, r"job 'big' asks for 17 GPUs and the whole cluster has 16; make the job smaller or the cluster"),
        ({"one": 8, "two": 2, "three": 6}, r"job 'three' of 6 hosts would have to wait: 6 are idle, but there is no"),
    ],
)
def test_a_job_that_has_to_wait_is_refused_in_one_sentence(jobs: dict[str, int], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as refusal:
        placed(leaf_spine(4, 4, 4, RATE), jobs)
    assert "\n" not in str(refusal.value)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(2, 4),
    st.integers(2, 4),
    st.lists(st.integers(2, 8), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_placed_jobs_reach_all_of_their_own_on_links_of_their_own(
    leaves: int, spines: int, per_leaf: int, sizes: list[int], switches: int
) -> None:
    """Over cables, and over the circuits of OCS-vClos."""
    topology = leaf_spine(leaves, spines, per_leaf, RATE, optical_switches=switches)
    jobs = {f"job{number}": size for number, size in enumerate(sizes)}
    clos, topology = placed_or_rejected(topology, jobs)
    assert [(job.job, len(job.hosts)) for job in clos.jobs] == list(jobs.items())
    job_of = {host: job.job for job in clos.jobs for host in job.hosts}
    assert len(job_of) == sum(sizes)
    routes, held = clos.routes(topology), programs(topology, steering=clos)
    users: defaultdict[PortRef, set[str]] = defaultdict(set)
    for src, src_job in job_of.items():
        for dst, dst_job in job_of.items():
            if src == dst:
                continue
            way = forwarded(topology, held, flow(topology, src, dst))
            if src_job != dst_job:
                assert way is None
                continue
            assert way == list(path_of(topology, flow(topology, src, dst), OvsHash(), routes=routes))
            for port in way[1:-1]:
                users[port].add(src_job)
    assert all(len(jobs_there) == 1 for jobs_there in users.values())


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 4),
    st.integers(2, 4),
    st.lists(st.integers(2, 16), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_flows_of_one_job_share_no_link_either(
    leaves: int, spines: int, per_leaf: int, sizes: list[int], switches: int
) -> None:
    """Rings, and the steps of an all-to-all where a job has all GPUs of its virtual Clos, over cables and circuits."""
    topology = leaf_spine(leaves, spines, per_leaf, RATE, optical_switches=min(switches, leaves * spines))
    jobs = {f"job{number}": size for number, size in enumerate(sizes)}
    clos, topology = placed_or_rejected(topology, jobs)
    routes = clos.routes(topology)
    for job in clos.jobs:
        hosts = Counter(topology.peer(PortRef(host, 1)).node for host in job.hosts)
        size = len(job.hosts)
        whole = not job.uplinks or hosts == Counter(port.node for port in job.uplinks)
        for step in (*patterns.ring(size), *(patterns.pairwise_alltoall(size) if whole else ())):
            flows = Counter(
                port
                for src, dst in step
                for port in path_of(topology, flow(topology, job.hosts[src], job.hosts[dst]), OvsHash(), routes=routes)[
                    1:-1
                ]
            )
            assert max(flows.values(), default=1) == 1, (job, step)


def test_circuits_make_room_for_a_job_that_cables_do_not() -> None:
    jobs = {"one": 8, "two": 2, "three": 6}
    with pytest.raises(ValueError, match="job 'three' of 6 hosts would have to wait"):
        placed(leaf_spine(4, 4, 4, RATE), jobs)
    cabled = leaf_spine(4, 4, 4, RATE, optical_switches=2)
    found = optical_clos.placed(cabled, jobs)
    check_circuits(cabled, found.circuits)
    assert {host for job in found.clos.jobs for host in job.hosts} == {host.name for host in cabled.hosts}
    with pytest.raises(ValueError, match="asks for 17 GPUs and the whole cluster has 16"):
        optical_clos.placed(cabled, {"big": 17})
