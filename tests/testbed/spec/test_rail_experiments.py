# SPDX-License-Identifier: Apache-2.0
"""Experiments on rails: the NIC of each pair, mistakes found before a run, and ideal times by the paper's equations."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netmodel import SpecError
from testbed.progress import Steps
from testbed.research.papers.rail_only import times
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of
from tests.testbed.run.fake_fabric import TCP_AGENT, runner_on

RAIL, HB = 5_000_000, 20_000_000
NUMBERS: dict[str, Any] = {"rail_rate": RAIL, "hb_rate": HB}


def on_rails(folder: Path, x: int = 2, y: int = 2, spines: int | None = None, **changes: Any) -> Experiment:
    numbers = {"domains": y, "gpus_per_domain": x, **NUMBERS}
    topology = {"rail_only": numbers} if spines is None else {"rail_optimised": {**numbers, "spines": spines}}
    common: dict[str, Any] = {
        "topology": topology,
        "placement": {"rule": "in_order"},
        "local_nic": "nic1",
        "policies": [{"name": "ecmp", "policy": "ecmp"}],
        "seeds": 1,
    }
    return experiment(folder, **{**common, **changes})


def workload(kind: str, x: int, size: int, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "gpus_per_domain": x, "bytes": size, "slices": 2, **changes}


def test_a_pair_communicates_over_its_common_network(tmp_path: Path) -> None:
    made = on_rails(tmp_path, workload=workload("rail_alltoall", 2, 800))
    first = first_of(made)
    assert [[first.nics_between(a, b) for b in range(4)] for a in range(2)] == [[(1, 1), (1, 1), (0, 0), (0, 0)]] * 2
    assert (first.address(3), first.address(3, 1)) == ("10.1.0.2", "10.128.1.2")
    assert (first.line_rate_bps(3), first.line_rate_bps(3, 1)) == (RAIL, HB)


def test_workloads_list_their_relays(tmp_path: Path) -> None:
    for forward, by in (("hb_first", 1), ("rail_first", 2)):
        ways = on_rails(tmp_path, workload=workload("rail_alltoall", 2, 800, forward=forward)).spec.workload.relayed(4)
        assert len(ways) == 4 * 3
        assert ways[0, 3] == (0, by, 3)
        assert ways[0, 2] == (0, 2)
    assert on_rails(tmp_path, workload=workload("hierarchical_allreduce", 2, 800)).spec.workload.relayed(4) == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(
    x=st.integers(2, 4),
    y=st.integers(2, 4),
    blocks=st.integers(1, 9),
    forward=st.sampled_from(["hb_first", "rail_first"]),
)
def test_ideal_times_of_schedules_match_the_equations(
    tmp_path: Path, x: int, y: int, blocks: int, forward: str
) -> None:
    grid, size = times.Grid(x, y, HB, RAIL), 8 * x * y * blocks
    pair = size / (x * y)
    model: dict[str, Any] = {"fabric": "fluid"}  # whose ports send no bursts
    two_steps = on_rails(tmp_path, x, y, **model, workload=workload("rail_alltoall", x, size, forward=forward))
    assert first_of(two_steps).ideal_s() == pytest.approx(times.rail_only_alltoall_s(grid, pair))
    for direct in ({"kind": "pairwise_alltoall", "bytes": size}, workload("rail_alltoall", x, size, forward="direct")):
        made = on_rails(tmp_path, x, y, x * y, **model, workload=direct)
        assert first_of(made).ideal_s() == pytest.approx(times.rail_optimised_alltoall_s(grid, pair))
    for kind, equation in (
        ("hierarchical_allgather", times.all_gather_s),
        ("hierarchical_reduce_scatter", times.all_gather_s),
        ("hierarchical_allreduce", times.all_reduce_s),
    ):
        made = on_rails(tmp_path, x, y, **model, workload=workload(kind, x, size))
        assert first_of(made).ideal_s() == pytest.approx(equation(grid, size))


@pytest.mark.parametrize("kind", ["rail_alltoall", "hierarchical_allreduce"])
@pytest.mark.parametrize("policy", ["ecmp", "pinned"])
def test_agents_with_two_devices_end_with_the_expected_data(tmp_path: Path, kind: str, policy: str) -> None:
    made = on_rails(
        tmp_path, 2, 2, workload=workload(kind, 2, 8000), policies=[{"name": policy, "policy": policy, "m": 2}]
    )
    loopback = [
        replace(
            host,
            nics=tuple(
                replace(nic, address=IPv4Address(int(nic.address) & 0xFF_FFFF | 127 << 24)) for nic in host.nics
            ),
        )
        for host in made.topology.hosts
    ]
    made = replace(made, topology=replace(made.topology, hosts=tuple(loopback)))
    with Steps(1) as steps:
        (record,) = runner_on(made, tmp_path / "logs", TCP_AGENT).runs(steps)
    assert record.wrong_bytes == 0
    assert {(flow.src, flow.dst) for flow in record.flows} == {
        (0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"workload": {"kind": "pairwise_alltoall", "bytes": 800}},
            "workload: rank 1 on d1g2 sends to rank 2 on d2g1, and topology rail-only-2x2 has no path from rail2",
        ),
        ({"workload": workload("rail_alltoall", 2, 800, forward="direct")}, "has no path from rail"),
        ({"workload": workload("rail_alltoall", 3, 800)}, "workload.gpus_per_domain: 4 ranks do not fill domains of 3"),
        (
            {"workload": workload("rail_alltoall", 2, 800, failed_rails=[3])},
            "workload.failed_rails: there is no rail 3",
        ),
        ({"workload": workload("rail_alltoall", 2, 800), "local_nic": "nic2"}, "local_nic: host d1g1 has no device"),
        (
            {"workload": {"kind": "nccl_ring_allreduce", "bytes": 800}},
            "local_nic: workload nccl_ring_allreduce uses one",
        ),
        (
            {
                "workload": workload("hierarchical_allreduce", 2, 800),
                "placement": {"hosts": ["d1g1", "d2g2", "d1g2", "d2g1"]},
            },
            "workload: rank 0 on d1g1 sends to rank 1 on d2g2, and topology",
        ),
    ],
)
def test_impossible_settings_are_reported_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        on_rails(tmp_path, **changes)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)
