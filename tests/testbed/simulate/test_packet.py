# SPDX-License-Identifier: Apache-2.0
"""Specs on the packet fabric: closed forms, agreement with the fluid fabric, rejected specs, and the command."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from testbed.analysis.results import ideal_of
from testbed.bench import packet as bench
from testbed.cli import main
from testbed.conflict import Conflict
from tests.testbed.simulate.small import HEADER_BYTES, PACKET_S, document, observe, small

made = partial(small, "packet")


def test_disjoint_paths_take_the_serialisation_time() -> None:
    """In a ring, links also carry acknowledgements of others: one per packet, 1.5 % of its size."""
    run = observe(made()).runs[0]
    assert 103 * PACKET_S <= run.completion_s <= 1.02 * 103 * PACKET_S
    assert all(load.dropped == 0 for load in run.links)
    assert sum(entry.lane.tx_bytes for entry in run.lanes) == 4 * 409600


def test_delays_of_the_topology_count_where_it_gives_any() -> None:
    topology = {"leaf_spine": {**document("packet")["topology"]["leaf_spine"], "fabric_delay": "20 ms"}}
    policies = [{"name": "pinned", "policy": "pinned"}]
    changes = {"policies": policies, "packet": {"link_delay_s": 0.001, "window_bdp": 4}}
    (plain,), (delayed,) = (observe(made(**changes, **more)).runs for more in ({}, {"topology": topology}))
    assert delayed.completion_s - plain.completion_s == pytest.approx(2 * (0.020 - 0.001), rel=0.02)


def test_ecmp_is_slowed_by_the_flows_on_its_most_loaded_link() -> None:
    for run in observe(made(seeds=8)).runs:
        data_bytes = 100 * (4096 + HEADER_BYTES)
        flows_on = round(max(load.tx_bytes for load in run.links) / (data_bytes * 1.02))
        assert run.completion_s == pytest.approx((100 * flows_on + 3) * PACKET_S, rel=0.03)


@pytest.mark.parametrize("kind", ["ring_allreduce", "nccl_tree_allreduce", "pairwise_alltoall", "permutation"])
def test_the_ideal_is_never_beaten_and_the_fluid_model_is_close(kind: str) -> None:
    policies = [{"name": "pinned", "policy": "pinned"}, {"name": "paralet", "policy": "ecmp", "m": 4}]
    experiment = made(workload={"kind": kind, "bytes": 2_000_000}, policies=policies, seeds=2)
    for run, flowing in zip(observe(experiment).runs, observe(experiment, "fluid").runs, strict=True):
        assert run.completion_s > ideal_of(experiment)
        assert run.completion_s == pytest.approx(flowing.completion_s, rel=0.15)
        assert [lane.lane.port for lane in run.lanes] == [lane.lane.port for lane in flowing.lanes]


def test_schemes_run_under_their_names_and_a_policy_may_have_its_own_receiver() -> None:
    names = ["drill", "letflow", "conweave", "spraying", "oblivious", "recycled", "plb"]
    policies: list[dict[str, Any]] = [{"name": name, "policy": name, "m": 4} for name in names]
    policies += [{"name": "kept", "policy": "spraying", "receiver": "selective_repeat"}]
    runs = observe(made(policies=policies, packet={"link_delay_s": 0, "ecn_bytes": 20000})).runs
    assert [run.policy for run in runs] == [*names, "kept"]
    for run in runs:
        assert run.completion_s > 100 * PACKET_S
        assert sum(entry.lane.tx_bytes for entry in run.lanes) == 4 * 409600
    again = {run.policy: sum(entry.lane.retransmits for entry in run.lanes) for run in runs}
    assert 100 * again["kept"] < again["spraying"]  # a late packet is not taken for a lost one


def test_another_seed_draws_otherwise() -> None:
    policies = [{"name": "it", "policy": "spraying", "receiver": "selective_repeat"}]
    one, other = observe(made(policies=policies, seeds=2)).runs
    assert [load.tx_packets for load in one.links] != [load.tx_packets for load in other.links]


def test_links_have_the_settings_of_the_spec_and_of_events() -> None:
    policies = [{"name": "it", "policy": "pinned"}]
    (plain,) = observe(made(policies=policies)).runs
    (delayed,) = observe(made(policies=policies, links={"leaf1:1": {"delay": "10 ms"}})).runs
    assert delayed.completion_s - plain.completion_s == pytest.approx(0.01, rel=0.2)
    half_s = plain.completion_s / 2
    event = {"at_s": half_s, "links": {"leaf1:1": {"loss": "10 %"}}}
    (lossy,) = observe(made(policies=policies, events=[event])).runs
    loads = {load.port: load for load in lossy.links}
    assert 0 < loads["leaf1:1"].lost < loads["leaf1:1"].tx_packets / 2
    assert not any(load.lost or load.marked for port, load in loads.items() if port != "leaf1:1")
    assert [(event.what, event.at_s) for event in lossy.events] == [("set leaf1:1 to loss 10 %", half_s)]
    assert lossy.completion_s > plain.completion_s
    (host,) = observe(made(policies=policies, links={"h1:1": {"loss": "10 %", "delay": "1 ms"}})).runs
    assert {load.port for load in host.links if load.lost} == {"h1:1"}
    assert host.completion_s > plain.completion_s + 0.001
    incast = {"kind": "parameter_server", "phase": "incast", "bytes": 4096 * 90}
    (marking,) = observe(made(policies=policies, workload=incast, links={"leaf1:1": {"mark_above": "20 KB"}})).runs
    assert {load.port for load in marking.links if load.marked} == {"leaf1:1"}


def test_lanes_slow_down_where_links_mark_unless_windows_are_fixed() -> None:
    policies = [{"name": "it", "policy": "pinned"}]
    incast = {"kind": "parameter_server", "phase": "incast", "bytes": 4096 * 90}
    marks = {"leaf1:1": {"mark_above": "20 KB"}}

    def marked(**more: Any) -> int:
        (run,) = observe(made(policies=policies, workload=incast, **more)).runs
        return sum(load.marked for load in run.links)

    slowing, fixed = marked(links=marks), marked(links=marks, packet={"congestion": "fixed"})
    assert 0 < slowing < fixed
    assert 0 < marked(events=[{"at_s": 0.0, "links": marks}]) < fixed
    assert marked() == 0


def test_only_lost_packets_are_repeated_where_links_lose_unless_a_receiver_is_named() -> None:
    loss = {"leaf1:3": {"loss": "5 %"}, "leaf1:4": {"loss": "5 %"}}

    def again_and_lost(**more: Any) -> tuple[int, int]:
        (run,) = observe(made(policies=[{"name": "it", "policy": "pinned"}], **more)).runs
        return sum(entry.lane.retransmits for entry in run.lanes), sum(load.lost for load in run.links)

    again, lost = again_and_lost(links=loss)
    assert 0 < again == lost
    assert again_and_lost(events=[{"at_s": 0.0, "links": loss}])[0] > 0
    again, lost = again_and_lost(links=loss, packet={"receiver": "go_back_n"})
    assert again > lost > 0


def test_jobs_that_run_alone_do_not_collide() -> None:
    both, alone = (
        observe(made(jobs=2, policies=[{"name": "it", "policy": "ecmp", "alone": alone}], seeds=4)).runs
        for alone in (False, True)
    )
    for one, other in zip(both, alone, strict=True):
        assert other.completion_s <= one.completion_s * 1.001


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"events": [{"at_s": 1.0, "cut": "leaf1:3"}]}, "does not cut, degrade or mend links"),
        ({"links": {"leaf1:3": {"corruption": 0.1}}}, "fabric packet has no corruption by links"),
        (
            {"events": [{"at_s": 1.0, "links": {"leaf1:3": {"reorder": 0.1, "late_by": 0.1}}}]},
            "fabric packet has no reorder by links",
        ),
        (
            {"links": {"leaf1:3": {"delay": 0.1}}, "packet": {"pfc": True}},
            "with pfc links have the delays of the topology and packet.link_delay_s; leave it out",
        ),
        ({"policies": [{"name": "a", "policy": "adaptive"}]}, "fabric packet has no policy adaptive"),
        ({"packet": {"congestion": "dctcp"}}, "give ecn_bytes"),
        ({"policies": [{"name": "a", "policy": "plb"}]}, "give ecn_bytes"),
        ({"policies": [{"name": "a", "policy": "drill"}], "fabric": "fluid"}, "fluid has no policy drill; use packet"),
    ],
)
def test_unmodelled_features_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((Conflict, ValueError), match=message):
        made(**changes)


def test_the_command_needs_no_root_and_writes_a_report(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(yaml.safe_dump(document("packet", fabric="mininet")))
    arguments = ["run", str(spec), "--fabric", "packet", "--results", str(tmp_path / "results"), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "results/small/summary.json").read_text())
    assert summary["fabric"] == "packet"
    assert [policy["name"] for policy in summary["policies"]] == ["pinned", "ecmp"]
    report = (tmp_path / "results/small/report.html").read_text()
    assert "a simulation of packets" in report
    assert "all verified" not in report


def test_a_buffer_too_small_for_pfc_is_reported(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(yaml.safe_dump(document("packet", packet={"pfc": True, "switch_buffer_bytes": 20000})))
    result = CliRunner().invoke(main, ["run", str(spec), "--results", str(tmp_path / "results")])
    assert result.exit_code != 0
    assert "too small for priority flow control" in str(result.output) + str(result.exception)


def test_the_benchmark_counts_events_of_a_run_that_ends() -> None:
    one, other = bench.ring(2, 2, 2, 1, 100_000, 0), bench.ring(2, 2, 2, 4, 100_000, 0)
    for simulation in (one, other):
        simulation.advance()
        assert simulation.undelivered == 0
        packets = simulation.link_counters()["packets"].sum()
        assert 1.8 * packets <= simulation.events <= 2.2 * packets + 100
