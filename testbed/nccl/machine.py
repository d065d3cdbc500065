# SPDX-License-Identifier: Apache-2.0
"""The machine on which figures are measured."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine; unknown values are "unknown"."""

    processor: str
    cores: int
    """Cores that this process may use."""
    kernel: str
    nvidia_driver: str


def this() -> Machine:
    """A description of the machine on which this process runs."""
    return Machine(
        processor=_found(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        nvidia_driver=_found(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)\s", Path("/proc/driver/nvidia/version")),
    )


def cores_of(ranks: int, each: int) -> list[frozenset[int]]:
    """For every rank `each` cores of its own, of those that this process may use. Raises InputError for too few."""
    usable = sorted(os.sched_getaffinity(0))
    if ranks * each > len(usable):
        raise InputError(f"--cores-per-rank {each}: {ranks} ranks need {ranks * each} cores; {len(usable)} are usable")
    return [frozenset(usable[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def _found(pattern: str, file: Path) -> str:
    try:
        match = re.search(pattern, file.read_text(errors="replace"), flags=re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else "unknown"
