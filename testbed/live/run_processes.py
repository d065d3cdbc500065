# SPDX-License-Identifier: Apache-2.0
"""The processes of one running experiment: others may have the same addresses on this machine."""

import os
from contextlib import suppress
from pathlib import Path

from emul.sandboxes import RunningSandbox, running


class RunProcesses:
    """Finds the sandbox of the runner that writes a journal, and follows its processes."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._sandbox: RunningSandbox | None = None

    def take(self) -> list[int]:
        """The processes that are there now; none before the run has begun, and after it has ended."""
        if self._sandbox is None:
            self._sandbox = next((each for each in running() if self._is_written_in(each)), None)
        if self._sandbox is not None:
            with suppress(OSError):
                return sorted(self._sandbox.pids().values())
            self._sandbox = None
        return []

    def _is_written_in(self, sandbox: RunningSandbox) -> bool:
        """Whether a process of a sandbox has the journal open."""
        with suppress(OSError):
            wanted = os.stat(self._journal)
            return any(_has_open(pid, wanted) for pid in sandbox.pids().values())
        return False


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(entry.path), wanted):
                    return True
    return False
