# SPDX-License-Identifier: Apache-2.0
"""Placement rule vclos: each job of a spec gets hosts, and a virtual Clos or optical circuits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from netmodel import SpecError, forwarding, with_circuits
from testbed.analysis.metrics import uplinks
from testbed.progress import Steps
from testbed.spec import Experiment
from tests.testbed.experiments import experiment, first_of, on_loopback
from tests.testbed.run.fake_fabric import TCP_AGENT, FakeFabric, runner_on

JOBS = {"train": 8, "probe": 2, "search": 6}


def four(folder: Path, optical_switches: int = 0, **changes: Any) -> Experiment:
    counts = {"leaves": 4, "spines": 4, "hosts_per_leaf": 4, "host_rate": 10**7}
    common: dict[str, Any] = {
        "topology": {"leaf_spine": {**counts, "optical_switches": optical_switches}},
        "placement": {"rule": "vclos"},
        "policies": [{"name": "ecmp", "policy": "ecmp"}, {"name": "vclos", "policy": "vclos"}],
    }
    return experiment(folder, **{**common, **changes})


def test_jobs_get_separate_hosts_and_links(tmp_path: Path) -> None:
    made = four(tmp_path, jobs={"one": 8, "two": 4})
    assert [(job.name, job.size) for job in made.jobs] == [("one", 8), ("two", 4)]
    assert len(set(made.first_hosts)) == made.ranks == 12
    (placed,) = made.arrangements
    assert made.policy("vclos").steering(first_of(made).placed) == placed.isolation()
    assert placed.hosts == first_of(made).job_hosts
    assert made.cabled == made.topology


@pytest.mark.parametrize(("jobs", "sizes"), [(2, [8, 8]), ([4, 3], [4, 3]), (1, [16])])
def test_unnamed_jobs_are_numbered(tmp_path: Path, jobs: int | list[int], sizes: list[int]) -> None:
    made = four(tmp_path, jobs=jobs)
    assert [(job.name, job.size) for job in made.jobs] == [(f"job{n}", size) for n, size in enumerate(sizes, start=1)]


def test_the_topology_contains_the_links_that_circuits_make(tmp_path: Path) -> None:
    made = four(tmp_path, 2, jobs=JOBS)
    (arrangement,) = made.arrangements
    placed = arrangement.placed
    assert placed.circuits
    assert made.topology == with_circuits(made.cabled, placed.circuits)
    assert {switch.role for switch in made.topology.switches} == {"leaf", "spine"}
    assert first_of(made).routes(made.policy("ecmp")) == forwarding(made.topology)
    links = {str(link.port) for link in uplinks(made.topology)}
    assert {str(port) for job in placed.clos.jobs for port in job.uplinks} == links


@pytest.mark.parametrize(
    ("switches", "changes", "expected"),
    [
        (0, {"jobs": {"big": 17}}, "jobs: job 'big' asks for 17 GPUs and the whole cluster has 16; make the job"),
        (2, {"jobs": {"big": 17}}, "jobs: job 'big' asks for 17 GPUs and the whole cluster has 16; make the job"),
        (0, {"jobs": JOBS}, "jobs: job 'search' of 6 hosts would have to wait: 6 are idle, but there is no virtual"),
        (0, {"jobs": {"a": 1, "b": 3}}, "jobs: the sizes of the jobs must be 2 or more"),
        (0, {"jobs": {"a b": 4}}, "jobs"),
        (2, {"placement": {"rule": "packed"}}, "placement: cables of topology leaf-spine-4x4x4-optical end in optical"),
        (
            2,
            {"jobs": JOBS, "policies": [{"name": "c", "policy": "controller"}]},
            "policies[0].policy: the path service does not look through circuits",
        ),
        (2, {"jobs": JOBS, "optical": {"strides": [1]}}, "optical: topology leaf-spine-4x4x4-optical is not a direct-"),
        (
            0,
            {
                "topology": {"direct_connect": {"hosts": 8, "degree": 1, "rate": 10**7}},
                "optical": {"strides": [1]},
                "policies": [{"name": "ecmp", "policy": "ecmp"}],
            },
            "placement: topology direct-connect-8x1 has no leaves and spines for rule vclos",
        ),
    ],
)
def test_impossible_settings_are_reported_before_anything_starts(
    tmp_path: Path, switches: int, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        four(tmp_path, switches, **changes)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


class LitFabric(FakeFabric):
    """Counts how often circuits are set."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self.circuits: list[tuple[Mapping[str, Mapping[int, int]], float]] = []

    def set_circuits(self, circuits: Mapping[str, Mapping[int, int]], reconfiguration_s: float) -> None:
        self.circuits.append((circuits, reconfiguration_s))


def test_circuits_are_set_once_before_all_runs(tmp_path: Path) -> None:
    made = on_loopback(
        four(
            tmp_path,
            2,
            jobs={"a": 6, "b": 2},
            optical={"reconfiguration_s": 0.25},
            workload={"kind": "ring_allreduce", "bytes": 8000},
        )
    )
    fabric = LitFabric(made)
    with Steps(4) as steps:
        records = list(runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps))
    assert [record.wrong_bytes for record in records] == [0] * 4
    (arrangement,) = made.arrangements
    placed = arrangement.placed
    assert fabric.circuits == [(placed.circuits, 0.25)]
    assert fabric.steered == [placed.clos, None, placed.clos]
