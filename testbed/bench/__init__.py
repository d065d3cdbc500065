# SPDX-License-Identifier: Apache-2.0
"""Benchmarks. Each measures a part of paralet and a peer (a reference) in the same run.

To add a benchmark: a module with a function `measure`, and a row in `BENCHES`.
"""

import importlib
from collections.abc import Callable

from testbed.bench.frame import Result, Row

BENCHES = {
    "transport": "testbed.bench.transport",
    "scale": "testbed.bench.scale",
    "plugin": "testbed.bench.plugin",
    "planner": "testbed.bench.planner",
    "fluid": "testbed.bench.fluid",
    "packet": "testbed.bench.packet",
    "path-service": "testbed.bench.path_service",
    "stress": "testbed.bench.stress",
    "systems": "testbed.bench.systems",
    "torch": "testbed.bench.torch",
    "verbs": "testbed.bench.verbs",
    "watch": "testbed.bench.watch",
}
"""The module of every benchmark. It is imported when the benchmark runs, so that none waits for what others import."""


def benchmark(name: str) -> Callable[[], Result]:
    """The function that carries out a benchmark."""
    measure: Callable[[], Result] = importlib.import_module(BENCHES[name]).measure
    return measure


__all__ = ["BENCHES", "Result", "Row", "benchmark"]
