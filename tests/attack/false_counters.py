# SPDX-License-Identifier: Apache-2.0
"""A user's process that publishes false live counters: sparse files in memory that cost it nothing. Prints a line when
all are there, and ends with standard input.

usage: false_counters.py FILES LANES
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from tests.hostlib.test_stats import impostor, snapshot, with_checksum

HEAD_BYTES = 16
"""Of a snapshot, before what its checksum covers."""


def sparse(lanes: int, pid: int) -> tuple[bytes, int]:
    """The beginning of a valid snapshot whose lanes are all zeros, and its size with them."""
    end = len(snapshot(0, pid))
    covered = bytearray(snapshot(lanes, pid)[HEAD_BYTES:])
    covered[end - HEAD_BYTES :] = bytes(len(covered) + HEAD_BYTES - end)
    whole = with_checksum(bytes(covered))
    return whole[:end], len(whole)


def main(files: int, lanes: int) -> None:
    head, size = sparse(lanes, os.getpid())
    with ExitStack() as published:
        for _ in range(files):
            published.enter_context(impostor(head, size))
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
