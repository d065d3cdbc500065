# SPDX-License-Identifier: Apache-2.0
"""The rank processes of one transport, which the runner starts, commands and awaits together."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from testbed.process_group import LostPeerReport, Member, ProcessGroup

Command = dict[str, Any]
Answer = dict[str, Any]

_END_TIMEOUT_S = 10.0
"""Time that ranks get to end after their input is closed."""


class Ranks:
    """The processes of one communicator. A context manager, as `ProcessGroup` is."""

    def __init__(
        self,
        name: str,
        argvs: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        log_dir: Path,
        module: str = "testbed.nccl.rank",
        cores: Sequence[frozenset[int]] | None = None,
    ) -> None:
        """`name` is for messages and names of logs; `module` is the program, which takes the `argvs`. `cores` are those
        of each rank; None: it may use all of this process's.
        """

        def start(
            argv: Sequence[str], environment: Mapping[str, str], own: frozenset[int] | None, stderr: IO[bytes]
        ) -> "subprocess.Popen[bytes]":
            with _on_cores(own):
                return subprocess.Popen(
                    [sys.executable, "-m", module, *argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=dict(environment),
                    process_group=0,  # Ctrl-C is for the runner, which then ends them
                )

        self._group = ProcessGroup(
            [
                Member(
                    name=f"rank {number} over {name}",
                    start=partial(start, argv, environment, own),
                    log=log_dir / f"{name}-rank{number}.stderr.log",
                    logs=f"its logs are in {log_dir}",
                )
                for number, (argv, environment, own) in enumerate(
                    zip(argvs, environments, [None] * len(argvs) if cores is None else cores, strict=True)
                )
            ],
            _END_TIMEOUT_S,
        )

    def __len__(self) -> int:
        return len(self._group)

    def __enter__(self) -> Self:
        self._group.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._group.__exit__(*exception)

    def ask(self, commands: Mapping[int, Command], timeout_s: float) -> dict[int, Answer]:
        """Send each rank its command, all at the same time, and wait for all answers.

        Raises ProcessError when a rank fails, ends, or is silent for `timeout_s`.
        """
        self._group.send({rank: json.dumps(command).encode() for rank, command in commands.items()}, _answer)
        what = next(iter(commands.values()))["op"]
        return self._group.receive(_answer, f"finish '{what}'", timeout_s, of=commands)

    def ask_all(self, command: Command, timeout_s: float) -> dict[int, Answer]:
        """The same command for every rank."""
        return self.ask(dict.fromkeys(range(len(self)), command), timeout_s)


@contextmanager
def _on_cores(cores: frozenset[int] | None) -> Iterator[None]:
    """While open, processes that this thread starts run on these cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _answer(line: bytes) -> Answer:
    """The answer in a line. Raises ValueError for a failure."""
    answer: Answer = json.loads(line)
    if "failed" in answer:
        kind = LostPeerReport if answer.get("peer_lost") else ValueError
        raise kind(f"failed: {answer['failed']}")
    return answer
