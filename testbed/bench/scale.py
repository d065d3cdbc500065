# SPDX-License-Identifier: Apache-2.0
"""`soft` with many lanes and peers: throughput, processor time per byte, memory per idle lane and peer.

A native program measures a hub that sends to its peers: devices in a second process, each on its own loopback address.
Throughput and processor time are compared with the best case of the same run, memory with `MEMORY_LIMIT_BYTES`.
"""

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from testbed.bench.frame import Measurement, Result, result
from testbed.bench.transport import bench_program, run
from testbed.progress import Steps

MEMORY_LIMIT_BYTES = 2048
"""Largest memory of an idle lane to a peer."""


def measure() -> Result:
    """Run the program and compare. Raises InputError when it is not built, TestbedError when it fails."""
    program = bench_program()
    with Steps(None, every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for bench in ("scale", "memory"):
            for measurement in run(program, bench):
                measurements.append(measurement)
                steps.now(f"{measurement.metric} of {measurement.case}")
                steps.advance()
    return result("scale", compared(measurements))


def compared(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Set the peer of each measurement: the median of the best case of its metric; for memory, the limit."""
    out = list(measurements)
    groups: dict[str, dict[str, list[float]]] = {}
    for measurement in out:
        groups.setdefault(measurement.metric, {}).setdefault(measurement.case, []).append(measurement.ours)
    peers = {}
    for metric, cases in groups.items():
        medians = {case: median(values) for case, values in cases.items()}
        best = (max if metric == "throughput" else min)(medians, key=medians.__getitem__)
        peers[metric] = (medians[best], best)
        if metric.startswith("memory"):
            peers[metric] = (MEMORY_LIMIT_BYTES, "limit")
    return [
        replace(measurement, peer=peers[measurement.metric][0], peer_name=peers[measurement.metric][1])
        for measurement in out
    ]
