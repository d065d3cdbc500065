# SPDX-License-Identifier: Apache-2.0
"""The runner's side of the agents: a group of processes, one on every host that has a rank."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, TypeAlias, TypeVar

from pydantic import ValidationError

from testbed.process_group import LostPeerReport, Member, Process, ProcessGroup
from testbed.run import agent_messages as messages

R = TypeVar("R", messages.Prepared, messages.Connected, messages.Finished, messages.Closed)

_END_TIMEOUT_S = 5.0
"""Time that agents get to end after their input is closed."""

StartAgent: TypeAlias = Callable[[str, IO[bytes]], Process]
"""Starts the agent (`agent.serve`) of a host, with standard error to the file."""


class Agents:
    """Agents on `hosts`, numbered in that order. A context manager, as `ProcessGroup` is."""

    def __init__(self, start: StartAgent, hosts: Sequence[str], log_dir: Path) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        logs = {host: log_dir / f"agent-{host}.log" for host in hosts}
        self._group = ProcessGroup(
            [
                Member(f"the agent on {host}", partial(start, host), logs[host], f"its log is {logs[host]}")
                for host in hosts
            ],
            _END_TIMEOUT_S,
        )

    def __enter__(self) -> Self:
        self._group.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._group.__exit__(*exception)

    def send(self, commands: Mapping[int, messages.Command]) -> None:
        """Send each agent its command, by number. Raises ProcessError when an agent has ended."""
        encoded = {number: command.model_dump_json().encode() for number, command in commands.items()}
        self._group.send(encoded, _report)

    def receive(self, kind: type[R], timeout_s: float, **options: Any) -> dict[int, R]:
        """One report of `kind` from every agent, by number. The options are those of `ProcessGroup.receive`.

        Raises ProcessError when an agent reports anything else, ends, or reports nothing within `timeout_s` seconds.
        """
        return self._group.receive(partial(_report_of, kind), f"report '{kind.__name__.lower()}'", timeout_s, **options)


def _report(line: bytes) -> messages.Report:
    """The report in a line. Raises ValueError when it reports a failure or is not a report."""
    try:
        report = messages.REPORTS.validate_json(line)
    except ValidationError as error:
        raise ValueError(f"sent a line that is not a report ({line[:80]!r})") from error
    if isinstance(report, messages.Failed):
        kind = LostPeerReport if report.peer_lost else ValueError
        raise kind(f"failed: {report.error.rstrip('.')}")
    return report


def _report_of(kind: type[R], line: bytes) -> R:
    report = _report(line)
    if not isinstance(report, kind):
        raise ValueError(f"reported '{report.event}' when '{kind.__name__.lower()}' was expected")
    return report
