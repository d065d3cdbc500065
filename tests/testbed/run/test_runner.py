# SPDX-License-Identifier: Apache-2.0
"""The runner and its agents on this machine, without a fabric: successful runs and every kind of failure."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import IO

import pytest

from emul import LinkFault
from emul.openflow_app import OpenFlowAppError
from netmodel import Link, PortRef
from sdn.isolation.source_routing import in_order
from testbed.analysis.observations import Observations, RunRecord
from testbed.errors import TestbedError
from testbed.live.runs_so_far import Began, Entry
from testbed.process_group import ProcessError
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run import experiment_runs, runner
from testbed.run.agent import Hostlib, serve
from testbed.run.agents import Agents
from testbed.run.rank_configuration import connect_commands, prepare_commands
from tests.testbed.experiments import experiment, first_of, on_loopback, write_spec
from tests.testbed.run.fake_fabric import TCP_AGENT, FakeFabric, agents_by, outlast_events, runner_on


def run(folder: Path, **changes: object) -> list[RunRecord]:
    made = on_loopback(experiment(folder, **changes))
    with Steps(1) as steps:
        return list(runner_on(made, folder / "logs", TCP_AGENT).runs(steps))


def scripted(folder: Path, program: str) -> Agents:
    """An agent that runs a Python program instead of executing commands."""
    return Agents(agents_by(sys.executable, "-c", program), ["h1"], folder / "logs")


@pytest.mark.parametrize(("asked", "tries"), [("warn", 1), ("repeat", 3)])
def test_runs_on_a_busy_machine_are_repeated_where_the_spec_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, tries: int
) -> None:
    monkeypatch.setattr(experiment_runs, "mean_wait_s", lambda before, after: 0.009)
    one = [{"name": "one", "policy": "ecmp"}]
    made = on_loopback(experiment(tmp_path, policies=one, seeds=1, when_busy=asked))
    told: list[Entry] = []
    with Steps(1) as steps:
        (record,) = runner_on(made, tmp_path / "logs", TCP_AGENT, tell=told.append).runs(steps)
    assert sum(isinstance(entry, Began) for entry in told) == tries
    assert (record.wait_s, record.wrong_bytes, len(record.seen)) == (0.009, 0, 1)


def test_runs_on_a_busy_machine_are_refused_where_the_spec_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_runs, "mean_wait_s", lambda before, after: 0.009)
    with pytest.raises(
        TestbedError, match=r"The machine was too busy in 1 of 1 runs: .* waited 9.0 ms for a processor"
    ):
        run(tmp_path, when_busy="refuse")


@pytest.mark.parametrize(
    "kind", ["ring_allreduce", "permutation", "pairwise_alltoall", "nccl_ring_allreduce", "nccl_tree_allreduce"]
)
def test_runs_every_policy_with_every_seed(tmp_path: Path, kind: str) -> None:
    records = run(tmp_path, workload={"kind": kind, "bytes": 80_000, "slices": 2})
    assert [(record.policy, record.seed) for record in records] == [
        ("ecmp", 1),
        ("pinned", 1),
        ("ecmp", 2),
        ("pinned", 2),
    ]
    for record in records:
        assert record.wrong_bytes == 0
        assert 0 < max(flow.completion_s for flow in record.flows) <= record.completion_s < 20
        assert len(record.step_finished_s) == 4
        assert record.samples[-1].at_s >= record.completion_s
        assert all(load.tx_bytes > 0 for load in record.links)
    assert [len(record.seen) for record in records] == [1, 0, 0, 0]  # a flow is reported once
    assert {log.name for log in (tmp_path / "logs").iterdir()} == {f"agent-h{n}.log" for n in range(1, 5)}


@pytest.mark.parametrize("alone", [False, True])
def test_jobs_run_concurrently_or_one_after_the_other(tmp_path: Path, alone: bool) -> None:
    policies = [{"name": "ecmp", "policy": "ecmp", "alone": alone}]
    (record,) = run(tmp_path, jobs=2, policies=policies, seeds=1)
    assert record.wrong_bytes == 0
    assert [(job.name, job.ranks) for job in record.jobs] == [("job1", 2), ("job2", 2)]
    assert record.completion_s == max(job.completion_s for job in record.jobs)
    assert {(flow.src, flow.dst) for flow in record.flows} == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert all(0 < flow.completion_s <= record.completion_s for flow in record.flows)


def test_every_seed_draws_a_placement(tmp_path: Path) -> None:
    records = run(tmp_path, placement={"rule": "random", "ranks": 3, "redraw": True}, seeds=4)
    assert len(records) == 8
    assert all(record.wrong_bytes == 0 for record in records)


def test_source_port_rules_are_installed_only_for_runs_that_use_them(tmp_path: Path) -> None:
    policies = [{"name": "ecmp", "policy": "ecmp"}, {"name": "sr", "policy": "source_routing"}]
    made = on_loopback(experiment(tmp_path, policies=policies))
    fabric = FakeFabric(made)
    with Steps(1) as steps:
        records = list(runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps))
    steering = in_order(made.topology)
    assert fabric.steered == [steering, None, steering]
    assert [record.strays for record in records] == [{}, {"leaf1:2": 7}] * 2
    assert [len(record.seen) for record in records] == [1, 1, 1, 1]  # the datapath's table was emptied each time


def test_events_happen_on_time_and_links_are_mended_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    events = [
        {"at_s": 0.02, "mend": "leaf1:4"},
        {"at_s": 0.0, "cut": "leaf1:3"},
        {"at_s": 0.0, "links": {"leaf2:3": {"delay": "2 ms"}, "leaf2:4": {"mark_above": "40 KB"}}},
    ]
    links = {"leaf2:4": {"loss": "1 %"}}
    made = on_loopback(experiment(tmp_path, events=events, links=links, seeds=1))
    fabric = FakeFabric(made)
    with Steps(1) as steps:
        records = list(runner_on(made, tmp_path / "logs", TCP_AGENT, fabric).runs(steps))
    first, second = (made.topology.link_at(PortRef("leaf1", port)) for port in (3, 4))
    assert fabric.link_changes == [(first, False), (second, True), (first, True)] * 2
    third, fourth = PortRef("leaf2", 3), PortRef("leaf2", 4)
    set_then = [(third, LinkFault(delay_s=0.002)), (fourth, LinkFault(mark_above_bytes=40_000))]
    assert fabric.faults == [*set_then, (third, LinkFault()), (fourth, LinkFault(loss=0.01))] * 2
    setting = "set leaf2:3 to delay 2000 us; set leaf2:4 to marks above 40,000 B"
    for record in records:
        assert [event.what for event in record.events] == ["cut leaf1:3", setting, "mend leaf1:4"]
        assert [event.concerned for event in record.events] == [["leaf2:1"], [], []]  # a delay ends nothing
        assert 0 <= record.events[0].at_s <= record.events[0].done_s <= record.events[1].done_s


def test_a_silent_loss_concerns_the_hosts_whose_data_cross_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlast_events(monkeypatch)
    events = [
        {"at_s": 0.0, "links": {"leaf2:3": {"loss": "100 %"}, "spine1:2": {"loss": "100 %"}}},
        {"at_s": 0.01, "links": {"leaf2:3": {"loss": "99 %"}, "spine1:2": {}}},
    ]
    made = on_loopback(experiment(tmp_path, events=events, seeds=1))
    with Steps(1) as steps:
        records = list(runner_on(made, tmp_path / "logs", TCP_AGENT, FakeFabric(made)).runs(steps))
    for record in records:
        assert [event.concerned for event in record.events] == [["leaf2:1"], []]


def test_a_cut_may_concern_all_hosts_where_paths_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    events = [{"at_s": 0.0, "cut": "leaf1:3"}, {"at_s": 0.01, "mend": "leaf1:3"}]
    one = [{"name": "one", "policy": "ecmp"}]
    made = on_loopback(experiment(tmp_path, events=events, seeds=1, policies=one, openflow={"app": "mine.py"}))
    with Steps(1) as steps:
        (record,) = runner_on(made, tmp_path / "logs", TCP_AGENT, FakeFabric(made)).runs(steps)
    assert [event.concerned for event in record.events] == [["leaf1:1", "leaf1:2", "leaf2:1", "leaf2:2"], []]


def test_a_run_fails_with_what_programs_the_switches(tmp_path: Path) -> None:
    made = on_loopback(experiment(tmp_path, seeds=1))

    class Failed(FakeFabric):
        def check_switches(self) -> None:
            raise OpenFlowAppError("the OpenFlow app ended with status 1")

    with Steps(1) as steps, pytest.raises(OpenFlowAppError, match="ended with status 1"):
        list(runner_on(made, tmp_path / "logs", TCP_AGENT, Failed(made)).runs(steps))


def test_an_event_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outlast_events(monkeypatch)
    made = on_loopback(experiment(tmp_path, events=[{"at_s": 0.0, "cut": "leaf1:3"}], seeds=1))

    class Stuck(FakeFabric):
        def set_link(self, link: Link, up: bool) -> None:
            raise TestbedError("the link is stuck")

    with Steps(1) as steps, pytest.raises(TestbedError, match="the link is stuck"):
        list(runner_on(made, tmp_path / "logs", TCP_AGENT, Stuck(made)).runs(steps))


@pytest.mark.parametrize(("fabric", "timeout_s"), [("mininet", 7.0), ("softroce", 70.0)])
def test_agents_have_the_time_of_the_fabric_to_connect(tmp_path: Path, fabric: str, timeout_s: float) -> None:
    """A guest is slow: its time is ten times that of the spec, as docs/softroce.md says."""
    made = experiment(tmp_path, fabric=fabric, timeouts={"connect_s": 7})
    prepared = {rank: messages.Prepared(handles={}) for rank in range(made.ranks)}
    assert {command.timeout_s for command in connect_commands(made, prepared).values()} == {timeout_s}


def test_a_failing_agent_reports_its_error_and_log(tmp_path: Path) -> None:
    # Without the loopback addresses no device can be opened.
    made = experiment(tmp_path)
    runner = runner_on(made, tmp_path / "logs", TCP_AGENT)
    with Steps(1) as steps, pytest.raises(ProcessError, match=r"the agent on h\d failed: .*agent-h\d\.log"):
        list(runner.runs(steps))


def test_a_dead_agent_is_reported(tmp_path: Path) -> None:
    with scripted(tmp_path, "import os; os.kill(os.getpid(), 9)") as agents:
        with pytest.raises(ProcessError, match=r"the agent on h1 ended by signal SIGKILL; its log is .*agent-h1\.log"):
            agents.receive(messages.Closed, 100.0)
        with pytest.raises(ProcessError, match="ended by signal SIGKILL"):
            agents.send({0: messages.Close()})


def test_a_hanging_agent_is_reported_and_killed(tmp_path: Path) -> None:
    agents = scripted(tmp_path, "import signal, time; signal.signal(signal.SIGTERM, lambda *_: 0); time.sleep(600)")
    with pytest.raises(ProcessError, match=r"on h1 did not report 'closed' within 0\.3 s"), agents:
        agents.receive(messages.Closed, 0.3)
    assert all(agent.process.returncode == -9 for agent in agents._group._processes)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("hello", "sent a line that is not a report"),
        ('{"event": "closed", "more": 1}', "sent a line that is not a report"),
        ('{"event": "connected"}', "reported 'connected' when 'closed' was expected"),
        ('{"event": "failed", "error": "out of luck."}', "failed: out of luck; its log"),
    ],
)
def test_an_unexpected_report_is_an_error(tmp_path: Path, line: str, what: str) -> None:
    talker = f"print({line!r}, flush=True); input()"
    with scripted(tmp_path, talker) as agents, pytest.raises(ProcessError, match=what):
        agents.receive(messages.Closed, 100.0)


def test_an_agent_that_did_not_prepare_refuses_to_start(tmp_path: Path) -> None:
    with Agents(TCP_AGENT, ["h1"], tmp_path / "logs") as agents:
        agents.send({0: messages.Close()})
        with pytest.raises(ProcessError, match="close came before prepare"):
            agents.receive(messages.Closed, 100.0)
    assert "Traceback" in (tmp_path / "logs" / "agent-h1.log").read_text()


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (None, "has no data that an agent could send"),
        ("robot", "has ranks 'robot', which is none of schedule, nccl driver"),
    ],
)
def test_an_agent_refuses_a_workload_whose_ranks_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str | None, said: str
) -> None:
    made = on_loopback(experiment(tmp_path))
    command = prepare_commands(first_of(made), made.spec.policies[0], None)[0]
    monkeypatch.setattr(type(command.workload), "RANK", rank)
    reports = StringIO()
    assert serve(StringIO(command.model_dump_json() + "\n"), reports, Hostlib()) == 1
    assert said in reports.getvalue()


@pytest.mark.parametrize("per", ["peer", "host"])
def test_devices_have_lanes_for_each_peer_or_for_the_host(tmp_path: Path, per: str) -> None:
    made = on_loopback(experiment(tmp_path, policies=[{"name": "a", "policy": "ecmp", "m": 2, "lanes_per": per}]))
    commands = prepare_commands(first_of(made), made.spec.policies[0], None)
    assert {command.device.lanes_per for command in commands.values()} == {per}


def test_a_file_that_cannot_be_written_gives_one_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_in_sandbox", lambda *_: Observations(runs=[]))
    arguments = ["--spec", str(write_spec(tmp_path)), "--out", str(tmp_path), "--log-dir", str(tmp_path)]
    assert runner.main(arguments) == 1
    assert capsys.readouterr().err == f"paralet: {tmp_path} cannot be used: Is a directory\n"


def test_no_process_remains_after_a_failed_start(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(host: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        if started:
            raise OSError("no more processes")
        argv = [sys.executable, "-c", "input()"]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr))
        return started[0]

    with pytest.raises(OSError, match="no more processes"):
        Agents(start, ["h1", "h2"], tmp_path / "logs")
    assert started[0].returncode == -9
