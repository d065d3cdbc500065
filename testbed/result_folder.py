# SPDX-License-Identifier: Apache-2.0
"""A result folder belongs to one command at a time: two that write to the same files would mix their results.

Only the standard library and `testbed.errors` are imported here: testbed.nccl runs on machines without netmodel.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

from testbed.errors import InputError

LOCK = ".lock"
"""The file in a result folder that a command locks while it writes there. It stays: to remove it would be a race."""


@contextmanager
def named_when_full(folder: Path) -> Iterator[None]:
    """Within the block, an OSError of a full disk or quota names `folder`: the kernel names no file when it writes."""
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT) and error.filename is None:
            error.filename = str(folder)
        raise


@contextmanager
def sole_writer(folder: Path, option: str | None = "--results") -> Iterator[None]:
    """While open, `folder`, which is made if missing, belongs to this process. The kernel unlocks it when this ends.

    Errors of a full disk name the folder.

    `option` is the command's option for another folder, if it has one. Raises InputError where another process has the
    folder, and where it cannot be written or its file system has no locks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)  # NFS locks for writers only
    except OSError as error:
        raise InputError(f"cannot write results to {folder}: {error.strerror}") from error
    try:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            instead = "" if option is None else f", or take another folder with {option}"
            raise InputError(f"another command is writing to {folder}: wait for its end{instead}") from None
        except OSError as error:
            said = f"{folder} cannot be locked against other commands: {error.strerror}"
            raise InputError(f"{said}; take a folder on another file system") from error
        try:
            with named_when_full(folder):
                yield
        finally:
            flock(descriptor, LOCK_UN)  # a fork that still runs has the same lock
    finally:
        os.close(descriptor)
