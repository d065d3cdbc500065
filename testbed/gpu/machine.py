# SPDX-License-Identifier: Apache-2.0
"""What machine this is, for the record that figures need."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The host. What is unknown is "unknown"."""

    processor: str
    cores: int
    """That this process may use."""
    kernel: str
    nvidia_driver: str


def this() -> Machine:
    """This machine."""
    return Machine(
        processor=_found(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        nvidia_driver=_found(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)\s", Path("/proc/driver/nvidia/version")),
    )


def _found(pattern: str, file: Path) -> str:
    try:
        match = re.search(pattern, file.read_text(errors="replace"), flags=re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else "unknown"
