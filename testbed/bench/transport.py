# SPDX-License-Identifier: Apache-2.0
"""`soft` between two processes on loopback compared with a TCP stream: throughput, processor time, latency by size.

A native program measures both, so that Python affects neither. It prints one JSON object per line and repetition:
{"metric", "case", "unit", "ours"}, with "peer" and "peer_name" when there is a peer.
"""

import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.progress import Steps


def measure() -> Result:
    """Run the program and return its medians. Raises InputError when it is not built, TestbedError when it fails."""
    program = bench_program()
    with Steps(None, every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for one in run(program, "transport"):
            measurements.append(one)
            steps.now(f"{one.metric} of {one.case}")
            steps.advance()
    return result("transport", measurements)


def bench_program() -> Path:
    """The native program. Raises InputError when it is not built."""
    import hostlib

    try:
        return hostlib.bench_program()
    except FileNotFoundError as error:
        raise InputError(str(error)) from error


def run(program: Path, bench: str) -> Iterator[Measurement]:
    """Yield the measurements of `bench` in `program` as they are printed. Raises TestbedError as `printed` does."""
    return printed([str(program), bench])


def printed(argv: Sequence[str]) -> Iterator[Measurement]:
    """Yield the measurements that a command prints, one JSON object per line.

    Raises TestbedError when the command fails or prints anything else.
    """
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        try:
            for line in process.stdout:
                yield _parsed(line)
        except BaseException:
            process.kill()  # otherwise the end of the block would wait for it
            raise
    if process.returncode:
        raise TestbedError(f"{argv[0]} ended with status {process.returncode}")


def _parsed(line: str) -> Measurement:
    try:
        return Measurement(**{"peer": math.nan, "peer_name": "", **json.loads(line)})
    except (TypeError, ValueError) as error:
        raise TestbedError(f"the benchmark printed {line.strip()!r}, which is not a measurement") from error
