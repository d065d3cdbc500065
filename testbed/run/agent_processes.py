# SPDX-License-Identifier: Apache-2.0
"""Agents as forks of the runner, which share what it has imported: a start takes milliseconds, not half a second.

They are forked before the fabric comes up, because the runner has a single thread then. Each of them waits until its
host exists and then enters the host's namespaces.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NoReturn, Self

from emul import namespaces
from testbed.run.agent import Hostlib, serve
from testbed.run.agents import StartAgent

_PID_BYTES = 4
_NAME_BYTES = 15
"""Of a process's name (proc(5), comm)."""

_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Agents and their programs multiply no matrices: threads of numpy's linear algebra would cost memory and time."""


class AgentProcess:
    """An agent that waits for its host. It has what a process group uses of `subprocess.Popen`."""

    def __init__(self, host: str) -> None:
        ours, theirs = socket.socketpair()
        reports, their_reports = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run(host, theirs, their_reports)
        theirs.close()
        os.close(their_reports)
        self._pidfd = os.pidfd_open(self._pid)
        self._host = host
        self._commands = ours
        self._status: int | None = None
        self.stdin: IO[bytes] | None = os.fdopen(os.dup(ours.fileno()), "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(reports, "rb", buffering=0)

    def enter(self, pid: int, stderr: IO[bytes]) -> Self:
        """Let the agent enter the namespaces of process `pid`, write its log to `stderr` and expect commands."""
        socket.send_fds(self._commands, [pid.to_bytes(_PID_BYTES)], [stderr.fileno()])
        self._commands.close()  # `stdin` keeps the connection
        return self

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, as of `subprocess.Popen.wait`."""
        if self._status is None:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"the agent on {self._host}", timeout or 0.0)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            os.close(self._pidfd)
        return self._status

    def kill(self) -> None:
        """Kill the agent if it still runs."""
        if self._status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def end(self) -> None:
        """End the agent, also one that still waits for its host, and release what belongs to it."""
        self.kill()
        self.wait()
        self._commands.close()
        for pipe in (self.stdin, self.stdout):
            assert pipe is not None
            pipe.close()


class AgentProcesses:
    """An agent for every one of `hosts`, which waits for its host. A context manager: leaving it ends all agents."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._agents: dict[str, AgentProcess] = {}
        with ExitStack() as undo:
            undo.callback(self._end)
            for host in hosts:
                self._agents[host] = AgentProcess(host)
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def on(self, host_pid: Callable[[str], int]) -> StartAgent:
        """Starts an agent on its host. `host_pid` gives the id of a process in a host's namespaces."""
        return lambda host, stderr: self._agents[host].enter(host_pid(host), stderr)

    def _end(self) -> None:
        for agent in self._agents.values():
            agent.end()


def _run(host: str, commands: socket.socket, reports: int) -> NoReturn:
    """What a fork does: it never returns into the runner's code."""
    status = 1
    try:
        # Forks have the command line of the runner, so `ps` and `pgrep` tell agents by this name (of 15 bytes at most).
        Path("/proc/self/comm").write_bytes(f"paralet {host}".encode()[:_NAME_BYTES])
        os.dup2(commands.fileno(), 0)
        os.dup2(reports, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # with the pipes of other agents, whose end they would hide
        with socket.socket(fileno=os.dup(0)) as channel:
            pid, log, _, _ = socket.recv_fds(channel, _PID_BYTES, 1)
        if not pid:  # the runner has ended before the agent's host existed
            os._exit(0)
        os.dup2(log[0], 2)
        namespaces.enter(int.from_bytes(pid))
        os.environ.update(_ENVIRONMENT)
        with open(0) as lines, open(1, "w") as answers:
            status = serve(lines, answers, Hostlib())
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)
