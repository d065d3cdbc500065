# SPDX-License-Identifier: Apache-2.0
"""The NCCL net plugin compared with TCP as NCCL uses it: ring all-reduce by ranks and message size, and latency.

The program `paralet-nccl-driver` drives both transports alternately, with the calls of NCCL's proxy. Messages
are slices of a ring all-reduce of floats, eight in flight on each connection; the bandwidth is NCCL's bus bandwidth,
2 (n - 1) / n times the size of the data divided by the time. Every byte of every result is checked.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.progress import Steps

PEER = "TCP, 4 sockets"
RANKS = (2, 4)
MESSAGE_KIB = (128, 256, 512, 1024, 2048, 4096)
LATENCY_BYTES = 8
IN_FLIGHT = 8
REPETITIONS = 5

_LEAST_BYTES = 64 << 20
"""Least data per rank. Like gradients, it exceeds the processor's caches near the cores."""

_BYTES_PER_CASE = 256 << 20
"""Data that each rank reduces while measured, large enough to make the start and the end negligible."""

_ROUND_TRIPS = 20_000


def measure() -> Result:
    """Run every case.

    Raises InputError when the driver or the plugin is not built, TestbedError when a run fails or its result is wrong.
    """
    import nccl_net_plugin
    from nccl_net_plugin.programs import driver_program

    try:
        program, plugin = driver_program(), nccl_net_plugin.path()
    except FileNotFoundError as error:
        raise InputError(str(error)) from error
    with Steps(REPETITIONS * (len(RANKS) * len(MESSAGE_KIB) + 1), every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for measurement in run(program, plugin):
            measurements.append(measurement)
            steps.now(f"{measurement.metric} of {measurement.case}")
            steps.advance()
    return result("plugin", measurements)


def run(program: Path, plugin: Path, repetitions: int = REPETITIONS) -> Iterator[Measurement]:
    """Interleave repetitions of all cases and both transports, so that changes of the machine's speed affect all."""
    for _ in range(repetitions):
        for ranks in RANKS:
            for kib in MESSAGE_KIB:
                options = ring_options(ranks, kib << 10)
                ours, peer = (float(summary["bus_gbps"]) for summary in _both(program, plugin, options))
                yield Measurement("bus bandwidth", f"{ranks} ranks, {_size(kib)}", "Gbit/s", ours, peer, PEER)
        options = ["--spawn", 2, "--collective", "pingpong", "--bytes", LATENCY_BYTES, "--iterations", _ROUND_TRIPS]
        ours, peer = (1e6 * float(summary["seconds"]) for summary in _both(program, plugin, options))
        yield Measurement("latency", f"{LATENCY_BYTES} B", "us", ours, peer, PEER)


def ring_options(ranks: int, message_bytes: int) -> list[object]:
    """The driver's options for a ring of messages of equal size, IN_FLIGHT of them on each connection."""
    one_round = ranks * IN_FLIGHT * message_bytes
    size = one_round * max(1, _LEAST_BYTES // one_round)
    options: list[object] = ["--spawn", ranks, "--collective", "ring", "--bytes", size]
    options += ["--slice-bytes", message_bytes, "--steps", IN_FLIGHT, "--iterations", max(2, _BYTES_PER_CASE // size)]
    return options


def _both(program: Path, plugin: Path, options: Sequence[object]) -> Iterator[dict[str, Any]]:
    for transport in (plugin, "tcp"):
        yield _summary([str(program), *map(str, options), "--transport", str(transport)])


def _summary(argv: list[str]) -> dict[str, Any]:
    """The driver's summary. Raises TestbedError when the driver fails or bytes are wrong."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    if not done.stdout:
        raise TestbedError(f"{argv[0]} failed: {lines[-1] if lines else f'status {done.returncode}'}")
    try:
        summary: dict[str, Any] = json.loads(done.stdout)
        if not summary["verified"]:
            raise TestbedError(f"{summary['wrong_bytes']} bytes were wrong: {' '.join(argv)}")
    except (KeyError, TypeError, ValueError) as error:
        raise TestbedError(f"the benchmark printed {done.stdout.strip()!r}, which is not a summary") from error
    return summary


def _size(kib: int) -> str:
    return f"{kib >> 10} MiB" if kib >= 1024 else f"{kib} KiB"
