# SPDX-License-Identifier: Apache-2.0
"""Benchmarks. Each measures a part of paralet and a peer (a reference) in the same run.

To add a benchmark, add its function to `BENCHES`.
"""

from collections.abc import Callable

from testbed.bench import (
    fluid,
    packet,
    path_service,
    planner,
    plugin,
    scale,
    stress,
    systems,
    torch,
    transport,
    verbs,
    watch,
)
from testbed.bench.frame import Result, Row

BENCHES: dict[str, Callable[[], Result]] = {
    "transport": transport.measure,
    "scale": scale.measure,
    "plugin": plugin.measure,
    "planner": planner.measure,
    "fluid": fluid.measure,
    "packet": packet.measure,
    "path-service": path_service.measure,
    "stress": stress.measure,
    "systems": systems.measure,
    "torch": torch.measure,
    "verbs": verbs.measure,
    "watch": watch.measure,
}

__all__ = ["BENCHES", "Result", "Row"]
