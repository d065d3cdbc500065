# SPDX-License-Identifier: Apache-2.0
"""Experiments on direct-connect fabrics: rings per job, NICs by rank, ideal times, and mistakes found before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from netmodel import PortRef, SpecError
from testbed.spec import Experiment
from testbed.workloads.nccl import NcclAllreduce, NcclCollective
from tests.testbed.experiments import experiment, first_of, setting_of
from tests.testbed.kinds import KINDS
from tests.testbed.workloads.test_schedules import simulate

RATE = 10_000_000


def direct(folder: Path, **changes: Any) -> Experiment:
    common: dict[str, Any] = {
        "topology": {"direct_connect": {"hosts": 8, "degree": 2, "rate": RATE}},
        "optical": {"strides": [1, 3]},
        "workload": {"kind": "ring_allreduce", "strides": [1, 3], "bytes": 8 * 8 * 2 * 10},
        "placement": {"rule": "in_order"},
        "policies": [{"name": "direct", "policy": "ecmp"}],
        "seeds": 1,
    }
    return experiment(folder, **{**common, **changes})


@pytest.mark.parametrize("strides", [[1], [3, 1], [1, 3, 5, 7]])
def test_several_rings_give_the_sum_of_one(strides: list[int]) -> None:
    workload = KINDS["ring_allreduce"].model_validate(
        {"kind": "ring_allreduce", "bytes": 8 * 83, "slices": 3, "strides": strides}
    )
    workload.check_ranks(8)
    for rank, output in enumerate(simulate(workload, 8, 5)):
        assert output.tobytes() == workload.expected(rank, 8, 5).tobytes()
    moved = {((transfer.dst - transfer.src) % 8) for transfer in workload.schedule(8, 5)}
    assert moved == set(strides)


def test_each_ring_goes_by_the_nic_of_its_number_and_halves_the_time(tmp_path: Path) -> None:
    both = direct(tmp_path, fabric="fluid")
    assert first_of(both).nics_between(0, 1) == (0, 0)
    assert first_of(both).nics_between(0, 3) == (1, 1)
    size = both.spec.workload.bytes
    assert first_of(both).ideal_s() == pytest.approx(2 * 7 / 8 * size / 2 * 8 / RATE)
    one: dict[str, Any] = {"optical": {"strides": [1]}, "workload": {"kind": "ring_allreduce", "bytes": size}}
    made = direct(tmp_path, fabric="fluid", **one)
    assert first_of(made).ideal_s() == pytest.approx(2 * first_of(both).ideal_s())


def test_rings_within_blocks_join_the_ranks_of_a_block_directly(tmp_path: Path) -> None:
    both = direct(tmp_path, optical={"strides": [1, {"stride": 2, "within": 4}]}, workload={
        "kind": "pairwise_alltoall", "bytes": 8 * 8 * 10,
    })  # fmt: skip
    setting = setting_of(both)
    # Rank 2 is in the block of ranks 0 to 3, whose rings are 0, 2 and 1, 3; it reaches rank 4 over rank 3.
    hops = {pair: way.hops for pair in ((2, 0), (0, 2), (5, 7), (2, 4), (3, 4))
            for way in [setting.connections(f"h{pair[0] + 1}", f"h{pair[1] + 1}")[0].there]}  # fmt: skip
    assert hops == {(2, 0): 1, (0, 2): 1, (5, 7): 1, (2, 4): 2, (3, 4): 1}
    assert first_of(both).nics_between(5, 7) == (1, 1)


def test_two_jobs_have_separate_rings(tmp_path: Path) -> None:
    both = direct(tmp_path, jobs=2, placement={"hosts": ["h1", "h3", "h5", "h7", "h2", "h4", "h6", "h8"]})
    setting = setting_of(both)
    assert len(setting.plan.connections) == 2 * 4 * 3
    odd = {"h1", "h3", "h5", "h7"}
    for (source, destination), (connection,) in setting.plan.connections.items():
        hosts = {source, destination, *connection.there.relays, *connection.back.relays}
        assert hosts <= odd or hosts.isdisjoint(odd)


def test_relayed_paths_name_the_ports_of_switches_and_relays(tmp_path: Path) -> None:
    setting = setting_of(direct(tmp_path))
    (connection,) = setting.plan.connections["h1", "h3"]
    assert connection.there.relays == ("h2",)
    path = setting.path(direct(tmp_path).topology, connection.local, connection.remote)
    assert path == (PortRef("h1", 1), PortRef("ocs1", 2), PortRef("h2", 1), PortRef("ocs1", 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"kind": "nccl_ring_allreduce", "strides": [1, 3], "bytes": 800}},
        {"workload": {"kind": "nccl_ring_allreduce", "bytes": 800}},
        {"optical": {"strides": [1]}, "workload": {"kind": "nccl_tree_allreduce", "bytes": 800}},
        {"optical": {"find": True}, "workload": {"kind": "nccl_ring_allreduce", "strides": [1, 3], "bytes": 800}},
        {"workload": {"kind": "nccl", "strides": [1, 3], "bytes": 800}},
    ],
    ids=["two rings", "one ring", "tree", "found", "NCCL itself"],
)
def test_processes_of_nccls_driver_have_one_nic_each(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = direct(tmp_path, **changes)
    workload = made.spec.workload
    assert isinstance(workload, NcclAllreduce | NcclCollective)
    for nic, (stride, _) in enumerate(workload.processes):
        assert {first_of(made).nics_between(rank, (rank + stride) % 8) for rank in range(8)} == {(nic, nic)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optical": None}, "topology: topology direct-connect-8x2 has optical switches only: say under optical"),
        ({"optical": {"strides": [1, 3, 5]}}, "optical.strides: a degree of 3 is impossible: host 'h1' has 2 NICs"),
        ({"optical": {"strides": [2]}}, "optical.strides: +2 is not a ring of 8 servers"),
        (
            {"optical": {"strides": [1, {"stride": 1, "within": 3}]}},
            "optical.strides: 8 ranks do not divide into blocks of 3",
        ),
        (
            {"optical": {"strides": [2, 4]}},
            "optical.strides: a distance of 1 among 8 servers is not a sum of the strides",
        ),
        ({"policies": [{"name": "p", "policy": "pinned"}]}, "policies[0].policy: over circuits a connection has"),
        (
            {"workload": {"kind": "nccl_ring_allreduce", "strides": [1, 5], "bytes": 800}},
            "workload.kind: workload nccl_ring_allreduce needs one NIC for each ring, and job1 has no circuits for",
        ),
        ({"workload": {"kind": "nccl_tree_allreduce", "bytes": 800}}, "workload.kind: workload nccl_tree_allreduce"),
        (
            {"workload": {"kind": "nccl", "strides": [1, 5], "bytes": 800}},
            "workload.kind: workload nccl needs one NIC for each ring, and job1 has no circuits for",
        ),
        (
            {"workload": {"kind": "nccl", "collective": "all_gather", "strides": [1, 3], "bytes": 800}},
            "workload.strides: all_gather has one ring, +1",
        ),
        (
            {
                "optical": {"strides": [1, 3], "routes": "least_load"},
                "workload": {"kind": "nccl_ring_allreduce", "bytes": 800},
            },
            "optical.routes: workload nccl_ring_allreduce has one connection for each pair of ranks; leave it out",
        ),
        ({"optical": {"routes": "least_load"}}, "optical: topology direct-connect-8x2 has optical switches only: say"),
        ({"fabric": "softroce"}, "fabric: fabric softroce has no optical switches; use mininet, fluid or packet"),
        ({"fabric": "packet", "packet": {"pfc": True}}, "packet.pfc: relays and optical switches do not pause"),
        (
            {"fabric": "packet", "events": [{"at_s": 1, "swap": "ocs1:1"}]},
            "nor kill switches; use fluid or mininet",
        ),
        ({"events": [{"at_s": 1, "swap": "h1:1"}]}, "events[0].swap: 'h1:1' is not a connected switch port"),
        ({"events": [{"at_s": 1, "swap": "ocs1:9"}]}, "events[0].swap: 'ocs1:9' is not a connected switch port"),
        (
            {
                "topology": {"direct_connect": {"hosts": 8, "degree": 1, "rate": RATE}},
                "optical": {"strides": [1]},
                "events": [{"at_s": 1, "swap": "ocs1:1"}],
            },
            "events[0].swap: host 'h1' has no other NIC; give the fabric a degree of 2 or more",
        ),
        (
            {
                "topology": {"direct_connect": {"hosts": 8, "degree": 2, "rate": RATE, "look_ahead": True}},
                "events": [{"at_s": 1, "swap": "flip1:1"}],
            },
            "events[0].swap: port flip1:1 is not that of a NIC on an optical switch",
        ),
        (
            {"workload": {"kind": "ring_allreduce", "strides": [1, 4], "bytes": 800}},
            "workload.strides[1]: +4 is not a ring of 8 ranks",
        ),
        (
            {"topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 4, "host_rate": RATE}}},
            "optical: topology leaf-spine-2x2x4 has no optical switches; leave it out",
        ),
        (
            {
                "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 4, "host_rate": RATE}},
                "optical": None,
                "events": [{"at_s": 1, "swap": "leaf1:1"}],
            },
            "events[0].swap: topology leaf-spine-2x2x4 is not a direct-connect fabric; leave it out",
        ),
    ],
)
def test_impossible_settings_are_reported_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        direct(tmp_path, **changes)
    assert expected in str(refusal.value)


def test_packets_over_circuits_take_changed_links(tmp_path: Path) -> None:
    event = {"at_s": 0.1, "links": {"ocs1:1": {"loss": "20 %"}}}
    assert len(direct(tmp_path, fabric="packet", events=[event]).spec.events) == 1


def test_topology_finder_joins_hosts_by_the_workloads_traffic(tmp_path: Path) -> None:
    ring = {"kind": "ring_allreduce", "strides": [1, 3], "bytes": 8000}
    found = direct(tmp_path, optical={"find": True}, workload=ring)
    assert setting_of(found).circuits == setting_of(direct(tmp_path, workload=ring)).circuits
    shift = {"kind": "permutation", "bytes": 8000, "shift": 4}
    matched = direct(tmp_path, optical={"find": True}, workload=shift)
    for rank in range(8):  # a ring of all keeps everybody in reach, the other NIC is for who exchanges most
        there = (
            setting_of(matched)
            .plan.connections[matched.first_hosts[rank], matched.first_hosts[(rank + 4) % 8]][0]
            .there
        )
        assert there.hops == 1
    assert setting_of(matched).circuits["ocs2"] == {host: (host + 3) % 8 + 1 for host in range(1, 9)}


@pytest.mark.parametrize(
    ("hosts", "degree", "shift"), [(7, 2, 2), (5, 3, 2), (3, 3, 1)], ids=["7 of 2", "5 of 3", "3 of 3"]
)
def test_an_odd_shard_leaves_a_host_out_of_each_matching(tmp_path: Path, hosts: int, degree: int, shift: int) -> None:
    found = direct(
        tmp_path,
        topology={"direct_connect": {"hosts": hosts, "degree": degree, "rate": RATE}},
        optical={"find": True},
        workload={"kind": "permutation", "shift": shift, "bytes": 800},
    )
    assert len(setting_of(found).plan.connections) == hosts * (hosts - 1)


def test_jobs_share_one_fabric_by_their_traffic(tmp_path: Path) -> None:
    shift = {"kind": "permutation", "bytes": 8000, "shift": 2}
    made = direct(tmp_path, optical={"find": True}, workload=shift, jobs=2)
    for pair, (connection,) in setting_of(made).plan.connections.items():
        jobs = {
            job
            for job in made.jobs
            for rank in job.ranks
            if made.first_hosts[rank] in (*pair, *connection.there.relays)
        }
        assert len(jobs) == 1


def test_two_servers_use_parallel_circuits_where_they_share_routes(tmp_path: Path) -> None:
    both = direct(
        tmp_path,
        placement={"hosts": ["h1", "h2"]},
        optical={"find": True, "routes": "least_load"},
        workload={"kind": "pairwise_alltoall", "bytes": 1600},
    )
    assert first_of(both).shares(0, 1) == pytest.approx((0.5, 0.5))
    assert {first_of(both).nics_between(0, 1, route) for route in (0, 1)} == {(0, 0), (1, 1)}
    assert [carried.bytes for carried in first_of(both).carried(first_of(both).transfers)] == [400] * 4


@pytest.mark.parametrize(
    "workload", [{"kind": "pairwise_alltoall"}, {"kind": "ring_allreduce", "strides": [1]}], ids=str
)
def test_two_servers_are_joined_by_parallel_circuits(tmp_path: Path, workload: dict[str, Any]) -> None:
    found = direct(
        tmp_path, placement={"hosts": ["h1", "h2"]}, optical={"find": True}, workload={**workload, "bytes": 800}
    )
    assert setting_of(found).circuits == {switch: {1: 2, 2: 1} for switch in ("ocs1", "ocs2")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optical": {"find": True, "strides": [1]}}, "optical: give either strides or find"),
        (
            {"optical": {"find": True}, "workload": {"kind": "ring_allreduce", "strides": [1], "bytes": 800}},
            "workload.strides: TopologyFinder joins job1 by rings, so share it out: take [1, 3]",
        ),
    ],
)
def test_an_impossible_topology_is_reported(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as refusal:
        direct(tmp_path, **changes)
    assert expected in str(refusal.value)
