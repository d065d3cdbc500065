# SPDX-License-Identifier: Apache-2.0
"""What a replay of a simulated cluster does on an emulated fabric: where and when each job runs, on which links. Pure.

The simulation decides placement, starts, reservations and paths. A GPU becomes a host with one NIC. Where a strategy
reserves links on a leaf-spine of Open vSwitch, switches isolate jobs (`sdn.isolation.virtual_clos`). Elsewhere source
ports are pinned, so that each flow takes the path that it has in the simulation.
"""

from collections.abc import Iterator, Mapping
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from netmodel import ENTROPY_PORTS, EcmpHash, Forwarding, PortRef, Topology, clos, leaf_spine, paths_of_ports
from sdn.isolation.cluster import Allocation
from sdn.isolation.idle_gpus import Gpu
from sim.cluster import (
    AnyAllocation,
    FlowPaths,
    Job,
    NetworkName,
    QueueName,
    Result,
    Shape,
    TraceError,
    simulate,
    steps_of,
)
from testbed.errors import InputError, sentence_of
from testbed.spec.cluster import ClusterSpec, ReplayFabric, ReplaySection, Strategy
from testbed.workloads.cluster_job import ClusterJob

PATH_MTU_BYTES = 4096
_HEADERS_BYTES = 58
"""Ethernet, IPv4, UDP, BTH and ICRC of a packet in the middle of a message."""

_NO_PACKETS: Mapping[NetworkName, str] = {
    "ideal": "has no links",
    "replanned": "moves flows while they send",
}
_ITEM_BYTES = 8
_SEED = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReplayJob(_Model):
    """One job. Times are in seconds of the replay, from its beginning."""

    name: str
    hosts: list[str]
    """The host of each rank."""
    uplinks: list[str]
    """The leaf ports of its links, where links are reserved."""
    start_s: float
    """The earliest time, in seconds from the start of the replay, at which the job may start."""
    after: list[int]
    """Earlier jobs of this strategy, by place, that have some of its hosts or links and must have ended."""
    paths: dict[int, dict[int, list[list[str]]]]
    """By source and destination rank: the path of each lane, as the ports by which it leaves nodes, where paths are
    pinned."""
    workload: ClusterJob


class ReplayStrategy(_Model):
    """The jobs under one strategy, by their simulated starts. `isolated`: switches isolate them."""

    name: str
    isolated: bool
    lanes: int
    jobs: list[ReplayJob]


class ReplayPlan(_Model):
    """A replay of every strategy, one after the other, on one fabric."""

    fabric: ReplayFabric
    shape: Shape
    rate_bps: int
    strategies: list[ReplayStrategy]

    @property
    def topology(self) -> Topology:
        """The fabric, with a host for every GPU."""
        own = self.shape
        if own.pods == 1:
            return leaf_spine(own.leaves, own.spines, own.gpus_per_leaf, self.rate_bps)
        return clos(own.pods, own.leaves_per_pod, own.spines, own.cores, own.gpus_per_leaf, self.rate_bps)

    @property
    def hosts(self) -> list[str]:
        """The hosts of all jobs."""
        used = {host for strategy in self.strategies for job in strategy.jobs for host in job.hosts}
        return [host.name for host in self.topology.hosts if host.name in used]


def plan_replay(spec: ClusterSpec) -> tuple[ReplayPlan, dict[str, Result]]:
    """The replay of a spec's first seed, and what the simulation says, by strategy.

    Jobs that the simulation refuses, or that wait for ever in it, are left out. Raises InputError for a spec without
    `replay`, for a strategy that cannot be replayed, and for a trace that cannot be read.
    """
    if spec.replay is None:
        raise InputError("a replay needs the key `replay` in the spec, with a speedup; see docs/cluster.md")
    try:
        jobs = spec.jobs(_SEED)
    except TraceError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    shape = spec.cluster.shape
    if shape.planes > 1:
        raise InputError("a replay has one NIC for each GPU, so one plane: leave out planes")
    empty = ReplayPlan(fabric=spec.replay.fabric, shape=shape, rate_bps=spec.replay.rate, strategies=[])
    made, results = [], {}
    for strategy in spec.strategies:
        _check(strategy, strategy.queue or spec.queue)
        starts: dict[int, tuple[AnyAllocation, FlowPaths | None]] = {}

        def started(number: int, allocation: AnyAllocation, paths: FlowPaths | None) -> None:
            starts[number] = (allocation, paths)  # noqa: B023  # called within this iteration only

        results[strategy.name] = simulate(jobs, spec.scenario(strategy, _SEED), started=started)
        made.append(_strategy(strategy, spec, results[strategy.name], starts))
    return empty.model_copy(update={"strategies": made}), results


def _check(strategy: Strategy, queue: QueueName) -> None:
    reason = _NO_PACKETS.get(strategy.network)
    if queue == "las":
        raise InputError(f"strategy {strategy.name!r} cannot be replayed: queue las preempts jobs; take another")
    if strategy.placement == "ocs_vclos":
        reason = "needs optical switches between leaves and spines"
    if reason is not None:
        can = ", ".join(name for name in get_args(NetworkName) if name not in _NO_PACKETS)
        raise InputError(
            f"strategy {strategy.name!r} cannot be replayed: {strategy.placement} with {strategy.network} {reason}; "
            f"these networks can be: {can}"
        )


def _strategy(
    strategy: Strategy,
    spec: ClusterSpec,
    result: Result,
    starts: Mapping[int, tuple[AnyAllocation, FlowPaths | None]],
) -> ReplayStrategy:
    assert spec.replay is not None  # checked by the caller
    shape = spec.cluster.shape
    isolated = strategy.network == "reserved" and spec.replay.fabric == "mininet" and shape.pods == 1
    lanes = strategy.lanes if strategy.network == "paralet" else 1
    made: list[ReplayJob] = []
    held: list[set[str]] = []
    begun = {number: outcome.start_s for number, outcome in enumerate(result.outcomes) if outcome.start_s is not None}
    for number in sorted(
        (number for number in begun if result.outcomes[number].state == "ended"), key=begun.__getitem__
    ):
        job, (allocation, paths) = result.outcomes[number].job, starts[number]
        assert isinstance(allocation, Allocation)  # by _check
        every = [_host(shape, gpu) for gpu in allocation.gpus]
        uplinks = [str(_uplink(shape, leaf, spine)) for leaf, spine in sorted(allocation.links)]
        own = {*every, *uplinks, *map(str, allocation.core_links)}
        made.append(
            ReplayJob(
                name=job.name,
                hosts=every[: job.gpus],
                uplinks=uplinks,
                start_s=begun[number] / spec.replay.speedup,
                after=[place for place, others in enumerate(held) if own & others],
                paths={} if isolated or paths is None else _paths(shape, job, allocation, paths),
                workload=_workload(job, shape, spec.replay, spec.rounds),
            )
        )
        held.append(own)
    return ReplayStrategy(name=strategy.name, isolated=isolated, lanes=lanes, jobs=made)


def _host(shape: Shape, gpu: Gpu) -> str:
    return f"h{(gpu.leaf * shape.servers_per_leaf + gpu.server) * shape.gpus_per_server + gpu.number + 1}"


def _uplink(shape: Shape, leaf: int, spine: int) -> PortRef:
    """A leaf's port to a spine or to an agg of its pod, by their numbers from 0."""
    return PortRef(f"leaf{leaf + 1}", shape.gpus_per_leaf + spine + 1)


def _workload(job: Job, shape: Shape, replay: ReplaySection, rounds: int) -> ClusterJob:
    """The job's computation and steps, such that it lasts `run_s / speedup` at the full rate of its NICs."""
    steps = steps_of(job.pattern, job.gpus, shape.gpus_per_server)
    run_s = job.run_s / replay.speedup
    payload = PATH_MTU_BYTES / (PATH_MTU_BYTES + _HEADERS_BYTES)
    sent = run_s * job.communication * replay.rate / 8 * payload if job.gpus > 1 else 0.0
    computed_s = run_s * (1 - job.communication) if job.gpus > 1 else run_s
    return ClusterJob(
        bytes=max(1, round(sent / _ITEM_BYTES)) * _ITEM_BYTES,
        rounds=rounds,
        compute_s=computed_s / rounds,
        shares=steps.shares.tolist(),
        destinations=steps.destinations.tolist(),
    )


def _paths(shape: Shape, job: Job, allocation: Allocation, paths: FlowPaths) -> dict[int, dict[int, list[list[str]]]]:
    """The path of every lane in the simulation, as `ReplayJob.paths` has it.

    Acknowledgements return over the links of their data, backwards, where the ranks send nothing else that way.
    """
    destinations = steps_of(job.pattern, job.gpus, shape.gpus_per_server).destinations
    leaves: NDArray[np.intp] = np.array([gpu.leaf for gpu in allocation.gpus[: job.gpus]])
    steps, sources = np.nonzero(leaves != leaves[destinations])  # in the order of `FlowPaths`
    pairs = zip(sources.tolist(), destinations[steps, sources].tolist(), strict=True)
    found: dict[int, dict[int, list[list[str]]]] = {}
    for (src, dst), lanes in [*zip(pairs, paths.links.tolist(), strict=True)]:
        ways = [(links[0] % shape.spines, links[2] % shape.cores if shape.cores else 0) for links in lanes]
        ends = allocation.gpus[src], allocation.gpus[dst]
        found.setdefault(src, {})[dst] = [_path(shape, *ends, *way) for way in ways]
        if src not in found.get(dst, {}) and not (destinations[:, dst] == src).any():
            found.setdefault(dst, {})[src] = [_path(shape, *ends[::-1], *way) for way in ways]
    return found


def _path(shape: Shape, src: Gpu, dst: Gpu, spine: int, core: int) -> list[str]:
    """The ports, by name, of the path between GPUs of two leaves by a spine, or an agg and between pods a core."""

    def ports() -> Iterator[PortRef]:
        yield PortRef(_host(shape, src), 1)
        yield _uplink(shape, src.leaf, spine)
        pod, (far_pod, far_leaf) = src.leaf // shape.leaves_per_pod, divmod(dst.leaf, shape.leaves_per_pod)
        if pod != far_pod:
            yield PortRef(f"agg{pod * shape.spines + spine + 1}", shape.leaves_per_pod + core + 1)
            yield PortRef(f"core{spine * shape.cores + core + 1}", far_pod + 1)
        above = f"spine{spine + 1}" if shape.pods == 1 else f"agg{far_pod * shape.spines + spine + 1}"
        yield PortRef(above, far_leaf + 1)
        yield PortRef(f"leaf{dst.leaf + 1}", dst.server * shape.gpus_per_server + dst.number + 1)

    return [str(port) for port in ports()]


def ports_of(
    job: ReplayJob, topology: Topology, ecmp_hash: EcmpHash, routes: Forwarding | None
) -> dict[int, dict[int, list[int]]]:
    """By source and destination rank: a source port for each lane, such that it takes its path.

    `routes` are those of the switches, by default `netmodel.forwarding`. Raises InputError for a path that no port
    takes.
    """
    rng = np.random.default_rng(_SEED)
    tables: dict[int, dict[int, list[int]]] = {}
    for src, table in job.paths.items():
        for dst, lanes in table.items():
            ends = job.hosts[src], job.hosts[dst]
            paths, index = paths_of_ports(topology, *ends, ecmp_hash, routes=routes)
            number = {tuple(map(str, path)): place for place, path in enumerate(paths)}
            for lane in lanes:
                ports = np.flatnonzero(index == number[tuple(lane)])
                if not ports.size:
                    raise InputError(f"no source port from {ends[0]} to {ends[1]} takes the path {', '.join(lane)}")
                tables.setdefault(src, {}).setdefault(dst, []).append(ENTROPY_PORTS.start + int(rng.choice(ports)))
    return tables
