# SPDX-License-Identifier: Apache-2.0
"""Speed of the packet simulator, compared with its design goal.

Times are processor time of one thread in the event loop, because other load would distort wall-clock times.
"""

import time
from collections.abc import Iterator

import numpy as np

from netmodel import leaf_spine
from sim.links import Links
from sim.packet import Options, Simulation
from testbed.bench.frame import Measurement, Result, result
from testbed.bench.rings import ring_paths
from testbed.progress import Steps

REPETITIONS = 3
RATE_BPS = 100_000_000_000
GOAL = 5.0
"""Million events per second."""


def measure() -> Result:
    """Run every case."""
    with Steps(None, every_s=3.0) as steps:
        measurements = []
        for measurement in run(REPETITIONS, 10_000_000):
            measurements.append(measurement)
            steps.now(f"{measurement.metric} of {measurement.case}: {measurement.ours:.3g} {measurement.unit}")
        return result("packet", measurements)


def run(repetitions: int, share_bytes: int) -> Iterator[Measurement]:
    """Measure a ring snapshot of 128 hosts that each send `share_bytes`, with 1 and 32 lanes, `repetitions` times."""
    for seed in range(repetitions):
        for lanes in (1, 32):
            simulation = ring(8, 16, 16, lanes, share_bytes, seed)
            start = time.thread_time()
            simulation.advance()
            elapsed_s = time.thread_time() - start
            case = f"ring snapshot, 128 hosts, m = {lanes}, {simulation.events / 1e6:.0f} million events"
            million = simulation.events / 1e6
            yield Measurement("speed", case, "million events/s", million / elapsed_s, GOAL, "goal")
            yield Measurement("time", case, "s", elapsed_s, million / GOAL, "goal")


def ring(leaves: int, spines: int, hosts_per_leaf: int, lanes: int, share_bytes: int, seed: int) -> Simulation:
    """A simulation of one step of a ring all-reduce of randomly placed ranks, not yet started."""
    links = Links(leaf_spine(leaves, spines, hosts_per_leaf, RATE_BPS))
    paths = ring_paths(links, lanes, seed)
    simulation = Simulation(links, Options(), seed)
    simulation.add_channels(paths, max(1, 32 // lanes) * 4096)
    simulation.add_messages(np.arange(len(paths)), share_bytes)
    return simulation
