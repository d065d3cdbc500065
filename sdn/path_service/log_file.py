# SPDX-License-Identifier: Apache-2.0
"""The file behind the event log: lines of JSON that a thread writes, so that no answer waits for a disk.

The file always has `_RESERVE` bytes more than its lines, written together with them. So a disk that is full still has
room for one line: the one that says how many are missing.
"""

import fcntl
import logging
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from netmodel.printable import printable

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 30
MAX_WAITING_BYTES = 64 << 20
"""Bytes that may wait to be written. Lines beyond this are dropped and counted."""

_RESERVE = 64
_BEGIN = b'{"log":'  # of a file's first line


class LogError(ValueError):
    """A file is not an event log, is not a complete one or cannot be written; the text says where and why."""


class LogFile:
    """Appends lines to `path`, which only this user may read; a context manager.

    `head` is the first line of every file. A full file is renamed to FILE.1 and a new one is begun; so is a file that
    an earlier process has left. Raises LogError when the file cannot be made, is not an event log, or belongs to a
    process that still writes it.

    Afterwards no method blocks or raises: lines that cannot be written are dropped, a line `{"t":0,"dropped":N}` takes
    their place, and `dropped` counts them.
    """

    def __init__(
        self,
        path: Path,
        head: bytes,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        every_s: float = 0.2,
    ) -> None:
        self.dropped = 0
        self._head = head
        self._max_file_bytes = self._full_bytes = max_file_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._every_s = every_s
        try:
            _check_earlier(path)
            self._path = path.resolve()
            self._file = self._created()
        except OSError as error:
            raise LogError(f"{path} cannot be written: {error.strerror}") from error
        self._lock = threading.Lock()
        self._waiting: list[bytes | int] = []  # lines, and numbers of lines that were dropped between them
        self._waiting_bytes = 0
        self._missing = 0  # lines lost since a write failed; 0 while all is written
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, name="event log", daemon=True)
        self._thread.start()

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes the lines that wait, and closes the file."""
        self._ended.set()
        self._thread.join()
        if not self._missing:
            os.ftruncate(self._file, self._end)
        os.close(self._file)

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
            if not waiting:
                continue
            try:
                self._append(b"".join(entry if isinstance(entry, bytes) else _dropped(entry) for entry in waiting))
            except OSError as error:
                self._lose(waiting, error)
                continue
            if self._missing:
                log.info(
                    "the event log %s is written again; %d events are missing", printable(self._path), self._missing
                )
                self._missing = 0
            if self._end > self._full_bytes and not ended:
                self._begin_anew()

    def _append(self, text: bytes) -> None:
        if self._missing:
            text = _dropped(self._missing) + text
        _write_all(self._file, text + b" " * _RESERVE, self._end)
        self._end += len(text)

    def _lose(self, waiting: list[bytes | int], error: OSError) -> None:
        """Notes that lines could not be written, in the bytes that are reserved for it."""
        if not self._missing:
            log.info(
                "the event log %s cannot be written, events are dropped: %s",
                printable(self._path),
                printable(error.strerror),
            )
        self._missing += sum(entry if isinstance(entry, int) else 1 for entry in waiting)
        self.dropped += sum(isinstance(entry, bytes) for entry in waiting)
        with suppress(OSError):
            _write_all(self._file, _dropped(self._missing)[:-1].ljust(_RESERVE - 1) + b"\n", self._end)
            os.ftruncate(self._file, self._end + _RESERVE)

    def _begin_anew(self) -> None:
        full, end = self._file, self._end
        try:
            self._file = self._created()
        except OSError as error:  # goes on in the full file for a while
            log.info("the event log %s cannot be begun anew: %s", printable(self._path), printable(error.strerror))
            self._full_bytes = end + self._max_file_bytes // 16
            return
        self._full_bytes = self._max_file_bytes
        os.ftruncate(full, end)
        os.close(full)

    def _created(self) -> int:
        """A new file with the first line, which takes the place of an earlier one once it is whole."""
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, self._head + b" " * _RESERVE, 0)
            if self._path.exists():
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            fresh.replace(self._path)
        except OSError:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise
        self._end = len(self._head)
        return file


def _dropped(count: int) -> bytes:
    return b'{"t":0,"dropped":%d}\n' % count


def _write_all(file: int, text: bytes, offset: int) -> None:
    while text:
        written = os.pwrite(file, text, offset)
        text, offset = text[written:], offset + written


def _check_earlier(path: Path) -> None:
    """Raises LogError when the file at `path` is not an event log that an earlier process has left, else OSError.

    Its mode becomes that of a new file.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LogError(f"{path} cannot be the event log: it is not a regular file")
        if os.pread(file, len(_BEGIN), 0) not in (b"", _BEGIN):
            raise LogError(f"{path} is not an event log: move it away, or give another file")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path} is the event log of another path service: give another file") from None
        os.fchmod(file, 0o600)
    finally:
        os.close(file)
