# SPDX-License-Identifier: Apache-2.0
"""`soft` between two processes on loopback beside a plain TCP stream: throughput and latency by message size.

The measuring is done by a native program, so that Python is on neither side of the comparison. It prints one JSON
object a line and repetition: {"metric", "case", "unit", "ours", "peer", "peer_name"}.
"""

import json
import subprocess
from collections.abc import Iterator

from testbed.bench.frame import Measurement, Result, result
from testbed.errors import TestbedError


def measure() -> Result:
    """Run the program and fold what it prints. Raises TestbedError when it fails."""
    return result("transport", list(_measurements()))


def _measurements() -> Iterator[Measurement]:
    import hostlib

    program = hostlib.bench_program()
    with subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        for line in process.stdout:
            yield _parsed(line)
    if process.returncode:
        raise TestbedError(f"{program} ended with status {process.returncode}")


def _parsed(line: str) -> Measurement:
    try:
        return Measurement(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise TestbedError(f"the benchmark printed {line.strip()!r}, which is no measurement") from error
