# SPDX-License-Identifier: Apache-2.0
"""How long threads wait for a processor, by the kernel's counts."""

from __future__ import annotations

import os
import subprocess
import sys

from testbed.run.processor_waits import mean_wait_s, waits_so_far

BUSY = """
import os, time
os.sched_setaffinity(0, {int(input())})
print("ready", flush=True)
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
print("done", flush=True)
input()
"""


def test_two_processes_on_one_processor_wait_for_each_other() -> None:
    """For 0.2 s each, in turns of some milliseconds. On a busy machine they wait longer."""
    processor = min(os.sched_getaffinity(0))
    words = [sys.executable, "-c", BUSY]
    before = waits_so_far()
    processes = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{processor}\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "done\n"]
        after = waits_so_far()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    numbers = {process.pid for process in processes}
    of_both = {thread: counts for thread, counts in after.items() if thread[0] in numbers}
    assert sum(waited for _, waited in of_both.values()) > 0.1e9
    wait_s = mean_wait_s(before, of_both)
    assert wait_s is not None
    assert wait_s > 0.0001


def test_only_what_came_after_the_first_reading_counts() -> None:
    second = 1_000_000_000
    before = {(1, 1): (10, 0), (1, 2): (0, 9 * second)}
    assert mean_wait_s(before, {(1, 1): (13, second), (1, 3): (1, second)}) == 0.5
    assert mean_wait_s(before, {(1, 1): (1, second), (1, 2): (1, 9 * second)}) == 0.0  # (1, 1) is another thread now
    assert mean_wait_s(before, before) is None
    assert mean_wait_s({}, {}) is None
