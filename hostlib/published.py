# SPDX-License-Identifier: Apache-2.0
"""Reads what processes publish in files in memory, and from whom it comes.

Root reads what any user has written, so everything here is bounded: by process, by user, and in all. One user's files
cannot take the room of another's. Owners come from the kernel, never from what a file says.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

_TRIES = 20
_PAUSE_S = 0.001
_COMMAND_BYTES = 4096
_ENVIRONMENT_BYTES = 1 << 16
_JOB_VARIABLES = ("PARALET_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_STATUS_BYTES = 65536

_WORDS = {"files": "open files", "read_bytes": "bytes", "rereads": "changing snapshots", "lanes": "lanes"}

_T = TypeVar("_T")


class SnapshotError(ValueError):
    """The bytes are not a snapshot, or were read while it was written. The message is one sentence."""


class LimitError(SnapshotError):
    """Something was left out, because a process or a user publishes more than `Limits` allow."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is read."""

    files: int
    """Open files that are looked at, whatever they are."""
    read_bytes: int
    """Bytes read, again for each time that a snapshot changed meanwhile."""
    rereads: int
    """Reads of snapshots that changed while they were read. Each waits for a millisecond."""
    lanes: int
    """Lanes, and devices."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one look at many processes reads."""

    process: Amounts = Amounts(files=2**17, read_bytes=2**25, rereads=100, lanes=2**13)
    user: Amounts = Amounts(files=2**18, read_bytes=2**26, rereads=200, lanes=2**14)
    all: Amounts = Amounts(files=2**20, read_bytes=2**28, rereads=1000, lanes=2**16)


@dataclass(slots=True)
class Budget:
    """What may still be read of a process, of its user's processes, and of all processes."""

    levels: list[tuple[str, dict[str, int]]]
    """The name of each level, and what is left there."""

    def left(self, what: str) -> int:
        """How many of one of the `Amounts` may still be read."""
        return min(left[what] for _, left in self.levels)

    def take(self, what: str, number: int) -> None:
        """Take this many. Raises LimitError, and takes none, if fewer are left."""
        for name, left in self.levels:
            if left[what] < number:
                raise LimitError(f"{name} more {_WORDS[what]} than one look reads: the rest is left out")
        for _, left in self.levels:
            left[what] -= number


@dataclass(slots=True)
class Budgets:
    """Hands out the budgets of one look at many processes."""

    limits: Limits = field(default_factory=Limits)
    _users: dict[int | None, dict[str, int]] = field(default_factory=dict)
    _all: dict[str, int] = field(default_factory=dict)

    def of(self, uid: int | None) -> Budget:
        """The budget of one more process of this user."""
        self._all = self._all or _amounts(self.limits.all)
        user = self._users.setdefault(uid, _amounts(self.limits.user))
        own = _amounts(self.limits.process)
        return Budget([("it has", own), (f"user {uid} has", user), ("all users together have", self._all)])


def _amounts(amounts: Amounts) -> dict[str, int]:
    return asdict(amounts)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the kernel says of a process (proc(5), status)."""

    state: str
    """The letter of its state, such as ``T`` while a signal has stopped it; empty when there is no such process."""
    inner_pid: int | None
    """Its own id in its innermost PID namespace, by which it names itself in what it publishes."""
    uid: int | None
    """The real user id: who started it, also if it has more rights since. None when there is no such process."""


def identity_of(pid: int) -> Identity:
    """Who a process is. What cannot be read is empty or None."""
    fields = dict(line.partition(":")[::2] for line in _proc_text(pid, "status", _STATUS_BYTES).splitlines())
    state, inner, uids = (fields.get(name, "").split() for name in ("State", "NSpid", "Uid"))
    return Identity(state[0] if state else "", int(inner[-1]) if inner else None, int(uids[0]) if uids else None)


def command_of(pid: int) -> str:
    """The beginning of a process's command line, without control characters."""
    words = _proc_text(pid, "cmdline", _COMMAND_BYTES).replace("\0", " ") or _proc_text(pid, "comm", _COMMAND_BYTES)
    return " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())


def job_and_rank(pid: int) -> tuple[str, str]:
    """The job's name and the rank by the environment in which a process was started; empty where it does not tell.

    Values that are longer than 64 characters or not printable do not count.
    """
    words = _proc_text(pid, "environ", _ENVIRONMENT_BYTES).split("\0")
    values = dict(word.partition("=")[::2] for word in words)
    return _first(values, _JOB_VARIABLES), _first(values, _RANK_VARIABLES)


def _first(values: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for name in names if 0 < len(value := values.get(name, "")) <= 64 and value.isprintable()), "")


def published(
    pid: int, memfd: str, most_bytes: int, budget: Budget, parsed: Callable[[bytes], _T]
) -> Iterator[_T | SnapshotError]:
    """What a process publishes in its memory files of this name, each file once, or why it cannot be read.

    `parsed` decodes the bytes of a file, at most `most_bytes`, and raises SnapshotError; it is called again if they
    changed while they were read. Empty files are left out, and files that another user than the process's has made,
    except root: a program that gains rights keeps the files that its caller had open. Raises OSError if the process
    cannot be read.
    """
    seen = set()
    folder = f"/proc/{pid}/fd"
    link = f"/memfd:{memfd} (deleted)"
    owners = {0, identity_of(pid).uid}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                budget.take("files", 1)
                if os.readlink(entry.path) != link or (inode := os.stat(entry.path).st_ino) in seen:
                    continue
            except FileNotFoundError:
                continue  # closed in the meantime
            except LimitError as error:
                yield error
                return
            seen.add(inode)
            try:
                snapshot = _read(entry.path, most_bytes, owners, budget, parsed)
            except SnapshotError as error:
                yield error
                if isinstance(error, LimitError):
                    return
            else:
                if snapshot is not None:
                    yield snapshot


def _read(
    path: str, most_bytes: int, owners: set[int | None], budget: Budget, parsed: Callable[[bytes], _T]
) -> _T | None:
    """Read the snapshot in a file. None when it is still empty or has disappeared. Raises SnapshotError."""
    try:
        # Any process can name any file like this, so check its type before opening it for reading.
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(place)
            if not stat.S_ISREG(found.st_mode):
                return None
            if found.st_uid not in owners:
                raise SnapshotError(f"user {found.st_uid}, whose process it is not, made one of its snapshots")
            file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(place)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return _read_consistent(file, most_bytes, budget, parsed)
    finally:
        os.close(file)


def _read_consistent(file: int, most_bytes: int, budget: Budget, parsed: Callable[[bytes], _T]) -> _T | None:
    for attempt in range(_TRIES):
        size = os.fstat(file).st_size
        if size > most_bytes:
            raise SnapshotError(f"a snapshot of {size} bytes exceeds the limit of {most_bytes} bytes")
        budget.take("read_bytes", size)
        try:
            return parsed(os.pread(file, size, 0)) if size else None
        except LimitError:
            raise
        except SnapshotError:
            if attempt + 1 == _TRIES or not budget.left("rereads"):
                raise
            budget.take("rereads", 1)
            time.sleep(_PAUSE_S)  # the process was writing it
    return None


def _proc_text(pid: int, name: str, most_bytes: int) -> str:
    """The beginning of a file of proc(5); empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""
