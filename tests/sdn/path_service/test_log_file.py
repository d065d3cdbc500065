# SPDX-License-Identifier: Apache-2.0
"""The event log's file: whole, private, of one process, and honest about what it lacks."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sdn.path_service.log_file import LogError, LogFile

HEAD = b'{"log":1}\n'
LINE = b'{"t":1,"tick":true}\n'


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
    return [json.loads(line) for line in path.read_bytes().splitlines() if not line.isspace()]


def await_size(path: Path, size: int) -> None:
    deadline_s = time.monotonic() + 60
    while path.stat().st_size < size:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize("fitting", [0, 3])
def test_a_full_disk_leaves_a_line_that_counts_what_is_missing(path: Path, fitting: int) -> None:
    with LogFile(path, HEAD, every_s=0.001) as log:
        for _ in range(fitting):
            log.add(LINE)
        await_size(path, len(HEAD + LINE * fitting) + 64)
        with full_disk(path.stat().st_size):
            for lost in range(1, 30):
                log.add(LINE)
                deadline_s = time.monotonic() + 60
                while log.dropped < lost and time.monotonic() < deadline_s:
                    time.sleep(0.001)
            assert log.dropped == 29
    # Also a service that is killed while the disk is full leaves this.
    assert entries(path) == [{"log": 1}, *[{"t": 1, "tick": True}] * fitting, {"t": 0, "dropped": 29}]


def test_a_log_goes_on_after_its_disk_was_full(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with LogFile(path, HEAD, every_s=0.001) as log:
        with full_disk(path.stat().st_size + 10):
            log.add(LINE)
            while not log.dropped:
                time.sleep(0.001)
            assert entries(path)[1:] in ([], [{"t": 0, "dropped": 1}])
        log.add(LINE)
    assert entries(path) == [{"log": 1}, {"t": 0, "dropped": 1}, {"t": 1, "tick": True}]
    assert ["cannot be written" in record.message for record in caplog.records] == [True, False]


def test_only_the_owner_may_read_a_log_whatever_was_there(path: Path) -> None:
    path.write_bytes(HEAD + LINE)
    path.chmod(0o644)
    with LogFile(path, HEAD):
        pass
    earlier = path.with_name("events.jsonl.1")
    assert [file.stat().st_mode & 0o777 for file in (path, earlier)] == [0o600, 0o600]
    assert (path.read_bytes(), earlier.read_bytes()) == (HEAD, HEAD + LINE)


def test_a_log_that_another_process_writes_stays_as_it_is(path: Path) -> None:
    with LogFile(path, HEAD, every_s=0.001) as log:
        log.add(LINE)
        await_size(path, len(HEAD + LINE) + 64)
        with pytest.raises(LogError, match="is the event log of another path service"):
            LogFile(path, HEAD)
    assert entries(path) == [{"log": 1}, {"t": 1, "tick": True}]


def test_what_is_no_event_log_is_not_touched(path: Path) -> None:
    path.write_text("leaf_spine: {}\n")
    with pytest.raises(LogError, match="is not an event log: move it away"):
        LogFile(path, HEAD)
    assert path.read_text() == "leaf_spine: {}\n"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LogError, match="not a regular file"):
        LogFile(path, HEAD)
    assert path.is_fifo()
    path.unlink()
    with full_disk(10), pytest.raises(LogError, match=f"^{path} cannot be written: File too large$"):
        LogFile(path, HEAD)
    assert list(path.parent.iterdir()) == []


def test_a_file_is_limited_in_size(path: Path) -> None:
    with LogFile(path, HEAD, max_file_bytes=10_000, every_s=0.01) as log:
        while not path.with_name("events.jsonl.1").exists():
            log.add(LINE * 50)
            time.sleep(0.001)
    assert sorted(file.name for file in path.parent.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    for file in path.parent.iterdir():
        assert file.read_bytes().startswith(HEAD)
        assert file.stat().st_mode & 0o777 == 0o600
        assert entries(file)[1:] == [{"t": 1, "tick": True}] * (len(entries(file)) - 1)
