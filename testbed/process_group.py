# SPDX-License-Identifier: Apache-2.0
"""A group of processes that are started together, ordered together, awaited together and ended together.

A process takes orders on standard input and reports on standard output, one line each. It ends when there are no more
orders.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, TypeVar

from testbed.errors import TestbedError

R = TypeVar("R")

_CLOSED_PIPE_S = 5.0
"""For a process to end that has closed its standard output."""


class ProcessError(TestbedError):
    """A process failed, fell silent or ended; the text says which, why, and where its log is."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a group.

    `name` and `logs` are for error messages. `start` starts it, with standard input and output as unbuffered pipes and
    standard error to the open file that it is given, which is `log`.
    """

    name: str
    start: "Callable[[IO[bytes]], subprocess.Popen[bytes]]"
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
        self.orders: IO[bytes] = self.process.stdin
        self.reports: IO[bytes] = self.process.stdout
        self._unread = b""

    def read(self) -> list[bytes]:
        """Whole lines that have come in. Raises ProcessError when nothing will come any more."""
        chunk = os.read(self.reports.fileno(), 1 << 20)
        if not chunk:
            raise self.failure(f"ended {_ending(self.process)}")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return lines

    def failure(self, what: str) -> ProcessError:
        """An error about this process."""
        return ProcessError(f"{self.member.name} {what}; {self.member.logs}")


class ProcessGroup:
    """Processes, numbered from 0. A context manager: leaving it ends every process.

    At the end of orders they get `end_timeout_s` to end by themselves. After an exception they are killed at once:
    processes amid an order would not notice the end of orders.
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
        self._close_orders()
        deadline = time.monotonic() + (self._end_timeout_s if kind is None else 0.0)
        for one in self._processes:
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def tell(self, orders: Mapping[int, bytes], parse: Callable[[bytes], object]) -> None:
        """Send processes their orders, by number. Raises ProcessError when a process has ended.

        The error is then what `parse` finds in its last reports, or else how it ended.
        """
        for number, order in orders.items():
            one = self._processes[number]
            try:
                one.orders.write(order + b"\n")
                one.orders.flush()
            except BrokenPipeError:
                while True:  # until read() raises
                    for line in one.read():
                        _parsed(line, parse, one)

    def hear(
        self,
        parse: Callable[[bytes], R],
        what: str,
        timeout_s: float,
        *,
        of: Iterable[int] | None = None,
        every_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, R]:
        """One report from every process, or from those of these numbers, by number, as `parse` gives it.

        `meanwhile` is called every `every_s` seconds until all reports are there. Raises ProcessError when `parse`
        raises ValueError with what the process did instead, when a process ends, or when one does not do `what` within
        `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        heard: dict[int, R] = {}
        awaited = list(range(len(self))) if of is None else list(of)
        next_call = time.monotonic() + (every_s or 0.0)
        with selectors.DefaultSelector() as selector:
            for number in awaited:
                selector.register(self._processes[number].reports, selectors.EVENT_READ, number)
            while len(heard) < len(awaited):
                now = time.monotonic()
                if now >= deadline:
                    late = next(number for number in awaited if number not in heard)
                    raise self._processes[late].failure(f"did not {what} within {timeout_s:g} s")
                if every_s is not None and meanwhile is not None and now >= next_call:
                    meanwhile()
                    next_call = max(next_call + every_s, time.monotonic())
                limit = deadline if every_s is None else min(deadline, next_call)
                for key, _ in selector.select(max(0.0, limit - time.monotonic())):
                    one = self._processes[key.data]
                    for line in one.read():
                        heard[key.data] = _parsed(line, parse, one)
        return heard

    def _close_orders(self) -> None:
        for one in self._processes:
            with suppress(BrokenPipeError):  # it has ended already
                one.orders.close()

    def _kill(self) -> None:
        for one in self._processes:
            one.process.kill()
        for one in self._processes:
            one.process.wait()
            one.reports.close()
        self._close_orders()


def _parsed(line: bytes, parse: Callable[[bytes], R], one: _Process) -> R:
    try:
        return parse(line)
    except ValueError as error:
        raise one.failure(str(error)) from error


def _ending(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended that has closed its standard output."""
    try:
        status = process.wait(_CLOSED_PIPE_S)
    except subprocess.TimeoutExpired:
        return "its reports"
    return f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
