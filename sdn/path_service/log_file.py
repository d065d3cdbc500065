# SPDX-License-Identifier: Apache-2.0
"""The file behind the log: lines of JSON that a thread appends, so that no answer waits for a disk.

Whoever rotates it renames it and calls `reopen`, or copies it and truncates it. Nothing that was written is changed.
"""

import fcntl
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

from netmodel.printable import printable

log = logging.getLogger(__name__)

MAX_WAITING_BYTES = 64 << 20
"""Bytes that may wait to be written. Lines beyond this are dropped and counted."""

BEGIN = b'{"at":"'
"""Of every line."""


class LogError(ValueError):
    """A file is not a log, is not a complete one or cannot be written; the text says where and why."""


class LogFile:
    """Appends lines to `path`, which only this user may read; a context manager.

    Raises LogError when the file cannot be opened, is not a log, or belongs to a process that still writes it.

    Afterwards no method blocks or raises: lines that cannot be written are dropped, a line `{"at":..,"dropped":N}`
    takes their place, and `dropped` counts them.
    """

    def __init__(self, path: Path, *, max_waiting_bytes: int = MAX_WAITING_BYTES, every_s: float = 0.2) -> None:
        self.dropped = 0
        self._max_waiting_bytes = max_waiting_bytes
        self._every_s = every_s
        self._path = path.absolute()
        self._file = _opened(self._path)
        self._lock = threading.Lock()
        self._waiting: list[bytes | int] = []  # lines, and numbers of lines that were dropped between them
        self._waiting_bytes = 0
        self._missing = 0  # lines lost since a write failed; 0 while all is written
        self._is_torn = False  # the file ends in the middle of a line
        self._reopen = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes the lines that wait, and closes the file."""
        self._ended.set()
        self._thread.join()
        os.close(self._file)

    def reopen(self) -> None:
        """Goes on in the file that has the name now: the present one may have been renamed. Lines so far stay there."""
        with self._lock:
            self._reopen = True

    def add(self, line: bytes) -> None:
        """Appends a line, which ends with a newline."""
        with self._lock:
            if self._waiting_bytes + len(line) > self._max_waiting_bytes:
                self.dropped += 1
                if self._waiting and isinstance(self._waiting[-1], int):
                    self._waiting[-1] += 1
                else:
                    self._waiting.append(1)
                return
            self._waiting_bytes += len(line)
            self._waiting.append(line)

    def _write(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(self._every_s)
            with self._lock:
                waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
                reopen, self._reopen = self._reopen, False
            if waiting:
                self._append(waiting)
            if reopen:
                self._go_on()

    def _append(self, waiting: list[bytes | int]) -> None:
        text = b"".join(entry if isinstance(entry, bytes) else _dropped(entry) for entry in waiting)
        if self._missing:
            text = _dropped(self._missing) + text
        if self._is_torn:
            text = b"\n" + text
        try:
            while text:
                written = os.write(self._file, text)
                self._is_torn = text[written - 1 : written] != b"\n"
                text = text[written:]
        except OSError as error:
            self._lose(waiting, error)
            return
        if self._missing:
            log.info("the log %s is written again; %d events are missing", printable(self._path), self._missing)
            self._missing = 0

    def _lose(self, waiting: list[bytes | int], error: OSError) -> None:
        """Notes that lines could not be written, or not all of them: all count as missing."""
        if not self._missing:
            log.info(
                "the log %s cannot be written, events are dropped: %s",
                printable(self._path),
                printable(error.strerror),
            )
        self._missing += sum(entry if isinstance(entry, int) else 1 for entry in waiting)
        self.dropped += sum(isinstance(entry, bytes) for entry in waiting)

    def _go_on(self) -> None:
        before = self._file
        with suppress(OSError):
            if os.path.samestat(os.stat(self._path), os.fstat(before)):
                return
        try:
            self._file = _opened(self._path)
        except LogError as error:
            log.info("the log goes on in its present file: %s", printable(str(error)))
            return
        os.close(before)
        self._is_torn = False


def _dropped(count: int) -> bytes:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()
    return b'{"at":"%b","dropped":%d}\n' % (at, count)


def _opened(path: Path) -> int:
    """A file to append to, locked for this process. What was there stays. Raises LogError."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LogError(f"{path} cannot be the log: it is not a regular file")
        if os.pread(file, len(BEGIN), 0) not in (b"", BEGIN):
            raise LogError(f"{path} is not a log of a path service: move it away, or give another file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path} is the log of another path service: give another file") from None
        os.fchmod(file, 0o600)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":  # of a service whose disk was full
            os.write(file, b"\n")
    except OSError as error:
        os.close(file)
        raise LogError(f"{path} cannot be written: {error.strerror}") from error
    except LogError:
        os.close(file)
        raise
    return file
