# SPDX-License-Identifier: Apache-2.0
"""The processes that `paralet top --run` shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.live.run_processes import RunProcesses

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes")
RUNNER = "import sys; journal = open(sys.argv[1], 'a'); print(flush=True); sys.stdin.read()"


@contextmanager
def running(journal: Path) -> Iterator[None]:
    """A runner that writes this journal, as process 1 of a sandbox of its own."""
    runner = journal.parent / "sandbox_init.py"
    runner.write_text(RUNNER)
    words = ["unshare", "--pid", "--fork", sys.executable, runner, journal]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


def test_they_are_those_of_the_run_that_writes_the_journal(tmp_path: Path) -> None:
    journals = [tmp_path / name / "journal.jsonl" for name in ("first", "second")]
    for journal in journals:
        journal.parent.mkdir()
    watched = RunProcesses(journals[0])
    assert watched.take() == []
    with running(journals[1]):
        assert watched.take() == []
        with running(journals[0]):
            (pid,) = watched.take()
            assert str(journals[0]) in Path(f"/proc/{pid}/cmdline").read_text()
        assert watched.take() == []
