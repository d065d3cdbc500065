# SPDX-License-Identifier: Apache-2.0
"""Speed of the fluid simulator, compared with its design limits. Times are wall clock of one thread.

A case begins with building the topology and ends with the last delivery. It includes the paths, from the switches' hash
or from a planner, and the exact rates of all flows each time a flow begins or ends.
"""

import resource
import time
from collections.abc import Callable, Iterator

import numpy as np

from netmodel import leaf_spine
from sdn.planners import PLANNERS, Clos
from sim.fluid import Messages, Simulation
from sim.links import Links
from sim.paths import Paths
from testbed.bench.frame import Measurement, Result, result
from testbed.bench.rings import ring_paths
from testbed.progress import Steps
from testbed.simulate.phases import Planner
from testbed.simulate.training import placed, train
from testbed.workloads.training_models import BLOOM, GPT3, LLAMA2

REPETITIONS = 3
RATE_BPS = 100_000_000_000
SHARE_BYTES = 100_000_000
"""Bytes that each host sends in a step."""

JOBS = ((BLOOM, 8), (GPT3, 8), (LLAMA2, 4), (LLAMA2, 2), (BLOOM, 8))
"""Training models with their numbers of data-parallel copies: 2,048 NICs in total."""


def measure() -> Result:
    """Run every case. Long cases run once."""
    with Steps(None, every_s=3.0) as steps:
        measurements = []
        for measurement in run(REPETITIONS, largest=True):
            measurements.append(measurement)
            steps.now(f"{measurement.metric} of {measurement.case}: {measurement.ours:.3g} {measurement.unit}")
        return result("fluid", measurements)


def run(repetitions: int, *, largest: bool) -> Iterator[Measurement]:
    """Interleave repetitions of the cases, so that changes of the machine's speed affect all. Long cases run once."""
    for seed in range(repetitions):
        case = "ring snapshot, 1,024 hosts, m = 32"
        yield Measurement("time", case, "s", _seconds(step, 32, 32, 32, 32, seed), 2.0, "limit")
        for name, planner in PLANNERS.items():
            case = f"5 jobs on 2,048 NICs, 11 iterations, {name}"
            yield Measurement("time", case, "s", _seconds(training, planner, seed), 2.0, "limit")
    if largest:
        case = "all-reduce step, 65,536 hosts, m = 8"
        yield Measurement("time", case, "s", _seconds(step, 512, 128, 128, 8, 0), 60.0, "limit")
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        yield Measurement("peak memory", case, "GB", peak_gb, 8.0, "limit")


def step(leaves: int, spines: int, hosts_per_leaf: int, lanes: int, seed: int) -> Simulation:
    """Simulate one step of a ring all-reduce of randomly placed ranks."""
    links = Links(leaf_spine(leaves, spines, hosts_per_leaf, RATE_BPS))
    paths = ring_paths(links, lanes, seed)
    simulation = Simulation(links.rate_bps)
    simulation.add_channels(Paths.of(paths))
    simulation.add_messages(Messages(np.arange(len(paths)), 8.0 * SHARE_BYTES))
    simulation.advance()
    return simulation


def training(planner: Planner, seed: int) -> Simulation:
    """The evaluation of Cohen et al. (section 5): 64 ToRs x 32 spines x 32 NICs, with a new plan for every phase."""
    fabric = Clos.of(64, 32, 32, float(RATE_BPS))
    return train(fabric, placed(JOBS, fabric.nics, 2.0, seed), 11, planner).simulation


def _seconds(work: Callable[..., Simulation], *arguments: object) -> float:
    start = time.perf_counter()
    simulation = work(*arguments)
    elapsed = time.perf_counter() - start
    assert simulation.undelivered == 0
    return elapsed
