# SPDX-License-Identifier: Apache-2.0
"""Agents that the runner forks before their hosts exist. Integration tests run them on hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.process_group import ProcessError
from testbed.run import agent_messages as messages
from testbed.run.agent_processes import AgentProcess, AgentProcesses
from testbed.run.agents import Agents
from tests.hostlib.path_service import eventually

NO_PROCESS = 2**31 - 1
"""More than the largest process id."""


@pytest.fixture
def pair() -> Iterator[list[AgentProcess]]:
    with AgentProcesses(["h1", "h2"]) as processes:
        yield list(processes._agents.values())


def test_agents_without_hosts_end_with_their_context() -> None:
    with AgentProcesses(["h1", "h2"]) as processes:
        pids = [agent._pid for agent in processes._agents.values()]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_agents_are_told_apart_by_the_names_of_their_processes() -> None:
    with AgentProcesses(["h1", "a-host-with-a-long-name"]) as processes:
        for agent, name in zip(processes._agents.values(), ("paralet h1", "paralet a-host-"), strict=True):
            eventually(lambda pid=agent._pid, name=name: Path(f"/proc/{pid}/comm").read_text() == f"{name}\n", name)


def test_an_agent_ends_when_the_runner_has_ended_though_others_were_forked_later(pair: list[AgentProcess]) -> None:
    first, second = pair
    assert first.stdin is not None
    first.stdin.close()
    first._commands.close()
    assert first.wait(timeout=60.0) == 0
    second.kill()
    assert second.wait() == -9


def test_an_agent_that_cannot_enter_its_host_says_so_in_its_log(tmp_path: Path) -> None:
    refusal = pytest.raises(ProcessError, match=r"the agent on h1 ended with status 1; its log is .*agent-h1\.log")
    with (
        AgentProcesses(["h1"]) as processes,
        refusal,
        Agents(processes.on(lambda _: NO_PROCESS), ["h1"], tmp_path) as agents,
    ):
        agents.receive(messages.Closed, 60.0)
    assert f"No such file or directory: '/proc/{NO_PROCESS}/ns/net'" in (tmp_path / "agent-h1.log").read_text()
