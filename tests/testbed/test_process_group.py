# SPDX-License-Identifier: Apache-2.0
"""Which of several failing processes a group names: the cause, not one that only lost its peer."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from testbed import process_group
from testbed.process_group import LostPeerReport, Member, ProcessError, ProcessGroup, root_cause

CAUSES = [
    "rank 2 failed: timed out after 0.05 s waiting for message 7",
    "rank 2 ended by signal SIGKILL",
    "rank 2 ended with status 1",
    "rank 2 failed: cannot allocate memory",
]
LOST = ["rank 0 failed: 10.0.0.3 closed the connection", "rank 1 failed: 10.0.0.1 closed the connection"]


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named_in_whichever_order_failures_arrive(cause: str) -> None:
    failures = [ProcessError(cause), *(ProcessError(text, peer_lost=True) for text in LOST)]
    for order in itertools.permutations(failures):
        assert str(root_cause(order)) == cause


def test_the_first_of_equal_failures_is_named() -> None:
    for peer_lost in (False, True):
        failures = [ProcessError(text, peer_lost=peer_lost) for text in LOST]
        for order in itertools.permutations(failures):
            assert root_cause(order) is order[0]


def parse(line: bytes) -> str:
    text = line.decode()
    if text.startswith("lost"):
        raise LostPeerReport(text)
    if text.startswith("own"):
        raise ValueError(text)
    return text


def group(folder: Path, programs: Sequence[str]) -> ProcessGroup:
    def start(program: str, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", f"import os, time\n{program}"]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)

    return ProcessGroup(
        [
            Member(f"rank {n}", partial(start, program), folder / f"{n}.log", "see its log")
            for n, program in enumerate(programs)
        ],
        5.0,
    )


LOSES = "print('lost a peer', flush=True); input()"
IS_FINE = "print('fine', flush=True); input()"
IS_SILENT = "input()"


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("print('own reason', flush=True)", "rank 1 own reason; see its log"),
        ("os.kill(os.getpid(), 9)", "rank 1 ended by signal SIGKILL; see its log"),
        ("os._exit(3)", "rank 1 ended with status 3; see its log"),
    ],
)
def test_a_cause_that_is_reported_after_a_lost_peer_is_named(tmp_path: Path, end: str, cause: str) -> None:
    read = tmp_path / "read"  # exists once the group has read that the first process lost its peer
    waits = f"while not os.path.exists({str(read)!r}): time.sleep(0.01)\n{end}"

    def parse_and_tell(line: bytes) -> str:
        if line.startswith(b"lost"):
            read.touch()
        return parse(line)

    with group(tmp_path, [LOSES, waits, IS_FINE, LOSES]) as ranks, pytest.raises(ProcessError) as failed:
        ranks.receive(parse_and_tell, "answer", 60.0)
    assert str(failed.value) == cause


def test_nobody_is_waited_for_when_all_others_have_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_CAUSE_S", 3600.0)  # beyond the test's own limit
    with group(tmp_path, [LOSES, IS_FINE, LOSES]) as ranks, pytest.raises(ProcessError, match=r"rank [02] lost a peer"):
        ranks.receive(parse, "answer", 3600.0)


def test_silent_processes_are_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_CAUSE_S", 0.05)
    with group(tmp_path, [LOSES, IS_SILENT]) as ranks, pytest.raises(ProcessError, match="rank 0 lost a peer"):
        ranks.receive(parse, "answer", 3600.0)


def test_a_command_for_an_ended_process_names_the_cause_too(tmp_path: Path) -> None:
    programs = ["print('lost a peer', flush=True)", "os.kill(os.getpid(), 9)"]
    with group(tmp_path, programs) as ranks:
        for process in ranks._processes:
            process.process.wait()
        with pytest.raises(ProcessError, match="rank 1 ended by signal SIGKILL"):
            ranks.send({0: b"go"}, parse)
