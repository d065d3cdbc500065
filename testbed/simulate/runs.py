# SPDX-License-Identifier: Apache-2.0
"""Code shared by both simulated fabrics: the loop over runs, the traffic of a run, and its record.

A record has the same fields as that of an emulated run, so that the same reports and plots are made of both.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from netmodel import PortRef
from sim.links import Links
from testbed.allocation.demands import bytes_by_pair
from testbed.allocation.routes import Pair
from testbed.analysis.kept_runs import Runs
from testbed.analysis.link_history import fabric_ports, history_of
from testbed.analysis.observations import (
    HappenedEvent,
    JobRecord,
    LaneCounters,
    LinkHistory,
    LinkLoad,
    Observations,
    PairFlow,
    RankLane,
    RunRecord,
    Sample,
)
from testbed.progress import Steps
from testbed.simulate.dependencies import Dependencies, dependencies_of
from testbed.simulate.lane_paths import Lanes, lanes_of, routed_pairs
from testbed.spec import LARGEST_ROCE_HEADERS_BYTES, Experiment, Instance, Job, Policy
from testbed.workloads import Transfer

SAMPLES = 60
"""Readings of link counters within the ideal completion time."""

_PATH_MTUS = (4096, 2048, 1024, 512, 256)

_Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.int64]


def header_bytes(experiment: Experiment) -> int:
    """Headers of every packet as links count them: Ethernet, IP, UDP, BTH, ICRC."""
    return 14 + experiment.topology.ip_header_bytes + 8 + 12 + 4


def ack_bytes(experiment: Experiment) -> int:
    """The size of an acknowledgement on a link, in bytes: headers and AETH."""
    return header_bytes(experiment) + 4


def packet_bytes(experiment: Experiment) -> int:
    """Payload of a full packet: the spec's `path_mtu`, or the largest path MTU that fits the topology's MTU."""
    topology = experiment.topology
    room = topology.mtu_bytes - topology.ip_header_bytes - LARGEST_ROCE_HEADERS_BYTES
    fitting = (size for size in _PATH_MTUS if size <= room)
    return experiment.spec.path_mtu or next(fitting, _PATH_MTUS[-1])


def observe_runs(
    experiment: Experiment,
    steps: Steps,
    run: Callable[[Instance, Policy, Links], RunRecord],
    runs: Runs,
) -> Observations:
    """Call `run` for every policy with every seed of which `runs` has none."""
    links = Links(experiment.topology)
    records = []
    for seed in experiment.seeds:
        instance = Instance(experiment, seed)
        for policy in experiment.spec.policies:
            steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
            records.append(runs.get(policy.name, seed, partial(run, instance, policy, links)))
            steps.advance()
    return Observations(runs=records)


def simultaneous_jobs(experiment: Experiment, policy: Policy) -> list[list[Job]]:
    """The jobs of each simulation of a run: each job alone if the policy says so, all together otherwise."""
    return [[job] for job in experiment.jobs] if policy.alone else [list(experiment.jobs)]


@dataclass(frozen=True, eq=False)
class Traffic:
    """The traffic of the jobs of one simulation. There is one channel per pair of ranks and route."""

    jobs: Sequence[Job]
    transfers: Sequence[Transfer]
    pairs: Sequence[Pair]
    """Source and destination rank of each channel."""
    routes: Sequence[int]
    """Which of its pair's routes each channel takes."""
    lanes: Lanes
    channel: _Numbers
    """The channel of each transfer."""
    payload_bytes: _Numbers
    """The size of each transfer in bytes."""
    dependencies: Dependencies

    @classmethod
    def of(cls, instance: Instance, policy: Policy, links: Links, jobs: Sequence[Job]) -> "Traffic":
        """The traffic of these jobs under one policy.

        Jobs whose parts begin and end communication are planned later. Raises InputError.
        """
        ranks = {rank for job in jobs for rank in job.ranks}
        transfers = [transfer for transfer in instance.transfers if transfer.src in ranks]
        pairs, channel = routed_pairs(instance, transfers)
        item_bytes = instance.experiment.spec.workload.item_bytes
        dependencies = dependencies_of(instance.experiment, jobs, transfers)
        return cls(
            jobs=jobs,
            transfers=transfers,
            pairs=[(src, dst) for src, dst, _ in pairs],
            routes=[route for *_, route in pairs],
            lanes=lanes_of(instance, policy, transfers, links, live=bool(dependencies.talks)),
            channel=np.array(channel, dtype=np.int64),
            payload_bytes=np.array([transfer.count * item_bytes for transfer in transfers], dtype=np.int64),
            dependencies=dependencies,
        )


@dataclass(frozen=True, eq=False)
class LaneTotals:
    """The bytes that each lane has sent, by channel and then lane."""

    tx_bytes: Sequence[int]
    tx_packets: Sequence[int]
    flowlets: Sequence[int]
    retransmits: Sequence[int]
    timeouts: Sequence[int]


def rank_lanes(instance: Instance, policy: Policy, traffic: Traffic, totals: LaneTotals) -> list[RankLane]:
    """The lanes of all pairs with what they have sent."""
    method = "ecmp" if policy.kind.steers else policy.policy
    lanes, several = traffic.lanes.ports.shape[1], instance.experiment.several_nics
    return [
        RankLane(
            rank=src,
            lane=LaneCounters(
                peer=instance.address(dst, remote),
                lane=lane,
                port=int(traffic.lanes.ports[channel, lane]),
                port_method=method,
                tx_bytes=int(totals.tx_bytes[channel * lanes + lane]),
                tx_packets=int(totals.tx_packets[channel * lanes + lane]),
                flowlets=int(totals.flowlets[channel * lanes + lane]),
                retransmits=int(totals.retransmits[channel * lanes + lane]),
                timeouts=int(totals.timeouts[channel * lanes + lane]),
                rtt_s=None,
                local=None if local is None else instance.address(src, local),
            ),
        )
        for channel, ((src, dst), route) in enumerate(zip(traffic.pairs, traffic.routes, strict=True))
        for local, remote in [instance.nics_between(src, dst, route) if several else (None, None)]
        for lane in range(lanes)
    ]


@dataclass(frozen=True, eq=False)
class SimulatedJobs:
    """The outcome of one simulation: jobs that ran at once. Times are in seconds from their start."""

    traffic: Traffic
    delivered_s: _Floats
    """When each transfer was delivered, in seconds."""
    computed_s: _Floats
    """When the computation of each gate has ended, in seconds."""
    link_bits: _Floats
    samples: list[tuple[float, _Floats]]
    """Moments in seconds, each with the bits that every link has carried until then."""
    happened: list[HappenedEvent]
    lanes: LaneTotals

    @property
    def end_s(self) -> float:
        """When the last message has arrived and the last computation has ended."""
        return float(np.concatenate([self.delivered_s, self.computed_s]).max(initial=0.0))

    def computed_of(self) -> dict[Job, float]:
        """By job: when its last computation has ended."""
        cuts = np.cumsum(self.traffic.dependencies.gates)[:-1]
        parts = np.split(self.computed_s, cuts)
        return {job: float(part.max(initial=0.0)) for job, part in zip(self.traffic.jobs, parts, strict=True)}


def run_record(
    instance: Instance,
    policy: Policy,
    links: Links,
    simulated: Sequence[SimulatedJobs],
    loads: Sequence[LinkLoad],
) -> RunRecord:
    """The record of a run. `loads` has all links; the record leaves out those of hosts without settings of `links`."""
    experiment, seed = instance.experiment, instance.seed
    arrival: dict[Pair, float] = {}
    finished = [0.0] * experiment.ranks
    computed: dict[Job, float] = {}
    by_step: list[dict[int, float]] = [{} for _ in range(experiment.ranks)]
    for model in simulated:
        computed |= model.computed_of()
        for transfer, moment in zip(model.traffic.transfers, model.delivered_s.tolist(), strict=True):
            pair = transfer.src, transfer.dst
            arrival[pair] = max(arrival.get(pair, 0.0), moment)
            for rank in pair:
                by_step[rank][transfer.step] = max(by_step[rank].get(transfer.step, 0.0), moment)
                finished[rank] = max(finished[rank], moment)
    demands = bytes_by_pair(instance.transfers, experiment.spec.workload.item_bytes)
    jobs = [
        JobRecord(
            name=job.name,
            ranks=job.size,
            completion_s=max(computed[job], *(finished[rank] for rank in job.ranks)),
        )
        for job in experiment.jobs
    ]
    return RunRecord(
        policy=policy.name,
        m=policy.m,
        seed=seed,
        completion_s=max(job.completion_s for job in jobs),
        wrong_bytes=0,
        step_finished_s=[_running(own) for own in by_step],
        flows=[
            PairFlow(src=src, dst=dst, bytes=count, completion_s=arrival[src, dst])
            for (src, dst), count in demands.items()
        ],
        lanes=[lane for model in simulated for lane in rank_lanes(instance, policy, model.traffic, model.lanes)],
        discards={},
        overruns=0,
        links=[
            load
            for port, load in sorted(zip(links.ports, loads, strict=True), key=lambda pair: pair[0])
            if not experiment.topology.has_host(port.node) or str(port) in experiment.spec.set_ports
        ],
        samples=_samples(instance, links, simulated),
        history=_history(experiment, links, simulated) if seed == experiment.seeds[0] else None,
        seen=[],
        jobs=jobs,
        events=[event for model in simulated for event in model.happened],
    )


def _running(by_step: dict[int, float]) -> list[float]:
    """End time of each step; a step without transfers ends with the one before it."""
    moments = [by_step.get(step, 0.0) for step in range(1 + max(by_step, default=-1))]
    return np.maximum.accumulate(moments).tolist() if moments else []


def _samples(instance: Instance, links: Links, simulated: Sequence[SimulatedJobs]) -> list[Sample]:
    """Bytes sent towards each host over time; simulations are put end to end, as jobs that run one after another."""
    experiment = instance.experiment
    topology, any_nic = experiment.topology, any(arrangement.ANY_NIC for arrangement in experiment.arrangements)
    nics = [
        PortRef(host, number)
        for host in instance.hosts
        for number in (range(1, len(topology.host(host).nics) + 1) if any_nic else (experiment.nic + 1,))
    ]
    watched = [topology.peer(port) for port in nics]
    columns = [links.number(port) for port in watched]
    found, base_s, base = [], 0.0, Counter[int]()
    for model in simulated:
        for at_s, bits in model.samples:
            counts = [round(base[column] + bits[column] / 8) for column in columns]
            found.append(Sample(at_s=base_s + at_s, tx_bytes={str(p): n for p, n in zip(watched, counts, strict=True)}))
        base_s += model.end_s
        base.update({column: round(model.link_bits[column] / 8) for column in columns})
    return found


def _history(experiment: Experiment, links: Links, simulated: Sequence[SimulatedJobs]) -> LinkHistory:
    """Loads of the links between switches over time; simulations are put end to end as in `_samples`."""
    ports = fabric_ports(experiment.topology)
    columns = np.array([links.number(port) for port in ports], dtype=np.int64)
    moments, base_s, base = [], 0.0, np.zeros(columns.size)
    for model in simulated:
        moments += [(base_s + at_s, np.rint(base + bits[columns] / 8).astype(np.int64)) for at_s, bits in model.samples]
        base_s += model.end_s
        base = base + model.link_bits[columns] / 8
    return history_of(ports, moments)
