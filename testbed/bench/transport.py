# SPDX-License-Identifier: Apache-2.0
"""Back ends between two processes compared with TCP: throughput, processor time, latency.

Three groups of cases. By size, on loopback with a core per side and receives posted far ahead, beside a TCP stream. As
NCCL exchanges messages, on loopback beside TCP in NCCL's settings (`flows`). And over five kinds of links, which need
root (`links`). Every back end of the build is measured in each.

A native program measures all of them, so that Python affects none. For the first group it prints one JSON object per
line and repetition: {"metric", "case", "unit", "ours"}, with "peer" and "peer_name" when there is a peer.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from testbed.bench import flows
from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.progress import Steps

REPETITIONS = 5
"""Of the exchanges in NCCL's way, on loopback and over links."""


def measure() -> Result:
    """Run the program and return its medians. Raises InputError when it is not built, TestbedError when it fails."""
    program = bench_program()
    try:
        ours = flows.built_back_ends()
    except FileNotFoundError as error:
        raise InputError(str(error)) from error
    cases = flows.loopback_cases(len(os.sched_getaffinity(0)))
    exchanges = (flows.measurements(program, cases, ours, repetition) for repetition in range(REPETITIONS))
    with_links = os.geteuid() == 0
    with Steps(None, every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for measurement in chain(
            by_size(program, ours), chain.from_iterable(exchanges), over_links(program, ours) if with_links else ()
        ):
            measurements.append(measurement)
            steps.now(f"{measurement.metric} of {measurement.case}")
            steps.advance()
    if not with_links:
        print("transport: links are left out, because network namespaces need root", file=sys.stderr)
    return result("transport", measurements)


def by_size(program: Path, ours: Sequence[str]) -> Iterator[Measurement]:
    """Each back end beside a TCP stream, by size. Raises TestbedError."""
    for back_end in ours:
        for measurement in printed([str(program), "transport", "--back-end", back_end]):
            yield replace(measurement, metric=f"{measurement.metric}, {back_end}")


def over_links(program: Path, ours: Sequence[str]) -> Iterator[Measurement]:
    """The measurements of `links`, in a sandbox. Raises TestbedError."""
    inside = [sys.executable, "-m", "testbed.bench.links_main", str(program), str(REPETITIONS), *ours]
    return printed([sys.executable, "-m", "emul.sandbox", *inside])


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
