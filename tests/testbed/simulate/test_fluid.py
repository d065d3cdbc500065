# SPDX-License-Identifier: Apache-2.0
"""Specs on the fluid fabric: closed forms, paths of lanes, events, and the command."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hostlib import Device
from netmodel import Flow, PortRef, dump_topology, leaf_spine, path_of
from sim.links import Links
from testbed.analysis.results import ideal_of
from testbed.cli import main
from testbed.errors import TestbedError
from testbed.simulate.lane_paths import ELEPHANT_BYTES, lanes_of, largest_bursts
from testbed.spec import Experiment
from testbed.workloads.grid import GridWorkload
from testbed.workloads.task_graph import TaskGraphWorkload
from testbed.workloads.training import Training
from tests.testbed.experiments import first_of
from tests.testbed.kinds import KINDS
from tests.testbed.simulate.small import LAST_S, PACKET_S, WIRE_BYTES, WIRE_S, document, observe, small

made = partial(small, "fluid")


def test_disjoint_paths_take_the_serialisation_time() -> None:
    run = observe(made(policies=[{"name": "pinned", "policy": "pinned"}])).runs[0]
    assert run.completion_s == pytest.approx(WIRE_S + LAST_S)
    assert all(flow.completion_s == pytest.approx(WIRE_S + LAST_S) for flow in run.flows)


def test_delays_count_for_every_message() -> None:
    settings = {"link_delay_s": 0.001, "message_delay_s": 0.01}
    run = observe(made(policies=[{"name": "pinned", "policy": "pinned"}], fluid=settings)).runs[0]
    assert run.completion_s == pytest.approx(WIRE_S + LAST_S + 4 * 0.001 + 0.01)


def test_delays_of_the_topology_count_where_it_gives_any() -> None:
    """Two links of each path have a delay of their own, the links of hosts that of the settings."""
    topology = {"leaf_spine": {**document("fluid")["topology"]["leaf_spine"], "fabric_delay": "20 ms"}}
    run = observe(
        made(policies=[{"name": "pinned", "policy": "pinned"}], topology=topology, fluid={"link_delay_s": 0.001})
    ).runs[0]
    assert run.completion_s == pytest.approx(WIRE_S + LAST_S + 2 * 0.020 + 2 * 0.001)


def test_a_message_is_delivered_when_its_longest_lane_has_brought_its_part() -> None:
    topology = leaf_spine(2, 2, 2, 10**7)
    slow = {PortRef("spine2", 1), PortRef("spine2", 2)}
    links = [replace(link, delay_s=0.020 if link.b in slow else 0.0) for link in topology.links]
    written = yaml.safe_load(dump_topology(replace(topology, links=tuple(links))))
    lanes = {"name": "paralet", "policy": "ecmp", "m": 32}
    run = observe(made(policies=[lanes], topology=written)).runs[0]
    assert run.completion_s > 2 * 0.020 + WIRE_S


def test_the_last_packets_of_several_lanes_take_longer() -> None:
    run = observe(made(policies=[{"name": "pinned", "policy": "pinned", "m": 5}])).runs[0]
    assert run.completion_s == pytest.approx(WIRE_S + 4 * PACKET_S + LAST_S)


def test_ecmp_takes_the_time_of_its_most_loaded_link() -> None:
    for run in observe(made(seeds=8)).runs:
        if run.policy == "ecmp":
            flows_on = max(load.tx_bytes for load in run.links) / WIRE_BYTES
            assert run.completion_s == pytest.approx(round(flows_on) * WIRE_S + LAST_S)


@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "ecmp", "m": 4},
        {"policy": "pinned", "m": 2},
        {"policy": "source_routing"},
        {"policy": "controller", "planner": "optimal", "elephant_bytes": 409600},
    ],
    ids=lambda policy: policy["policy"],
)
def test_lanes_go_where_the_spec_says(policy: dict[str, Any]) -> None:
    experiment = made(policies=[{"name": "it", **policy}])
    links = Links(experiment.topology)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    found = lanes_of(first_of(experiment), experiment.spec.policies[0], first_of(experiment).transfers, links)
    assert found.ports.shape == found.rows.shape[:2] == (4, policy.get("m", 1))
    for (src, dst), ports, rows in zip(pairs, found.ports, found.rows, strict=True):
        hosts = (
            experiment.topology.host(experiment.first_hosts[src]),
            experiment.topology.host(experiment.first_hosts[dst]),
        )
        for port, row in zip(ports.tolist(), rows.tolist(), strict=True):
            if policy["policy"] != "controller":  # whose ports are found when the flow is announced
                flow = Flow(hosts[0].nics[0].address, hosts[1].nics[0].address, port)
                path = path_of(
                    experiment.topology,
                    flow,
                    experiment.ecmp_hash,
                    routes=first_of(experiment).routes(experiment.spec.policies[0]),
                )
                assert row == links.row(path)
    if policy["policy"] != "ecmp":
        crossed = found.rows[:, 0, 1:3].ravel()
        assert len(set(crossed.tolist())) == crossed.size  # no two pairs on one uplink or downlink


@pytest.mark.parametrize("policy", [{"policy": "pinned"}, {"policy": "controller", "elephant_bytes": 1}])
def test_planned_paths_of_three_tiers_share_no_link(policy: dict[str, Any]) -> None:
    """A ring over the pods of a fat-tree: every link between switches carries one flow, and the run takes the ideal."""
    hosts = [f"h{4 * pod + host + 1}" for host in range(4) for pod in range(4)]
    experiment = made(
        topology={"fat_tree": {"k": 4, "host_rate": "100 Gbit/s"}},
        placement={"hosts": hosts},
        workload={"kind": "ring_allreduce", "bytes": 16_000_000},
        policies=[{"name": "it", **policy}],
    )
    links = Links(experiment.topology)
    instance = first_of(experiment)
    found = lanes_of(instance, experiment.spec.policies[0], instance.transfers, links)
    assert found.rows.shape == (16, 1, 6)
    crossed = found.rows[:, 0, 1:5].ravel()
    assert len(set(crossed.tolist())) == crossed.size
    assert observe(experiment).runs[0].completion_s <= 1.1 * ideal_of(experiment)


def training(*models: dict[str, Any], **changes: Any) -> Experiment:
    """Training under the optimal planner, of models without computing, on hosts of two leaves in turn."""
    free = {"model": "bloom", "tensor": 1, "pipeline": 1, "data": 2, "compute_s": 0.0}
    workload = {"kind": "training", "iterations": 1, "models": [{**free, **model} for model in models]}
    hosts = sum(model.get("data", 2) for model in models)
    fabric = {"leaves": 2, "spines": 2, "hosts_per_leaf": hosts // 2, "host_rate": "100 Gbit/s"}
    optimal = {"name": "optimal", "policy": "controller", "planner": "optimal"}
    return made(**{"workload": workload, "topology": {"leaf_spine": fabric}, "policies": [optimal], **changes})


def uplinks(experiment: Experiment) -> dict[tuple[int, int], str]:
    """By pair of ranks: the leaf port by which it leaves its leaf."""
    links, transfers = Links(experiment.topology), first_of(experiment).transfers
    found = lanes_of(first_of(experiment), experiment.spec.policies[0], transfers, links)
    pairs = dict.fromkeys((transfer.src, transfer.dst) for transfer in transfers)
    return {pair: str(links.ports[row[0, 1]]) for pair, row in zip(pairs, found.rows, strict=True)}


def test_a_planner_balances_bytes() -> None:
    """One pair has as many bytes as three others: one spine takes it, the other one them."""
    sizes = [60_000_000, *[20_000_000] * 3]
    by_port: Counter[str] = Counter()
    for (src, _), port in uplinks(training(*({"part_bytes": size} for size in sizes))).items():
        by_port[port] += sizes[src // 2]
    assert set(by_port.values()) == {60_000_000}


def test_small_pipelines_do_not_disturb_large_rings() -> None:
    model = {"tensor": 4, "pipeline": 2, "data": 4, "part_bytes": 400_000_000, "activation_bytes": 8}
    fabric = {"leaves": 4, "spines": 8, "hosts_per_leaf": 8, "host_rate": "100 Gbit/s"}
    placement = {"rule": "random", "ranks": 32, "redraw": True}
    experiment = training(model, topology={"leaf_spine": fabric}, placement=placement, seeds=3)
    for run in observe(experiment).runs:
        assert run.completion_s < 1.1 * ideal_of(experiment)


@pytest.mark.parametrize(("threshold", "planned"), [(None, True), (10_000_000, True), (10_000_001, False)], ids=str)
def test_only_elephants_are_planned(threshold: int | None, planned: bool) -> None:
    models = [{"part_bytes": 10_000_000}] * 8
    changes = {"elephant_bytes": threshold} if threshold else {}
    optimal, ecmp = (
        uplinks(training(*models, policies=[{"name": "it", **policy}]))
        for policy in ({"policy": "controller", "planner": "optimal", **changes}, {"policy": "ecmp"})
    )
    assert (set(Counter(optimal.values()).values()) == {4}) == planned
    assert (optimal == ecmp) != planned


def test_elephants_are_as_large_as_the_engine_has_them() -> None:
    assert inspect.signature(Device).parameters["elephant_bytes"].default == ELEPHANT_BYTES


@pytest.mark.parametrize(("compute_s", "whole"), [(0.3, True), (1.8, False)])
def test_a_long_computation_divides_what_a_pair_sends(compute_s: float, whole: bool) -> None:
    """A third of the computation precedes the backward pass: only a long one outlasts an elephant's idle time."""
    experiment = training({"data": 4, "zero": 3, "part_bytes": 16_000_000, "compute_s": compute_s})
    found = largest_bursts(experiment, first_of(experiment).transfers)
    # A ring carries 3 / 4 of a part: before the forward pass, before the backward pass, and after it.
    assert set(found.values()) == {36_000_000 if whole else 12_000_000}


def test_jobs_that_run_alone_have_the_whole_fabric() -> None:
    both, alone = (
        observe(made(jobs=2, policies=[{"name": "it", "policy": "ecmp", "alone": alone}], seeds=4)).runs
        for alone in (False, True)
    )
    for one, other in zip(both, alone, strict=True):
        assert other.completion_s <= one.completion_s * (1 + 1e-9)
        assert sum(load.tx_bytes for load in one.links) == pytest.approx(sum(load.tx_bytes for load in other.links))


OTHERS = GridWorkload | TaskGraphWorkload | Training


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if not issubclass(KINDS[kind], OTHERS)))
def test_the_ideal_is_never_beaten(kind: str) -> None:
    policies = [{"name": f"ecmp-{m}", "policy": "ecmp", "m": m} for m in (1, 4)]
    experiment = made(workload={"kind": kind, "bytes": 65536}, policies=policies, seeds=3, placement={"rule": "packed"})
    for run in observe(experiment).runs:
        assert run.completion_s > ideal_of(experiment)
        assert run.step_finished_s[0] == sorted(run.step_finished_s[0])


@pytest.mark.parametrize("phase", ["incast", "broadcast"])
def test_a_parameter_server_is_limited_by_its_own_link(phase: str) -> None:
    workload = {"kind": "parameter_server", "bytes": 409600, "slices": 1, "phase": phase}
    run = observe(made(workload=workload, policies=[{"name": "pinned", "policy": "pinned"}])).runs[0]
    assert run.completion_s == pytest.approx(3 * WIRE_S + LAST_S)


def test_a_cut_link_halves_the_rate_until_it_is_mended() -> None:
    """Without one of its two uplinks, the two flows of the leaf share the other; nothing is lost."""
    events = [{"at_s": 0.1, "cut": "leaf1:3"}, {"at_s": 0.2, "mend": "leaf1:3"}]
    experiment = made(events=events, policies=[{"name": "pinned", "policy": "pinned"}])
    run = observe(experiment).runs[0]
    assert run.completion_s == pytest.approx(WIRE_S + 0.05 + LAST_S)
    assert [event.what for event in run.events] == ["cut leaf1:3", "mend leaf1:3"]
    assert run.events[0].concerned


@pytest.mark.parametrize(
    "policy", [{"policy": "ecmp", "m": 4}, {"policy": "pinned"}, {"policy": "spraying"}, {"policy": "qp_scaling"}]
)
def test_flows_without_a_path_wait_until_links_are_mended(policy: dict[str, Any]) -> None:
    """Both uplinks of the leaf are cut for 0.1 s. The last flow then goes on over the one that is mended."""
    until = [{"at_s": 0.1, "cut": "leaf1:3"}, {"at_s": 0.1, "cut": "leaf1:4"}, {"at_s": 0.2, "mend": "leaf1:3"}]
    before = [{"at_s": 0.1, "cut": "leaf1:4"}]
    waiting, cut = (
        observe(made(events=events, policies=[{"name": "it", **policy}])).runs[0] for events in (until, before)
    )
    assert waiting.completion_s == pytest.approx(cut.completion_s + 0.1, rel=0.02)


@pytest.mark.parametrize("policy", ["adaptive", "recycled"])
def test_lanes_that_look_for_paths_wait_where_there_is_none(policy: str) -> None:
    events = [{"at_s": 0.1, "cut": "leaf1:1"}, {"at_s": 0.2, "mend": "leaf1:1"}]
    waiting, free = (
        observe(made(events=some, policies=[{"name": "it", "policy": policy, "m": 4}])).runs[0] for some in (events, [])
    )
    assert waiting.completion_s == pytest.approx(free.completion_s + 0.1, rel=0.1)


def test_a_host_without_a_path_is_reported() -> None:
    experiment = made(events=[{"at_s": 0.1, "cut": "leaf1:1"}])
    with pytest.raises(TestbedError, match="h1:1 is dead"):
        observe(experiment)


def test_the_command_needs_no_root_and_writes_a_report(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(yaml.safe_dump(document("fluid", fabric="mininet")))
    arguments = ["run", str(spec), "--fabric", "fluid", "--results", str(tmp_path / "results"), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "results/small/summary.json").read_text())
    assert summary["fabric"] == "fluid"
    assert [policy["name"] for policy in summary["policies"]] == ["pinned", "ecmp"]
    assert summary["policies"][0]["mean_s"] == pytest.approx(WIRE_S + LAST_S)
    report = (tmp_path / "results/small/report.html").read_text()
    assert "This is a model" in report
    assert "all verified" not in report
