# SPDX-License-Identifier: Apache-2.0
"""Carries out commands of other processes of the same user on a fabric that is up."""

import os
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from testbed.run.console.console import FabricConsole
from testbed.run.console.terminal import Terminal
from testbed.run.console.wire import PACKET_BYTES, SOCKET, Answer, Greeting, Request, peer_pid

_STREAMS = 3


class ConsoleService:
    """While open, it takes commands at the socket in `folder`, each in a thread of its own. A context manager.

    Programs that still run when it is closed are killed.
    """

    def __init__(self, console: FabricConsole, greeting: Greeting, folder: Path) -> None:
        self._console = console
        self._greeting = msgspec.json.encode(greeting)
        self._path = folder / SOCKET
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._programs = _Programs()

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._listener.listen()
        threading.Thread(target=self._accept, name="console", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._programs.kill()

    def _accept(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(end,), name="console command", daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        """Greet a process, and carry out its command."""
        with ExitStack() as opened, suppress(OSError):  # of a process that has gone
            opened.enter_context(end)
            if peer_pid(end) is None:
                return
            end.send(self._greeting)
            packet, descriptors, _, _ = socket.recv_fds(end, PACKET_BYTES, _STREAMS)
            for descriptor in descriptors:
                opened.callback(os.close, descriptor)
                os.set_inheritable(descriptor, False)
            if not packet or len(descriptors) != _STREAMS:
                return
            request = msgspec.json.decode(packet, type=Request)
            with (
                os.fdopen(os.dup(descriptors[1]), "w") as output,
                os.fdopen(os.dup(descriptors[2]), "w") as errors,
            ):
                run = partial(self._programs.run, end, descriptors, Path(request.folder))
                status = self._console.run(request.words, Terminal(output, errors, run))
            end.send(msgspec.json.encode(Answer(status)))


class _Programs:
    """The programs that run for other processes."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._killed = False

    def kill(self) -> None:
        """Kill all programs, and those that are yet to start."""
        with self._changing:
            self._killed = True
            for program in self._running:
                if program.poll() is None:
                    _signal(program, signal.SIGKILL)

    def run(self, end: socket.socket, streams: Sequence[int], folder: Path, argv: Sequence[str]) -> int:
        """Run a program with these streams, in this folder, until it ends. Its exit status.

        Signals that the process at the other end of the socket sends go to the program, which is killed with it.
        """
        read, write, error = streams
        with self._changing:
            program = subprocess.Popen(argv, stdin=read, stdout=write, stderr=error, cwd=folder, start_new_session=True)
            self._running.add(program)
            if self._killed:
                _signal(program, signal.SIGKILL)
        try:
            _pass_signals(end, program)
        finally:
            with self._changing:
                self._running.discard(program)
                if program.poll() is None:
                    _signal(program, signal.SIGKILL)
        status = program.wait()
        return status if status >= 0 else 128 - status


def _pass_signals(end: socket.socket, program: "subprocess.Popen[bytes]") -> None:
    """Until a program ends: send it the signals that come by a socket, and SIGKILL at the end of those."""
    with selectors.DefaultSelector() as selector, open(os.pidfd_open(program.pid), "rb") as ended:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(end, selectors.EVENT_READ)
        while program.poll() is None:
            for key, _ in selector.select():
                if key.fileobj is end:
                    asked = end.recv(1)
                    _signal(program, asked[0] if asked else signal.SIGKILL)


def _signal(program: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a program and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, number)
