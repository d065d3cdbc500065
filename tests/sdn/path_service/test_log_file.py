# SPDX-License-Identifier: Apache-2.0
"""The log's file: appended to, private, of one process, rotated by others, and honest about what it lacks."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sdn.path_service.log_file import LogError, LogFile

LINE = b'{"at":"2026-11-27T04:36:00Z","t":1,"tick":true}\n'
TICK = json.loads(LINE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond `room` bytes, as on a disk that is full: a write stops in the middle of a line."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_log_goes_on_after_its_disk_was_full(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with LogFile(path, every_s=0.001) as log:
        log.add(LINE)
        until(lambda: path.stat().st_size == len(LINE))
        with full_disk(len(LINE) + 10):
            for lost in range(1, 4):
                log.add(LINE)
                until(lambda lost=lost: log.dropped == lost)  # type: ignore[misc]
        log.add(LINE)
    first, torn, gap, last = path.read_bytes().splitlines()
    assert (json.loads(first), torn, json.loads(last)) == (TICK, LINE[:10], TICK)
    assert json.loads(gap)["dropped"] == 3
    assert ["cannot be written" in record.message for record in caplog.records] == [True, False]


def test_a_service_goes_on_in_the_log_of_an_earlier_one(path: Path) -> None:
    path.write_bytes(LINE + LINE[:10])  # of one whose disk was full
    path.chmod(0o644)
    with LogFile(path) as log:
        log.add(LINE)
    assert path.read_bytes() == LINE + LINE[:10] + b"\n" + LINE
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_another_process_writes_stays_as_it_is(path: Path) -> None:
    with LogFile(path, every_s=0.001) as log:
        log.add(LINE)
        until(lambda: path.stat().st_size == len(LINE))
        with pytest.raises(LogError, match="is the log of another path service"):
            LogFile(path)
    assert entries(path) == [TICK]


def test_what_is_no_log_is_not_touched(path: Path) -> None:
    path.write_text("leaf_spine: {}\n")
    with pytest.raises(LogError, match="is not a log of a path service: move it away"):
        LogFile(path)
    assert path.read_text() == "leaf_spine: {}\n"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LogError, match="not a regular file"):
        LogFile(path)
    assert path.is_fifo()
    with pytest.raises(LogError, match="cannot be written: No such file"):
        LogFile(path.parent / "none" / "log")


@pytest.mark.parametrize("way", ["create", "copytruncate"])
def test_logrotate_loses_no_line_that_was_written(path: Path, way: str) -> None:
    """`create` renames the log, after which the service is told by SIGHUP; `copytruncate` tells nobody."""
    program = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("logrotate is not installed")
    settings = path.with_name("settings")
    settings.write_text(f"{path} {{\n  rotate 3\n  {way}\n}}\n")
    settings.chmod(0o600)
    before = path.with_name("events.jsonl.1")
    with LogFile(path, every_s=0.001) as log:
        for _ in range(3):
            log.add(LINE)
        until(lambda: path.stat().st_size == 3 * len(LINE))
        state = path.with_name("state")
        done = subprocess.run([program, "--force", "--state", state, settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = 3
        if way == "create":
            log.reopen()
        while not path.stat().st_size:  # until it goes on in the new file, lines go into the old one
            log.add(LINE)
            lines += 1
            time.sleep(0.001)
    assert entries(before) + entries(path) == [TICK] * lines
    assert [file.stat().st_mode & 0o777 for file in (path, before)] == [0o600, 0o600]


def test_a_log_that_was_not_renamed_is_kept_without_a_word(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SIGHUP asks for a reload too, so it comes without a rotation."""
    caplog.set_level("INFO")
    with LogFile(path, every_s=0.001) as log:
        log.reopen()
        log.add(LINE)
        until(lambda: path.stat().st_size == len(LINE))
    assert (entries(path), caplog.messages) == ([TICK], [])


def test_a_log_that_cannot_be_opened_anew_goes_on_in_its_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = path.with_name("events.jsonl.1")
    with LogFile(path, every_s=0.001) as log:
        path.rename(before)
        path.mkdir()
        log.reopen()
        until(lambda: any("goes on in its present file" in record.message for record in caplog.records))
        log.add(LINE)
    assert entries(before) == [TICK]
