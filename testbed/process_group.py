# SPDX-License-Identifier: Apache-2.0
"""A group of processes that are started, commanded, awaited and ended together.

A process reads commands from standard input and writes reports to standard output, one per line. It ends at the end of
its input.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, Self, TypeVar

from testbed.errors import TestbedError

R = TypeVar("R")

_CLOSED_PIPE_S = 5.0
"""Time that a process gets to end after it has closed its standard output."""

_CAUSE_S = 10.0
"""Time to wait for the cause of a failure, after a process has failed only because it lost a peer."""


class ProcessError(TestbedError):
    """A process failed, timed out or ended. The text names it, the reason and its log.

    `peer_lost`: the process failed only because another one was gone, so it is not the cause.
    """

    def __init__(self, text: str, *, peer_lost: bool = False) -> None:
        super().__init__(text)
        self.peer_lost = peer_lost


class LostPeerReport(ValueError):
    """What a parser of reports raises, instead of ValueError, for a process that failed because it lost a peer."""


def root_cause(failures: Sequence[ProcessError]) -> ProcessError:
    """The first failure with a reason of its own; the first one if all processes only lost their peers."""
    return next((failure for failure in failures if not failure.peer_lost), failures[0])


class Process(Protocol):
    """What a group uses of `subprocess.Popen`."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Kill the process unless it has been waited for."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a group.

    `name` and `logs` are for error messages. `start` starts it, with standard input and output as unbuffered pipes and
    standard error to the open file that it is given, which is `log`.
    """

    name: str
    start: Callable[[IO[bytes]], Process]
    log: Path
    logs: str


class _Process:
    """A running member and what it has reported so far."""

    def __init__(self, member: Member) -> None:
        self.member = member
        with member.log.open("wb") as stderr:
            self.process = member.start(stderr)
        assert self.process.stdin is not None  # both are pipes, see Member
        assert self.process.stdout is not None
        self.commands: IO[bytes] = self.process.stdin
        self.reports: IO[bytes] = self.process.stdout
        self._unread = b""

    def read(self) -> list[bytes]:
        """The complete lines that have arrived. Raises ProcessError at the end of the output."""
        chunk = os.read(self.reports.fileno(), 1 << 20)
        if not chunk:
            raise self.failure(f"ended {_ending(self.process)}")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return lines

    def failure(self, what: str, *, peer_lost: bool = False) -> ProcessError:
        """An error about this process."""
        return ProcessError(f"{self.member.name} {what}; {self.member.logs}", peer_lost=peer_lost)


class ProcessGroup:
    """Processes, numbered from 0. A context manager: leaving it ends every process.

    Leaving it closes their input and gives them `end_timeout_s` seconds to end. After an exception they are killed at
    once, because a process that executes a command does not notice the end of its input.
    """

    def __init__(self, members: Iterable[Member], end_timeout_s: float) -> None:
        self._end_timeout_s = end_timeout_s
        self._processes: list[_Process] = []
        with ExitStack() as undo:
            undo.callback(self._kill)
            for member in members:
                self._processes.append(_Process(member))
            undo.pop_all()

    def __len__(self) -> int:
        return len(self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close_commands()
        deadline = time.monotonic() + (self._end_timeout_s if kind is None else 0.0)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.process.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def send(self, commands: Mapping[int, bytes], parse: Callable[[bytes], object]) -> None:
        """Send each process its command, by number. Raises ProcessError when a process has ended.

        The error gives the failure that `parse` finds in its last reports, or else its exit status. If that process
        only lost a peer, the error is that of the process which caused it, as in `receive`.
        """
        for number, command in commands.items():
            process = self._processes[number]
            try:
                process.commands.write(command + b"\n")
                process.commands.flush()
            except BrokenPipeError:
                others = [other for other in range(len(self)) if other != number]
                raise self._cause(_last_failure(process, parse), others, parse) from None

    def receive(
        self,
        parse: Callable[[bytes], R],
        what: str,
        timeout_s: float,
        *,
        of: Iterable[int] | None = None,
        every_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, R]:
        """One parsed report from every process, or from the processes numbered in `of`, by number.

        `meanwhile` is called every `every_s` seconds until all reports have arrived. Raises ProcessError when `parse`
        raises ValueError, when a process ends, or when one does not do `what` within `timeout_s` seconds. When `parse`
        raises LostPeerReport, the other processes get up to 10 s to report the cause, and the error is that one.
        """
        deadline = time.monotonic() + timeout_s
        received: dict[int, R] = {}
        awaited = list(range(len(self))) if of is None else list(of)
        next_call = time.monotonic() + (every_s or 0.0)
        with selectors.DefaultSelector() as selector:
            for number in awaited:
                selector.register(self._processes[number].reports, selectors.EVENT_READ, number)
            while len(received) < len(awaited):
                now = time.monotonic()
                if now >= deadline:
                    late = next(number for number in awaited if number not in received)
                    raise self._processes[late].failure(f"did not {what} within {timeout_s:g} s")
                if every_s is not None and meanwhile is not None and now >= next_call:
                    meanwhile()
                    next_call = max(next_call + every_s, time.monotonic())
                limit = deadline if every_s is None else min(deadline, next_call)
                for key, _ in selector.select(max(0.0, limit - time.monotonic())):
                    process = self._processes[key.data]
                    try:
                        for line in process.read():
                            received[key.data] = _parsed(line, parse, process)
                    except ProcessError as failure:
                        others = [number for number in awaited if number != key.data and number not in received]
                        raise self._cause(failure, others, parse) from None
        return received

    def _cause(self, first: ProcessError, others: Iterable[int], parse: Callable[[bytes], object]) -> ProcessError:
        """The cause of the first failure, which `others` may still report."""
        failures = [first]
        deadline = time.monotonic() + _CAUSE_S
        with selectors.DefaultSelector() as selector:
            for number in others:
                selector.register(self._processes[number].reports, selectors.EVENT_READ, self._processes[number])
            while selector.get_map() and root_cause(failures).peer_lost and time.monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    try:
                        reported = [_parsed(line, parse, key.data) for line in key.data.read()]
                    except ProcessError as failure:
                        failures.append(failure)
                        selector.unregister(key.fileobj)
                    else:
                        if reported:  # it has succeeded
                            selector.unregister(key.fileobj)
        return root_cause(failures)

    def _close_commands(self) -> None:
        for process in self._processes:
            with suppress(BrokenPipeError):  # it has ended already
                process.commands.close()

    def _kill(self) -> None:
        for process in self._processes:
            process.process.kill()
        for process in self._processes:
            process.process.wait()
            process.reports.close()
        self._close_commands()


def _parsed(line: bytes, parse: Callable[[bytes], R], process: _Process) -> R:
    try:
        return parse(line)
    except ValueError as error:
        raise process.failure(str(error), peer_lost=isinstance(error, LostPeerReport)) from error


def _last_failure(process: _Process, parse: Callable[[bytes], object]) -> ProcessError:
    """Why a process has ended: the failure in its last reports, or else its exit status."""
    try:
        while True:
            for line in process.read():
                _parsed(line, parse, process)
    except ProcessError as failure:
        return failure


def _ending(process: Process) -> str:
    """The exit of a process, once it has closed its standard output."""
    try:
        status = process.wait(_CLOSED_PIPE_S)
    except subprocess.TimeoutExpired:
        return "its reports"
    return f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
