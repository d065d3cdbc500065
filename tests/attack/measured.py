# SPDX-License-Identifier: Apache-2.0
"""`paralet` in a process of its own, whose memory and processor time are measured.

usage: measured.py FILE ARGUMENT_OF_PARALET...

FILE gets the peak of resident memory in bytes, and the processor time in seconds, in JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_BYTES = 8 << 30
"""Address space of the process, so that an attack that succeeds does not use up the machine."""
TIMEOUT_S = 200.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and what it took."""

    status: int
    stdout: str
    stderr: str
    peak_bytes: int
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.peak_bytes >> 20} MiB and {self.cpu_s:.1f} s of a processor"


def paralet(*arguments: object) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "measured.json")
        done = subprocess.run(
            [sys.executable, __file__, str(file), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert file.exists(), f"paralet was killed, status {done.returncode}:\n{done.stderr}"
        taken = json.loads(file.read_text())
    return Ran(done.returncode, done.stdout, done.stderr, taken["peak_bytes"], taken["cpu_s"])


def main(file: Path) -> None:
    from testbed.cli import main as command_line

    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        command_line()
    finally:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        # Of this program alone: ru_maxrss would count the process that started it.
        peak_bytes = int(status["VmHWM"].split()[0]) << 10
        file.write_text(json.dumps({"peak_bytes": peak_bytes, "cpu_s": time.process_time()}))


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
