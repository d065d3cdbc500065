# SPDX-License-Identifier: Apache-2.0
"""The rank processes of one transport, which the runner starts, commands and awaits together."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self

from testbed.errors import TestbedError

Command = dict[str, Any]
Answer = dict[str, Any]

_ENDING_S = 10.0
"""Time for a rank to end by itself."""


class _Rank:
    """A process and its output so far."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
        assert process.stdin is not None  # both are pipes, see Ranks
        assert process.stdout is not None
        self.number = number
        self.process = process
        self.log = log
        self.commands: IO[bytes] = process.stdin
        self.answers: IO[bytes] = process.stdout
        self._unread = b""

    def read(self) -> bytes | None:
        """The next complete line, or None. Raises EOFError at the end of the output."""
        chunk = os.read(self.answers.fileno(), 1 << 16)
        if not chunk:
            raise EOFError
        self._unread += chunk
        line, newline, rest = self._unread.partition(b"\n")
        if not newline:
            return None
        self._unread = rest
        return line


class Ranks:
    """The processes of one communicator. A context manager: leaving it ends every rank."""

    def __init__(
        self, transport: str, argvs: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], log_dir: Path
    ) -> None:
        self.transport = transport
        self._ranks: list[_Rank] = []
        with ExitStack() as undo:
            undo.callback(self._kill)
            for number, (argv, environment) in enumerate(zip(argvs, environments, strict=True)):
                log = log_dir / f"{transport}-rank{number}.stderr.log"
                with log.open("wb") as stderr:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "testbed.gpu.rank", *argv],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        env=dict(environment),
                        process_group=0,  # Ctrl-C is for the runner, which then ends them
                    )
                self._ranks.append(_Rank(number, process, log))
            undo.pop_all()

    def __len__(self) -> int:
        return len(self._ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._let_end()
        self._kill()

    def ask(self, commands: Mapping[int, Command], timeout_s: float) -> dict[int, Answer]:
        """Send each rank its command and wait for all answers.

        Raises TestbedError when a rank fails, ends, or is silent for `timeout_s`.
        """
        for number, command in commands.items():
            self._tell(self._ranks[number], command)
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Answer] = {}
        with selectors.DefaultSelector() as selector:
            for number in commands:
                selector.register(self._ranks[number].answers, selectors.EVENT_READ, self._ranks[number])
            while len(answers) < len(commands):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    late = min(commands.keys() - answers.keys())
                    what = next(iter(commands.values()))["op"]
                    raise self._failure(self._ranks[late], f"did not finish '{what}' within {timeout_s:g} s")
                for key, _ in ready:
                    answer = self._answer(key.data)
                    if answer is not None:
                        answers[key.data.number] = answer
        return answers

    def ask_all(self, command: Command, timeout_s: float) -> dict[int, Answer]:
        """Send the same command to every rank and wait for all answers."""
        return self.ask(dict.fromkeys(range(len(self)), command), timeout_s)

    def _tell(self, rank: _Rank, command: Command) -> None:
        try:
            rank.commands.write(json.dumps(command).encode() + b"\n")
            rank.commands.flush()
        except BrokenPipeError:
            # The cause is in its last answer or in its exit status.
            with suppress(EOFError):
                while self._answer(rank) is None:
                    pass
            raise self._failure(rank, f"ended {_ending(rank.process)}") from None

    def _answer(self, rank: _Rank) -> Answer | None:
        try:
            line = rank.read()
        except EOFError:
            raise self._failure(rank, f"ended {_ending(rank.process)}") from None
        if line is None:
            return None
        answer: Answer = json.loads(line)
        if "failed" in answer:
            raise self._failure(rank, f"failed: {answer['failed']}")
        return answer

    def _failure(self, rank: _Rank, what: str) -> TestbedError:
        return TestbedError(f"rank {rank.number} over {self.transport} {what}; its logs are in {rank.log.parent}")

    def _let_end(self) -> None:
        for rank in self._ranks:
            with suppress(BrokenPipeError):  # it has ended already
                rank.commands.close()  # a rank ends at the end of its input
        deadline = time.monotonic() + _ENDING_S
        for rank in self._ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
            rank.answers.close()
            with suppress(BrokenPipeError):
                rank.commands.close()


def _ending(process: "subprocess.Popen[bytes]") -> str:
    try:
        status = process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return "its answers"
    if status < 0:
        return f"by signal {signal.Signals(-status).name}"
    return f"with status {status}"
