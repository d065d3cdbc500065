# SPDX-License-Identifier: Apache-2.0
"""Specs on the fluid fabric: closed forms, paths of lanes, events, and the command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from netmodel import Flow, path_of
from sim.links import Links
from testbed.analysis.results import ideal_of
from testbed.cli import main
from testbed.errors import TestbedError
from testbed.simulate.lane_paths import lanes_of
from testbed.workloads import KINDS, GridWorkload, Training
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
        {"policy": "controller", "planner": "optimal"},
    ],
    ids=lambda policy: policy["policy"],
)
def test_lanes_go_where_the_spec_says(policy: dict[str, Any]) -> None:
    experiment = made(policies=[{"name": "it", **policy}])
    links = Links(experiment.topology)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    found = lanes_of(experiment, experiment.spec.policies[0], 1, pairs, links)
    assert found.ports.shape == found.rows.shape[:2] == (4, policy.get("m", 1))
    for (src, dst), ports, rows in zip(pairs, found.ports, found.rows, strict=True):
        hosts = experiment.topology.host(experiment.hosts[src]), experiment.topology.host(experiment.hosts[dst])
        for port, row in zip(ports.tolist(), rows.tolist(), strict=True):
            if policy["policy"] != "controller":  # whose ports are found when the flow is announced
                flow = Flow(hosts[0].nics[0].address, hosts[1].nics[0].address, port)
                path = path_of(experiment.topology, flow, experiment.ecmp_hash, routes=experiment.routes("it"))
                assert row == links.row(path)
    if policy["policy"] != "ecmp":
        crossed = found.rows[:, 0, 1:3].ravel()
        assert len(set(crossed.tolist())) == crossed.size  # no two pairs on one uplink or downlink


def test_jobs_that_run_alone_have_the_whole_fabric() -> None:
    both, alone = (
        observe(made(jobs=2, policies=[{"name": "it", "policy": "ecmp", "alone": alone}], seeds=4)).runs
        for alone in (False, True)
    )
    for one, other in zip(both, alone, strict=True):
        assert other.completion_s <= one.completion_s * (1 + 1e-9)
        assert sum(load.tx_bytes for load in one.links) == pytest.approx(sum(load.tx_bytes for load in other.links))


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if not issubclass(KINDS[kind], GridWorkload | Training)))
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
