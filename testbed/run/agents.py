# SPDX-License-Identifier: Apache-2.0
"""The agents of a run as the runner sees them: started together, ordered together, awaited together."""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

from pydantic import ValidationError

from testbed.errors import TestbedError
from testbed.run import agent_messages as messages

R = TypeVar("R", messages.Prepared, messages.Connected, messages.Finished, messages.Closed)

AGENT_ARGV = (sys.executable, "-m", "testbed.run.agent")

_END_TIMEOUT_S = 5.0
"""For agents to end by themselves when there are no more orders."""


class AgentError(TestbedError):
    """An agent failed, fell silent or ended; the text says which, why, and where its log is."""


class Popen(Protocol):
    """`emul.MininetFabric.popen`: start a program on a host."""

    def __call__(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[bytes]":
        """The running program."""


class _Agent:
    """One process and what it has said so far."""

    def __init__(self, host: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        assert process.stdin is not None  # both are pipes, see Agents
        assert process.stdout is not None
        self.host = host
        self.log = log
        self.process = process
        self.orders: IO[bytes] = process.stdin
        self.reports: IO[bytes] = process.stdout
        self._unread = b""

    def read(self) -> list[bytes]:
        """Whole lines that have come in. Raises EOFError when nothing will come any more."""
        chunk = os.read(self.reports.fileno(), 1 << 20)
        if not chunk:
            raise EOFError
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return lines

    def failure(self, what: str) -> AgentError:
        """An error about this agent."""
        return AgentError(f"the agent on {self.host} {what}; its log is {self.log}")


class Agents:
    """Agents on `hosts`, numbered in that order. A context manager: leaving it ends every agent.

    After an exception they are killed: agents amid a run would not hear that there are no more orders.
    """

    def __init__(self, popen: Popen, hosts: Sequence[str], log_dir: Path, argv: Sequence[str] = AGENT_ARGV) -> None:
        self._agents: list[_Agent] = []
        log_dir.mkdir(parents=True, exist_ok=True)
        # Threads of numpy's linear algebra would only take memory and time: nothing here multiplies matrices.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with ExitStack() as undo:
            undo.callback(self._kill)
            for host in hosts:
                log = log_dir / f"agent-{host}.log"
                with log.open("wb") as stderr:
                    process = popen(
                        host,
                        list(argv),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        env=environment,
                    )
                self._agents.append(_Agent(host, process, log))
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for agent in self._agents:
            with suppress(BrokenPipeError):  # it has ended already
                agent.orders.close()  # end of orders: the agent ends by itself
        deadline = time.monotonic() + (_END_TIMEOUT_S if kind is None else 0.0)
        for agent in self._agents:
            try:
                agent.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        self._kill()

    def tell(self, orders: Mapping[int, messages.Order]) -> None:
        """Give agents their orders, by number. Raises AgentError when an agent has ended."""
        for number, order in orders.items():
            agent = self._agents[number]
            try:
                agent.orders.write(order.model_dump_json().encode() + b"\n")
                agent.orders.flush()
            except BrokenPipeError as error:
                raise agent.failure("has ended") from error

    def hear(
        self,
        kind: type[R],
        timeout_s: float,
        *,
        of: Iterable[int] | None = None,
        every_s: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, R]:
        """One report of `kind` from every agent, or from those of these numbers, by number.

        `meanwhile` is called every `every_s` seconds until they are all there. Raises AgentError when an agent reports
        a failure or anything else, ends, or is silent for `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        heard: dict[int, R] = {}
        awaited = dict(enumerate(self._agents)) if of is None else {number: self._agents[number] for number in of}
        next_call = time.monotonic() + (every_s or 0.0)
        with selectors.DefaultSelector() as selector:
            for number, agent in awaited.items():
                selector.register(agent.reports, selectors.EVENT_READ, number)
            while len(heard) < len(awaited):
                now = time.monotonic()
                if now >= deadline:
                    late = [agent for number, agent in awaited.items() if number not in heard]
                    raise late[0].failure(f"did not say '{kind.__name__.lower()}' within {timeout_s:g} s")
                if every_s is not None and meanwhile is not None and now >= next_call:
                    meanwhile()
                    next_call = max(next_call + every_s, time.monotonic())
                limit = deadline if every_s is None else min(deadline, next_call)
                for key, _ in selector.select(max(0.0, limit - time.monotonic())):
                    agent = self._agents[key.data]
                    try:
                        lines = agent.read()
                    except EOFError:
                        raise agent.failure(f"ended {_ending(agent.process)}") from None
                    for line in lines:
                        heard[key.data] = _parsed(line, kind, agent)
        return heard

    def _kill(self) -> None:
        for agent in self._agents:
            agent.process.kill()
        for agent in self._agents:
            agent.process.wait()
            agent.reports.close()


def _ending(process: "subprocess.Popen[bytes]") -> str:
    """How a process ended that has closed its standard output."""
    try:
        status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "its reports"
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _parsed(line: bytes, kind: type[R], agent: _Agent) -> R:
    try:
        report = messages.REPORTS.validate_json(line)
    except ValidationError as error:
        raise agent.failure(f"said something that is no report ({line[:80]!r})") from error
    if isinstance(report, messages.Failed):
        raise agent.failure(f"failed: {report.error.rstrip('.')}")
    if not isinstance(report, kind):
        raise agent.failure(f"said '{report.event}' where '{kind.__name__.lower()}' was due")
    return report
