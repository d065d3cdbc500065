# SPDX-License-Identifier: Apache-2.0
"""The agents of a run as the runner sees them: a group of processes, one on every host that has a rank."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

from pydantic import ValidationError

from testbed.process_group import Member, ProcessGroup
from testbed.run import agent_messages as messages

R = TypeVar("R", messages.Prepared, messages.Connected, messages.Finished, messages.Closed)

AGENT_ARGV = (sys.executable, "-m", "testbed.run.agent")

_END_TIMEOUT_S = 5.0
"""For agents to end by themselves when there are no more orders."""


class Popen(Protocol):
    """`emul.MininetFabric.popen`: start a program on a host."""

    def __call__(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[bytes]":
        """The running program."""


class Agents:
    """Agents on `hosts`, numbered in that order. A context manager, as `ProcessGroup` is."""

    def __init__(self, popen: Popen, hosts: Sequence[str], log_dir: Path, argv: Sequence[str] = AGENT_ARGV) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        # Threads of numpy's linear algebra would only take memory and time: nothing here multiplies matrices.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

        def start(host: str, stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
            pipe = subprocess.PIPE
            return popen(host, list(argv), stdin=pipe, stdout=pipe, stderr=stderr, env=environment)

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

    def tell(self, orders: Mapping[int, messages.Order]) -> None:
        """Send agents their orders, by number. Raises ProcessError when an agent has ended."""
        self._group.tell({number: order.model_dump_json().encode() for number, order in orders.items()}, _report)

    def hear(self, kind: type[R], timeout_s: float, **options: Any) -> dict[int, R]:
        """One report of `kind` from every agent, by number; the options are those of `ProcessGroup.hear`.

        Raises ProcessError when an agent reports a failure or anything else, ends, or is silent for `timeout_s`.
        """
        return self._group.hear(partial(_report_of, kind), f"say '{kind.__name__.lower()}'", timeout_s, **options)


def _report(line: bytes) -> messages.Report:
    """The report in a line. Raises ValueError for a failure, and for what is no report."""
    try:
        report = messages.REPORTS.validate_json(line)
    except ValidationError as error:
        raise ValueError(f"said something that is no report ({line[:80]!r})") from error
    if isinstance(report, messages.Failed):
        raise ValueError(f"failed: {report.error.rstrip('.')}")
    return report


def _report_of(kind: type[R], line: bytes) -> R:
    report = _report(line)
    if not isinstance(report, kind):
        raise ValueError(f"said '{report.event}' where '{kind.__name__.lower()}' was due")
    return report
