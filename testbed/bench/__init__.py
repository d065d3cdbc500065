# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, each of which measures something of ours and a peer in one run. To add one: a function in `BENCHES`."""

from collections.abc import Callable

from testbed.bench import fluid, packet, path_service, planner, plugin, scale, stress, systems, transport
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
}

__all__ = ["BENCHES", "Result", "Row"]
