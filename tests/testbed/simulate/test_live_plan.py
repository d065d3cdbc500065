# SPDX-License-Identifier: Apache-2.0
"""Jobs that begin and end communication at their own times: policy `controller` calls its planner at each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from sdn.path_service.planning import exchange, live_plan
from sdn.planners import PLANNERS, Clos
from sim.links import Links
from testbed import spec
from testbed.simulate.live_plan import TalkPlanner
from testbed.simulate.runs import Traffic
from testbed.spec import Experiment
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import observe

HOP = 2_000_000
"""Bytes of a hop, which take 1.6 ms on links of 10 Gbit/s."""
HOP_S = 8 * HOP / 10e9
MS = 1_000_000
"""Nanoseconds."""


def job(first: int, second: int, start_ns: int, size: int = HOP, compute_ns: int = 0) -> str:
    """A ring of two servers, the first on leaf 1 and the second on leaf 2."""
    tail = f"{start_ns} {size} {compute_ns} 0"
    return f"{first} {second} 0 1 {tail}\n{second} {first} 1 0 {tail}\n"


def released(folder: Path, jobs: Sequence[str], /, **changes: Any) -> Experiment:
    """The jobs on two leaves with four servers each (0 to 3 and 4 to 7), and two spines."""
    for number, text in enumerate(jobs):
        (folder / f"job_{number}-A.txt").write_text(text)
    fabric = {"leaves": 2, "spines": 2, "hosts_per_leaf": 4, "host_rate": "10 Gbit/s", "fabric_rate": "10 Gbit/s"}
    document = {
        "name": "released",
        "fabric": "fluid",
        "topology": {"leaf_spine": fabric},
        "placement": {"rule": "in_order"},
        "workload": {"kind": "trace", "format": "floodns", "file": ".", "first": 0},
        "policies": [{"name": "optimal", "policy": "controller", "planner": "optimal"}],
        "path_mtu": 4096,
        **changes,
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(document))
    return spec.load(folder / "spec.yaml")


def flow_s(experiment: Experiment) -> dict[tuple[int, int], float]:
    """By pair of nodes, whose hosts are in order: when its last message was delivered."""
    (record,) = observe(experiment).runs
    hosts = [host.name for host in experiment.topology.hosts]
    node = [hosts.index(host) for host in experiment.first_hosts]
    return {(node[flow.src], node[flow.dst]): flow.completion_s for flow in record.flows}


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
@pytest.mark.parametrize("planner", [name for name in PLANNERS if name != "ecmp"])
def test_jobs_are_planned_with_those_that_talk_at_the_same_time(tmp_path: Path, planner: str, fabric: str) -> None:
    """Jobs 0 and 1 talk at once. Planned before the start, job 2 would take one spine by itself and they the other."""
    jobs = [job(0, 4, 0), job(1, 5, 0), job(2, 6, 20 * MS, 2 * HOP)]
    policy = {"name": "it", "policy": "controller", "planner": planner}
    found = flow_s(released(tmp_path, jobs, policies=[policy], fabric=fabric))
    assert found[0, 4] == pytest.approx(2 * HOP_S, rel=0.05)
    assert found[1, 5] == pytest.approx(2 * HOP_S, rel=0.05)
    assert found[2, 6] == pytest.approx(0.02 + 4 * HOP_S, rel=0.05)


PODS = {"pods": 2, "leaves": 1, "aggs": 2, "cores_per_agg": 1, "hosts_per_leaf": 4, "host_rate": "10 Gbit/s"}


@pytest.mark.parametrize(("fabric", "planner"), [("fluid", "optimal"), ("packet", "optimal"), ("fluid", "greedy")])
def test_jobs_on_three_tiers_are_planned_as_they_come_and_go(tmp_path: Path, fabric: str, planner: str) -> None:
    """Two pods that two aggs with a core each join: jobs 0 and 1 take one each, and job 2 has both to choose from."""
    jobs = [job(0, 4, 0), job(1, 5, 0), job(2, 6, 20 * MS, 2 * HOP)]
    policy = {"name": "it", "policy": "controller", "planner": planner}
    found = flow_s(released(tmp_path, jobs, topology={"clos": PODS}, policies=[policy], fabric=fabric))
    assert found[0, 4] == pytest.approx(2 * HOP_S, rel=0.05)
    assert found[1, 5] == pytest.approx(2 * HOP_S, rel=0.05)
    assert found[2, 6] == pytest.approx(0.02 + 4 * HOP_S, rel=0.05)


def test_a_cut_core_link_moves_talks_to_the_other_agg(tmp_path: Path) -> None:
    """Two jobs share what is left from the cut on."""
    jobs = [job(0, 4, 0, 4 * HOP), job(1, 5, 0, 4 * HOP)]
    cut = {"at_s": 0.0, "cut": "agg1:2"}
    found = flow_s(released(tmp_path, jobs, topology={"clos": PODS}, events=[cut]))
    assert found[0, 4] == pytest.approx(2 * 8 * HOP_S, rel=0.05)
    assert found[1, 5] == pytest.approx(2 * 8 * HOP_S, rel=0.05)


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
def test_a_job_computes_between_its_iterations_and_talks_again(tmp_path: Path, fabric: str) -> None:
    """Jobs 0 and 1 talk in turn, each while the other computes, and job 2 talks all the time."""
    turn = round(2 * HOP_S * 1e9 * 1.1)
    jobs = [job(0, 4, 0, compute_ns=turn), job(1, 5, turn, compute_ns=turn), job(2, 6, 0, 6 * HOP)]
    workload = {"kind": "trace", "format": "floodns", "file": ".", "first": 0, "iterations": 3}
    found = flow_s(released(tmp_path, jobs, workload=workload, fabric=fabric))
    assert found[0, 4] == pytest.approx(3 * 2 * HOP_S + 2 * turn * 1e-9, rel=0.05)
    assert found[1, 5] == pytest.approx(3 * 2 * HOP_S + 3 * turn * 1e-9, rel=0.05)
    assert found[2, 6] == pytest.approx(3 * 12 * HOP_S, rel=0.05)


def test_both_models_plan_a_trace_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five jobs that begin and end at times of their own, some of which have to share a spine."""
    jobs = [
        job(0, 4, 0, 3 * HOP),
        job(1, 5, MS),
        job(2, 6, 2 * MS, 4 * HOP),
        job(3, 7, 4 * MS, HOP),
        job(0, 5, 30 * MS),
    ]
    plans: dict[str, list[dict[int, Path]]] = {}
    for fabric in ("fluid", "packet"):
        plan = plans[fabric] = []
        reached = TalkPlanner.reached

        def listed(self: TalkPlanner, messages: Any, to: Any = plan, reached: Any = reached) -> Any:
            to.append(reached(self, messages))
            return to[-1]

        with monkeypatch.context() as patched:
            patched.setattr(TalkPlanner, "reached", listed)
            observe(released(tmp_path, jobs, fabric=fabric))
    assert plans["fluid"] == plans["packet"]
    assert sum(map(bool, plans["packet"])) >= 5


def planner_of(experiment: Experiment) -> tuple[TalkPlanner, Traffic]:
    policy, links = experiment.spec.policies[0], Links(experiment.topology)
    traffic = Traffic.of(first_of(experiment), policy, links, experiment.jobs)
    planner = TalkPlanner.of(first_of(experiment), policy, traffic)
    assert planner is not None
    return planner, traffic


def test_a_begin_or_end_moves_no_flow_that_has_a_path_of_its_own(tmp_path: Path) -> None:
    """Ranks 0 and 1 are those of the first job, and so on."""
    jobs = [job(0, 4, 0), job(1, 5, 1 * MS), job(2, 6, 5 * MS)]
    planner, traffic = planner_of(released(tmp_path, jobs))
    talks = traffic.dependencies.talks
    started = planner.start()
    assert {traffic.pairs[pair] for pair in started} == {(0, 1), (1, 0)}
    second = planner.reached([talks[1].begin])
    assert {traffic.pairs[pair] for pair in second} == {(2, 3), (3, 2)}
    assert not {port for path in started.values() for port in path} & {
        port for path in second.values() for port in path
    }
    assert planner.reached([talks[0].end]) == {}
    assert {traffic.pairs[pair] for pair in planner.reached([talks[2].begin, talks[1].end])} == {(4, 5), (5, 4)}
    assert planner.reached([talks[2].end]) == {}


def test_mice_of_a_job_stay_on_ecmp(tmp_path: Path) -> None:
    policy = {"name": "it", "policy": "controller", "elephant_bytes": 2 * HOP + 1}
    planner, _ = planner_of(released(tmp_path, [job(0, 4, 0)], policies=[policy]))
    assert planner.start() == {}


def test_jobs_that_talk_leave_a_link_that_dies(tmp_path: Path) -> None:
    """From 1 ms on both jobs share the other spine; job 2 comes later and goes there, too."""
    jobs = [job(0, 4, 0), job(1, 5, 0), job(2, 6, 20 * MS)]
    events = [{"at_s": 0.001, "cut": "leaf1:5"}]
    experiment = released(tmp_path, jobs, events=events)
    found = flow_s(experiment)
    assert found[2, 6] == pytest.approx(0.02 + 2 * HOP_S, rel=0.05)
    assert 2 * HOP_S * 1.2 < max(found[0, 4], found[1, 5]) < 4 * HOP_S


def test_a_dumped_spec_has_the_phases_of_its_trace(tmp_path: Path) -> None:
    experiment = released(tmp_path, [job(0, 4, 0), job(1, 5, MS)])
    (tmp_path / "again.yaml").write_text(spec.dump(experiment.spec))
    again = spec.load(tmp_path / "again.yaml").spec.workload
    assert again.talks(8) == experiment.spec.workload.talks(8) != ()


@pytest.mark.parametrize("name", ["optimal", "greedy", "ecmp"])
def test_changes_at_one_time_leave_the_plan_of_the_commodities_that_remain(name: str) -> None:
    plan = live_plan(name, Clos.of(2, 2, 2, 1.0))
    first, routes = exchange(plan, (), [(0, 2), (1, 3)])
    assert [route.commodity for route in routes] == first == plan.numbers()
    second, _ = exchange(plan, [first[0]], [(0, 3)])
    assert plan.numbers() == [first[1], *second]
    assert sorted(plan.plan().commodities.src.tolist()) == [0, 1]


@pytest.mark.parametrize("fabric", ["fluid", "packet"])
def test_a_job_within_an_hb_domain_is_not_planned_over_the_rails(tmp_path: Path, fabric: str) -> None:
    rails = {"domains": 2, "gpus_per_domain": 4, "rail_rate": "1 Gbit/s", "hb_rate": "10 Gbit/s", "spines": 2}
    topology = {"rail_optimised": rails}
    found = flow_s(released(tmp_path, [job(0, 1, 0)], topology=topology, local_nic="nic1", fabric=fabric))
    assert found[0, 1] == pytest.approx(2 * HOP_S, rel=0.05)
