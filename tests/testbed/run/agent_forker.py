# SPDX-License-Identifier: Apache-2.0
"""Agents that are forked by a program that has imported what they need, so that none spends a third of a second on it.

The program, started on first use, ends with the process that started it.

usage: python -m tests.testbed.run.agent_forker SOCKET
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import IO

from testbed.run.agent import Hostlib, Transport, serve
from tests.testbed.run.tcp_transport import TcpTransport

TRANSPORTS: dict[str, Callable[[], Transport]] = {"hostlib": Hostlib, "tcp": TcpTransport}

_STATUS_BYTES = 4
_MOST_BYTES = 1 << 17
"""Of a request: the environment is most of it."""


class ForkedAgent:
    """What `testbed.process_group` uses of `subprocess.Popen`."""

    def __init__(self, transport: str, stderr: IO[bytes]) -> None:
        (their_input, ours), (output, their_output), (self._end, their_end) = os.pipe(), os.pipe(), os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(ours, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(output, "rb")
        request = json.dumps({"transport": transport, "environment": dict(os.environ), "folder": os.getcwd()})
        forker = _forker()
        theirs = [their_input, their_output, stderr.fileno(), their_end]
        socket.send_fds(forker, [request.encode()], theirs)
        for descriptor in (their_input, their_output, their_end):
            os.close(descriptor)
        self.pid = int(forker.recv(64))
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            ended = select.poll()  # not `select`, which takes no descriptor above 1023
            ended.register(self._end, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(f"agent {self.pid}", timeout or 0.0)
            self._status = int.from_bytes(os.read(self._end, _STATUS_BYTES), "big", signed=True)
            os.close(self._end)
        return self._status

    def kill(self) -> None:
        """Kill the agent unless it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@cache
def _forker() -> socket.socket:
    """The connection to the program."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    return ours


def main(requests: socket.socket) -> None:
    """Fork an agent for each request, and write the exit status of each into its pipe, until there are no more."""
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pipes: dict[int, int] = {}
    while True:
        ready = select.select([requests, ended], [], [])[0]
        if requests in ready:
            request, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
            if not request:
                return
            if (pid := os.fork()) == 0:
                os._exit(_agent(request, descriptors))
            pipes[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(str(pid).encode())
        if ended in ready:
            ended.recv(64)
        for pid in list(pipes):
            if (done := os.waitpid(pid, os.WNOHANG))[0]:
                with suppress(BrokenPipeError):  # nobody waits for it any more
                    status = os.waitstatus_to_exitcode(done[1])
                    os.write(pipes[pid], status.to_bytes(_STATUS_BYTES, "big", signed=True))
                os.close(pipes.pop(pid))


def _agent(request: bytes, descriptors: list[int]) -> int:
    """Be an agent. Its exit status."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        asked = json.loads(request)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        with open(0, closefd=False) as commands, open(1, "w", closefd=False) as reports:
            return serve(commands, reports, TRANSPORTS[asked["transport"]]())
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
