# SPDX-License-Identifier: Apache-2.0
"""Agents of `paralet pin` on this machine, and who may speak for a process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from paralet_pin import check, survey
from paralet_pin.launch import AGENT

FLOW = {"protocol": "tcp", "local": "10.0.0.1", "remote": "10.0.0.2", "remote_port": 5, "what": "socket 3"}
COUNTERS = {"port": 50001, "planned_port": 50001, "bytes": 7, "timeouts": 0, "elephant": False}


def answer(*pids: int, namespace: int = 0) -> bytes:
    """What an agent says of one connection of each process."""
    return json.dumps(
        {
            "format": "paralet-pin-1",
            "job": "bert",
            "pid_namespace": namespace,
            "path_service": False,
            "clients": 0,
            "connected": 0,
            "asked": len(pids),
            "given": len(pids),
            "pinned": [{**FLOW, **COUNTERS, "pid": pid} for pid in pids],
            "not_pinned": [],
        }
    ).encode()


class Agent:
    """Says the same to everybody who asks."""

    def __init__(self, path: Path, says: bytes) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._says = says
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                asking = self._listener.accept()[0]
            except OSError:
                return
            with asking, suppress(OSError):  # who asks may leave before the answer
                asking.recv(4096)
                asking.sendall(self._says)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


PROGRAM = "import os, sys; print(os.readlink('/proc/self'), flush=True); sys.stdin.read()"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has an agent."""
    words = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, AGENT: str(tmp_path / "agent")}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_a_process_is_told_of_by_the_agent_that_its_environment_names(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "agent", answer(program.pid, os.getpid()))
    try:
        (one,) = survey.reports([program.pid])
        assert [flow.pid for flow in one.pinned] == [program.pid]
        assert [program.pid, os.getpid()] in [[flow.pid for flow in each.pinned] for each in survey.reports()]
        assert survey.reports([os.getpid()]) == []
    finally:
        agent.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes")
@pytest.mark.parametrize("agent_is_inside", [True, False])
def test_a_process_of_a_container_is_told_of_by_its_id_where_its_agent_is(
    tmp_path: Path, agent_is_inside: bool
) -> None:
    """Whoever looks from outside knows it by another id, and its id inside is that of another process outside."""
    words = ["unshare", "--pid", "--fork", sys.executable, "-c", PROGRAM]
    environment = {**os.environ, AGENT: str(tmp_path / "agent")}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        namespace = os.stat(f"/proc/{pid if agent_is_inside else 'self'}/ns/pid").st_ino
        agent = Agent(tmp_path / "agent", answer(1, pid, namespace=namespace))
        (one,) = survey.reports([pid])
        assert [flow.pid for flow in one.pinned] == [1 if agent_is_inside else pid]
        process.stdin.close()
    agent.close()


def test_an_agent_that_is_in_no_namespace_around_a_process_says_nothing_of_it(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "agent", answer(program.pid, namespace=1))
    try:
        (one,) = survey.reports([program.pid])
        assert one.pinned == []
    finally:
        agent.close()


def test_an_agent_of_another_user_is_not_asked(program: subprocess.Popen[bytes], tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent", answer(program.pid))
    try:
        with pytest.raises(check.CheckError, match=r"is another user's$"):
            check.ask(tmp_path / "agent", owner=os.getuid() + 1)
    finally:
        agent.close()


@pytest.mark.parametrize("says", [b"", b"{}", b"x" * (1 << 23)], ids=["nothing", "no report", "too much"])
def test_an_agent_that_says_no_report_is_left_out(
    program: subprocess.Popen[bytes], tmp_path: Path, says: bytes
) -> None:
    agent = Agent(tmp_path / "agent", says)
    try:
        assert survey.reports([program.pid]) == []
    finally:
        agent.close()
