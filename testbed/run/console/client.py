# SPDX-License-Identifier: Apache-2.0
"""Finds the fabrics of this user that are up on this machine, and gives one of them a command."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from emul.sandboxes import RunningSandbox, running
from testbed.errors import InputError, TestbedError
from testbed.run.console.wire import PACKET_BYTES, SOCKET, Answer, Greeting, Request, peer_pid

_GREETING_TIMEOUT_S = 10.0


class FabricGoneError(TestbedError):
    """The fabric went down before it had answered."""


@dataclass(frozen=True, slots=True)
class UpFabric:
    """A fabric that is up, and its sandbox."""

    greeting: Greeting
    sandbox: RunningSandbox

    def run(self, words: Sequence[str], streams: Sequence[int] = (0, 1, 2)) -> int:
        """Carry out a command with these descriptors as its input, output and errors. Returns its exit status.

        SIGINT and SIGTERM go to the program that runs; a second one ends this process. Raises FabricGoneError when the
        fabric ends.
        """
        request = msgspec.json.encode(Request(list(words), os.getcwd()))
        if len(request) > PACKET_BYTES:
            raise InputError(f"a command may have at most {PACKET_BYTES:,} bytes")
        gone = FabricGoneError(f"fabric {self.greeting.name} went down before the command ended")
        try:
            with _connected(self.sandbox) as (end, _):
                socket.send_fds(end, [request], streams)
                with _signals_to(end):
                    answer = end.recv(PACKET_BYTES)
        except (FileNotFoundError, ConnectionError) as error:
            raise gone from error
        if not answer:
            raise gone
        return msgspec.json.decode(answer, type=Answer).status


def up_fabrics() -> list[UpFabric]:
    """All fabrics of this user that are up here and take commands."""
    found = []
    for sandbox in running():
        try:
            with _connected(sandbox) as (_, greeting):
                found.append(UpFabric(greeting, sandbox))
        except OSError:  # without a fabric that takes commands, or just ended
            continue
    return found


def chosen(wanted: str | None) -> UpFabric:
    """The fabric with this name or sandbox, or else the only one. Raises InputError."""
    found = up_fabrics()
    if wanted is not None:
        found = [fabric for fabric in found if wanted in (fabric.greeting.name, str(fabric.sandbox.pid))]
    if len(found) == 1:
        return found[0]
    which = "" if wanted is None else f" {wanted}"
    if not found:
        raise InputError(
            f"no fabric{which} of this user is up: bring one up with `paralet shell` or `paralet run` (as root)"
        )
    names = ", ".join(f"{fabric.greeting.name} ({fabric.sandbox.pid})" for fabric in found)
    raise InputError(f"several fabrics are up; name one with --on, or give its number: {names}")


@contextmanager
def _connected(sandbox: RunningSandbox) -> Iterator[tuple[socket.socket, Greeting]]:
    """A connection to the console of a sandbox's fabric. Raises OSError where there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.settimeout(_GREETING_TIMEOUT_S)
        path: Path = sandbox.scratch / SOCKET
        end.connect(str(path))
        if peer_pid(end) is None:
            raise PermissionError(f"{path} belongs to another user")
        greeting = msgspec.json.decode(end.recv(PACKET_BYTES) or b"null", type=Greeting | None)
        if greeting is None:
            raise ConnectionError(f"{path} has no fabric")
        end.settimeout(None)
        yield end, greeting


@contextmanager
def _signals_to(end: socket.socket) -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM goes to the other end, and later ones have their usual effect."""

    def forward(number: int, _frame: FrameType | None) -> None:
        for other, usual in before.items():
            signal.signal(other, usual)
        end.send(bytes([number]))

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
