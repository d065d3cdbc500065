# SPDX-License-Identifier: Apache-2.0
"""What a replay of a simulated cluster does on an emulated fabric: where and when each job runs, on which links. Pure.

The simulation decides placement, starts, reservations and paths. A GPU becomes a host with one NIC. Where a strategy
reserves links, switches isolate jobs (`sdn.isolation.virtual_clos`). Elsewhere source ports are pinned, so that each
flow takes the spine that it has in the simulation.
"""

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from netmodel import OvsHash, Path, PortRef, Topology, equal_cost_paths, leaf_spine, ports_for_path
from sdn.isolation.cluster import Allocation
from sdn.isolation.source_routing import uplink_ports
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
from testbed.spec.cluster import ClusterSpec, ReplaySection, Strategy
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
    ports: dict[int, dict[int, list[int]]]
    """By source and destination rank: the UDP source port of each lane, where ports are pinned."""
    workload: ClusterJob


class ReplayStrategy(_Model):
    """The jobs under one strategy, by their simulated starts. `isolated`: switches isolate them."""

    name: str
    isolated: bool
    lanes: int
    jobs: list[ReplayJob]


class ReplayPlan(_Model):
    """A replay of every strategy, one after the other, on one leaf-spine."""

    leaves: int
    spines: int
    hosts_per_leaf: int
    rate_bps: int
    strategies: list[ReplayStrategy]

    @property
    def topology(self) -> Topology:
        """The fabric."""
        return leaf_spine(self.leaves, self.spines, self.hosts_per_leaf, self.rate_bps)

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
    if shape.pods > 1 or shape.planes > 1:
        raise InputError("a replay has a leaf-spine of one plane: leave out clos, fat_tree and planes")
    empty = ReplayPlan(
        leaves=shape.leaves,
        spines=shape.spines,
        hosts_per_leaf=shape.servers_per_leaf * shape.gpus_per_server,
        rate_bps=spec.replay.rate,
        strategies=[],
    )
    made, results = [], {}
    for strategy in spec.strategies:
        _check(strategy, strategy.queue or spec.queue)
        starts: dict[int, tuple[AnyAllocation, FlowPaths | None]] = {}

        def started(number: int, allocation: AnyAllocation, paths: FlowPaths | None) -> None:
            starts[number] = (allocation, paths)  # noqa: B023  # called within this iteration only

        results[strategy.name] = simulate(jobs, spec.scenario(strategy, _SEED), started=started)
        made.append(_strategy(strategy, spec, empty.topology, results[strategy.name], starts))
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
    topology: Topology,
    result: Result,
    starts: Mapping[int, tuple[AnyAllocation, FlowPaths | None]],
) -> ReplayStrategy:
    assert spec.replay is not None  # checked by the caller
    isolated = strategy.network == "reserved"
    lanes = strategy.lanes if strategy.network == "paralet" else 1
    shape = spec.cluster.shape
    made: list[ReplayJob] = []
    held: list[set[str]] = []
    begun = {number: outcome.start_s for number, outcome in enumerate(result.outcomes) if outcome.start_s is not None}
    for number in sorted(
        (number for number in begun if result.outcomes[number].state == "ended"), key=begun.__getitem__
    ):
        job, (allocation, paths) = result.outcomes[number].job, starts[number]
        assert isinstance(allocation, Allocation)  # by _check
        every = [_host(shape, gpu) for gpu in allocation.gpus]
        hosts = every[: job.gpus]
        uplinks = _uplinks(topology, allocation)
        own = {*every, *map(str, uplinks)}
        pinned = {} if isolated or paths is None else _ports(topology, shape, job, allocation, hosts, paths)
        made.append(
            ReplayJob(
                name=job.name,
                hosts=hosts,
                uplinks=[str(port) for port in uplinks],
                start_s=begun[number] / spec.replay.speedup,
                after=[place for place, others in enumerate(held) if own & others],
                ports=pinned,
                workload=_workload(job, shape, spec.replay, spec.rounds),
            )
        )
        held.append(own)
    return ReplayStrategy(name=strategy.name, isolated=isolated, lanes=lanes, jobs=made)


def _host(shape: Shape, gpu: tuple[int, int, int]) -> str:
    leaf, server, number = gpu
    return f"h{(leaf * shape.servers_per_leaf + server) * shape.gpus_per_server + number + 1}"


def _uplinks(topology: Topology, allocation: Allocation) -> list[PortRef]:
    """The leaf ports of an allocation's links."""
    ports = list(uplink_ports(topology).items())
    return sorted(PortRef(ports[leaf][0], ports[leaf][1][spine]) for leaf, spine in allocation.links)


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


def _ports(
    topology: Topology, shape: Shape, job: Job, allocation: Allocation, hosts: Sequence[str], paths: FlowPaths
) -> dict[int, dict[int, list[int]]]:
    """Source ports by which every lane takes the spine that it has in the simulation.

    Acknowledgements return over the links of their data, backwards, where the ranks send nothing else that way.
    """
    destinations = steps_of(job.pattern, job.gpus, shape.gpus_per_server).destinations
    leaves: NDArray[np.intp] = np.array([gpu.leaf for gpu in allocation.gpus[: job.gpus]])
    steps, sources = np.nonzero(leaves != leaves[destinations])  # in the order of `FlowPaths`
    pairs = zip(sources.tolist(), destinations[steps, sources].tolist(), strict=True)
    spines = (paths.links[:, :, 0] % shape.spines).tolist()
    rng = np.random.default_rng(_SEED)

    def ports(src: int, dst: int, through: Sequence[int]) -> list[int]:
        ways = {_spine(topology, path): path for path in equal_cost_paths(topology, hosts[src], hosts[dst])}
        return [
            int(rng.choice(ports_for_path(topology, hosts[src], hosts[dst], ways[spine], OvsHash())))
            for spine in through
        ]

    tables: dict[int, dict[int, list[int]]] = {}
    for (src, dst), through in [*zip(pairs, spines, strict=True)]:
        tables.setdefault(src, {})[dst] = ports(src, dst, through)
        if src not in tables.get(dst, {}) and not (destinations[:, dst] == src).any():
            tables.setdefault(dst, {})[src] = ports(dst, src, through)
    return tables


def _spine(topology: Topology, path: Path) -> int:
    """The number, from 0, of the spine on a path between leaves."""
    leaf = path[1]
    return uplink_ports(topology)[leaf.node].index(leaf.port)
