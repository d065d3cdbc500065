# SPDX-License-Identifier: Apache-2.0
"""Processes that run scenarios together as the ranks of a process group."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RANK = "tests.paralet_torch.rank"
"""Imports torch, which this process must not: it takes seconds, and is not installed everywhere."""


def environment(**variables: str) -> dict[str, str]:
    """That of a rank on loopback: one thread per process, and this checkout's packages."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PARALET_ADDRESSES": "127.0.0.1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        **variables,
    }


class Ranks:
    """Processes that run functions of `scenarios.py` in one process group. A context manager.

    A server that has imported torch forks them, so that a rank does not spend seconds on imports.
    """

    def __init__(
        self, size: int, folder: Path, variables: Mapping[str, str] | None = None, *, backend: str = "paralet"
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([RANK])
        self.processes: list[ForkServerProcess] = []
        self._pipes: list[Connection[Any, Any]] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, str(folder / "store"), backend, environment(**(variables or {})), theirs)
            process = context.Process(target=_rank, args=arguments, daemon=True)
            process.start()
            theirs.close()  # else we would not see that the rank has ended
            self.processes.append(process)
            self._pipes.append(ours)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def send_signal(self, rank: int, sign: signal.Signals) -> None:
        process = self.processes[rank].pid
        assert process is not None
        os.kill(process, sign)

    def tell(self, rank: int, scenario: str, *arguments: Any) -> None:
        """Let a rank begin a scenario."""
        self._pipes[rank].send([scenario, *arguments])

    def answer(self, rank: int) -> dict[str, Any]:
        """What a rank reports: ``result``, or ``error`` with a traceback."""
        try:
            answer: dict[str, Any] = self._pipes[rank].recv()
        except EOFError:
            self.processes[rank].join()
            return {"error": f"rank {rank} ended with status {self.processes[rank].exitcode}"}
        return answer

    def run(self, scenario: str, *arguments: Any) -> list[Any]:
        """The results of all ranks. Fails the test when a rank raised."""
        everyone = range(len(self.processes))
        for rank in everyone:
            self.tell(rank, scenario, *arguments)
        answers = [self.answer(rank) for rank in everyone]
        errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            pytest.fail("\n".join(errors), pytrace=False)
        return [answer["result"] for answer in answers]


def _rank(*arguments: Any) -> None:
    """The process of a rank."""
    import_module(RANK).main(*arguments)
