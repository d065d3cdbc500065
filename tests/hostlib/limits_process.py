# SPDX-License-Identifier: Apache-2.0
"""Opens devices, connects them and makes a group under every limit of descriptors, then under one of threads. Prints a
line with a JSON object each: the limit, and the error if there was one. For test_limits.py, in a process of its own.
"""

from __future__ import annotations

import json
import os
import resource
from typing import Any

from hostlib import Device
from hostlib.collectives import Group
from tests.hostlib.conftest import A, B, join

NOBODY = 65534


def attempt(what: str, limit: int) -> bool:
    """Whether it succeeded."""
    row: dict[str, Any] = {"what": what, "limit": limit, "error": None}
    try:
        with (
            Device(A, lanes=2) as one,
            Device(B, lanes=2) as two,
            Group(one, 0, 1, lambda handle: [handle]) as group,
        ):
            pair = join(one, two, timeout_s=0.5)
            assert pair.exchange(b"message") == b"message"
            group.barrier().wait(10)
    except Exception as error:
        row["error"] = [type(error).__name__, str(error)]
    print(json.dumps(row), flush=True)
    return row["error"] is None


def main() -> None:
    assert attempt("nothing", 0)  # all modules are loaded
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) - 1
    while True:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        if attempt("descriptors", few):
            break
        few += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if os.getuid() == 0:
        os.setuid(NOBODY)  # root has no such limit
    resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    attempt("threads", 1)


if __name__ == "__main__":
    main()
