# SPDX-License-Identifier: Apache-2.0
"""The sandboxes of this user that run on this machine, as seen from outside of them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emul import sandbox_init

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """A sandbox, by its process 1."""

    pid: int
    """The id of process 1 in the namespace of this process."""

    @property
    def scratch(self) -> Path:
        """Its private tmpfs (`emul.sandbox.SCRATCH_DIR`), as a path that works here."""
        return Path(f"/proc/{self.pid}/root{sandbox_init.SCRATCH}")

    def pids(self) -> dict[int, int]:
        """The ids of its processes here, by their ids in the sandbox."""
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for pid in _pids():
            with suppress(OSError):  # the process has ended
                if os.readlink(f"/proc/{pid}/ns/pid") == space:
                    found[_ids(pid)[-1]] = pid
        return found


def running() -> list[RunningSandbox]:
    """The sandboxes of this user, of this user namespace. Those in a container that has one of its own are left out."""
    own = os.readlink("/proc/self/ns/user")
    found = []
    for pid in _pids():
        with suppress(OSError):  # the process has ended, or is somebody else's
            if (
                len(ids := _ids(pid)) > 1
                and ids[-1] == 1
                and (_PROC / str(pid)).stat().st_uid == os.geteuid()
                and os.readlink(f"/proc/{pid}/ns/user") == own
                and _is_init(pid)
            ):
                found.append(RunningSandbox(pid))
    return found


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _ids(pid: int) -> list[int]:
    """The ids of a process (proc(5), NSpid): first that in the namespace of this process, last that in its own."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return []


def _is_init(pid: int) -> bool:
    """Whether a process runs `sandbox_init`, of this installation or another."""
    words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return any(Path(word).name == Path(sandbox_init.__file__).name for word in words)
