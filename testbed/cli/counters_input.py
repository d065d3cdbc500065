# SPDX-License-Identifier: Apache-2.0
"""Reads counters of switch ports from a file or a pipe while a command does something else."""

import os
import threading
import time
from typing import BinaryIO

from testbed.errors import TestbedError
from testbed.live.link_counters import LinkCounters, PortRates

_MAX_LINE_BYTES = 2**20
_MOST_WRONG = 20
"""Sentences about bad lines that are kept between two calls of `take`."""


class CountersInput:
    """Lines of `file` as they come, read by a thread of their own. `ended` is set when there will be no more."""

    def __init__(self, file: BinaryIO) -> None:
        self.ended = threading.Event()
        self._file = file
        self._lock = threading.Lock()
        self._counters = LinkCounters()
        self._wrong: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def take(self) -> tuple[list[PortRates], list[str]]:
        """The rates of all ports, and what was wrong with the lines since the last call."""
        with self._lock:
            wrong, self._wrong = self._wrong, []
            return self._counters.rates(), wrong

    def _read(self) -> None:
        try:
            for line in iter(lambda: self._file.readline(_MAX_LINE_BYTES), b""):
                with self._lock:
                    wrong = self._counters.read(line.decode(errors="replace"), time.monotonic())
                    if wrong is not None and len(self._wrong) < _MOST_WRONG:
                        self._wrong.append(wrong)
        finally:
            self.ended.set()


def keys_from_terminal() -> BinaryIO:
    """Make the terminal standard input, for keys. Returns what was standard input. Raises TestbedError without one."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError("cannot open /dev/tty for keys: use --json") from error
    file = os.fdopen(os.dup(0), "rb")
    os.dup2(terminal, 0)
    os.close(terminal)
    return file
