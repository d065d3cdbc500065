# SPDX-License-Identifier: Apache-2.0
"""The machine on which figures are measured.

Only the standard library is imported here: testbed.nccl runs on machines without the project's dependencies.
"""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine; unknown values are "unknown"."""

    processor: str
    cores: int
    """Cores that this process may use."""
    kernel: str
    nvidia_driver: str
    congestion_control: str
    """Of TCP by default, in this network namespace. `bbr` turned comparisons with TCP around (docs/tcp.md)."""

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.kernel}, TCP with {self.congestion_control}"


def this_machine() -> Machine:
    """A description of the machine on which this process runs."""
    return Machine(
        processor=_found(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo")) or platform.machine() or "unknown",
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        nvidia_driver=_found(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)\s", Path("/proc/driver/nvidia/version")) or "unknown",
        congestion_control=_found(r"^(\S+)", Path("/proc/sys/net/ipv4/tcp_congestion_control")) or "unknown",
    )


def _found(pattern: str, file: Path) -> str | None:
    """What the pattern's group matches in the file. None: nothing, or there is no such file."""
    try:
        match = re.search(pattern, file.read_text(errors="replace"), flags=re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None
