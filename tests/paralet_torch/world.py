# SPDX-License-Identifier: Apache-2.0
"""Processes that run scenarios together as the ranks of a process group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


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
    """Processes of `rank.py`, which run functions of `scenarios.py` in one process group. A context manager."""

    def __init__(
        self, size: int, folder: Path, variables: Mapping[str, str] | None = None, *, backend: str = "paralet"
    ) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "rank.py"), str(rank), str(size), str(folder / "store"), backend],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(**(variables or {})),
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()

    def tell(self, rank: int, scenario: str, *arguments: Any) -> None:
        """Let a rank begin a scenario."""
        stdin = self.processes[rank].stdin
        assert stdin is not None
        print(json.dumps([scenario, *arguments]), file=stdin, flush=True)

    def answer(self, rank: int) -> dict[str, Any]:
        """What a rank reports: ``result``, or ``error`` with a traceback."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
        return {"error": f"rank {rank} ended with status {self.processes[rank].wait()}"}

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
