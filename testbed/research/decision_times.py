# SPDX-License-Identifier: Apache-2.0
"""`paralet bench systems`: how decision times of vClos, OCS-vClos and TopologyFinder grow from 512 to 2,048 GPUs.

All times are in seconds of one thread. The peer is the smaller cluster.

Placement: jobs arrive at an empty cluster with servers of 8 GPUs. Job sizes are powers of two, from 8 GPUs to an
eighth of the cluster. When less than a tenth is idle, or a job cannot be placed, a job chosen at random leaves, which
fragments the cluster. Measured are the arrivals that are not placed under one leaf, including those not placed at all.

Topologies are for servers of 8 GPUs and 4 NICs: a data-parallel job, and a recommendation model with tables on 4
servers, or on 64, whose transfers need matchings. The alternating search is for a recommendation model of 8 tables on
half of the servers, with 4 of their GPUs.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from sdn.isolation import ocs_vclos, vclos
from sdn.isolation.cluster import Cluster
from sdn.isolation.ocs_cluster import OcsCluster
from sdn.topoopt import Demand, data_parallel, dlrm, find_topology
from testbed.bench.frame import Measurement, Result, result
from testbed.progress import Steps
from testbed.research.topoopt.alternate import alternate
from testbed.research.topoopt.estimates import Job
from testbed.training import networks
from testbed.training.hardware import A100
from testbed.training.per_operator import roofline

REPETITIONS = 3
ARRIVALS = 40
GPUS_PER_SERVER = 8
NICS = 4
OCS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """A leaf-spine cluster without oversubscription."""

    leaves: int
    spines: int

    @property
    def gpus(self) -> int:
        return self.leaves * self.spines

    @property
    def servers(self) -> int:
        return self.gpus // GPUS_PER_SERVER


SMALL, LARGE = Size(16, 32), Size(64, 32)


def measure() -> Result:
    """Run every case `REPETITIONS` times."""
    with Steps(REPETITIONS * len(CASES), every_s=3.0) as steps:
        steps.now("measuring")
        measurements = []
        for measurement in run(SMALL, LARGE, REPETITIONS, ARRIVALS):
            measurements.append(measurement)
            steps.now(measurement.metric)
            steps.advance()
    return result("systems", measurements)


def run(small: Size, large: Size, repetitions: int, arrivals: int) -> Iterator[Measurement]:
    """Interleave repetitions of all cases, so that changes of the machine's speed affect all."""
    for seed in range(repetitions):
        for metric, case in CASES.items():
            peer, ours = (case(size, seed, arrivals) for size in (small, large))
            yield Measurement(metric, f"{large.gpus} GPUs", "s", ours, peer, f"{small.gpus} GPUs")


def _placed(cluster: Any, place: Callable[[Any, str, int], Any], size: Size, seed: int, arrivals: int) -> float:
    """The median time of the arrivals that count. `Cluster` and `OcsCluster` share `take` and `release`."""
    rng = np.random.default_rng(seed)
    running: list[Any] = []
    times = []
    jobs = (size.servers // 8).bit_length()
    for _ in range(arrivals):
        if len(cluster.idle) < size.gpus // 10:
            cluster = cluster.release(running.pop(int(rng.integers(len(running)))))
        wanted = GPUS_PER_SERVER << int(rng.integers(jobs))
        start = time.perf_counter()
        found = place(cluster, "job", wanted)
        taken = time.perf_counter() - start
        if found is None:
            cluster = cluster.release(running.pop(int(rng.integers(len(running)))))
        else:
            cluster, running = cluster.take(found), [*running, found]
        if found is None or found.stage > 1:
            times.append(taken)
    return median(times)


def _vclos(size: Size, seed: int, arrivals: int) -> float:
    cluster = Cluster.empty(size.leaves, size.spines, size.spines // GPUS_PER_SERVER, GPUS_PER_SERVER)
    return _placed(cluster, vclos.place, size, seed, arrivals)


def _ocs_vclos(size: Size, seed: int, arrivals: int) -> float:
    cluster = OcsCluster.empty(size.leaves, size.spines, size.spines // GPUS_PER_SERVER, GPUS_PER_SERVER, OCS)
    return _placed(cluster, ocs_vclos.place, size, seed, arrivals)


def _found(demand: Demand) -> float:
    start = time.perf_counter()
    find_topology(demand, NICS)
    return time.perf_counter() - start


def _data_parallel(size: Size, _seed: int, _arrivals: int) -> float:
    return _found(data_parallel(size.servers, 2e9))


def _recommender(tables: int, size: Size, seed: int, _arrivals: int) -> float:
    owners = np.random.default_rng(seed).permutation(size.servers)[:tables].tolist()
    return _found(dlrm(size.servers, owners, 2e9, 8192))


def _alternating(size: Size, _seed: int, _arrivals: int) -> float:
    network, servers, gpus = networks.dlrm(tables=8), size.servers // 2, 4
    job = Job(network, servers, gpus * servers * network.batch, roofline(A100, gpus), gpus, A100.memory_bytes)
    start = time.perf_counter()
    alternate(job, NICS, 100e9, single=False)
    return time.perf_counter() - start


CASES: dict[str, Callable[[Size, int, int], float]] = {
    "vclos.place": _vclos,
    "ocs_vclos.place": _ocs_vclos,
    "find_topology, data-parallel": _data_parallel,
    "find_topology, recommender": partial(_recommender, 4),
    "find_topology, recommender, 64 tables": partial(_recommender, 64),
    "alternating search, half of the servers": _alternating,
}
