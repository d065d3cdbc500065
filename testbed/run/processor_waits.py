# SPDX-License-Identifier: Apache-2.0
"""How long the threads of a fabric wait for a processor: the figure that tells a busy machine.

The scheduler counts for every thread how often it has got a processor, and how long it was ready to run and had none
(Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat). Emulated switches and hosts have no other clock
than the processors that they share: packets are late when those who carry them wait. The part of their time for which
they wait tells less: one other program raises it to 0.9, and times are still right.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

Waits: TypeAlias = Mapping[tuple[int, int], tuple[int, int]]
"""By process and thread: how often it has got a processor, and the nanoseconds that it has waited for one."""


def waits_so_far(proc: Path = Path("/proc")) -> Waits:
    """The counts of all threads in the PID namespace of this process: those of the fabric, in the sandbox.

    Empty where the kernel does not count.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    own = os.stat(proc / "self/ns/pid").st_ino
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if os.stat(process / "ns/pid").st_ino != own:
                continue
            for thread in (process / "task").iterdir():
                _, waited, turns = (thread / "schedstat").read_text().split()
                found[int(process.name), int(thread.name)] = int(turns), int(waited)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def mean_wait_s(before: Waits, after: Waits) -> float | None:
    """The mean time in seconds that a thread waited for a processor, each time that it got one between two readings.

    None where nothing was counted.
    """
    turns = waited = 0
    for thread, (turns_now, waited_now) in after.items():
        turns_then, waited_then = before.get(thread, (0, 0))
        if turns_now >= turns_then and waited_now >= waited_then:  # else another thread with the number of an ended one
            turns, waited = turns + turns_now - turns_then, waited + waited_now - waited_then
    return waited / turns / 1e9 if turns else None
