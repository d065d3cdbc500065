# SPDX-License-Identifier: Apache-2.0
"""The record of one run, made from agents' reports and readings of the link counters. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from netmodel import Forwarding, PortRef, Topology
from testbed.allocation.demands import bytes_by_pair
from testbed.analysis.link_history import fabric_ports, history_of
from testbed.analysis.observations import (
    HappenedEvent,
    JobRecord,
    LinkHistory,
    LinkLoad,
    LossyLink,
    PairFlow,
    RankLane,
    Repinned,
    RunRecord,
    Sample,
    SeenFlow,
)
from testbed.run import agent_messages as messages
from testbed.run.fabric import Counters, Faults
from testbed.spec import Experiment, Instance, Policy


@dataclass(frozen=True, slots=True)
class Reading:
    """The link counters at one moment, `at_s` seconds after the start of the run."""

    at_s: float
    counters: Mapping[PortRef, Counters]
    overruns: int
    faults: Mapping[PortRef, Faults] = field(default_factory=dict)
    """The fault counters of ports with declared faults or delayed links."""


def record_of(
    instance: Instance,
    policy: Policy,
    started: Mapping[int, float],
    finished: Mapping[int, messages.Finished],
    before: Reading,
    after: Reading,
    readings: Sequence[Reading],
    happened: Sequence[HappenedEvent],
    seen: list[SeenFlow],
) -> RunRecord:
    """The record of a run: what its agents reported, and the link counters before, during and after it.

    `started` has the start of each rank's job, in seconds of the monotonic clock; `finished` has its report.
    """
    experiment, seed = instance.experiment, instance.seed
    demands = bytes_by_pair(instance.transfers, experiment.spec.workload.item_bytes)
    jobs = [
        JobRecord(
            name=job.name,
            ranks=job.size,
            completion_s=max(finished[rank].finished_s - started[rank] for rank in job.ranks),
            losses=finished[job.first].losses,
        )
        for job in experiment.jobs
    ]
    discards: dict[str, int] = {}
    for report in finished.values():
        for reason, count in report.discards.items():
            discards[reason] = discards.get(reason, 0) + count
    counted: Counter[str] = Counter()
    for report in finished.values():
        counted.update(report.path_client)
    watched = host_ports(experiment.topology)
    return RunRecord(
        policy=policy.name,
        m=policy.m,
        seed=seed,
        completion_s=max(job.completion_s for job in jobs),
        wrong_bytes=sum(
            report.wrong_bytes + _wrong_loss_bytes(report.losses, finished[experiment.job_of(rank).first].losses)
            for rank, report in finished.items()
        ),
        step_finished_s=[
            [moment - started[rank] for moment in finished[rank].step_finished_s] for rank in range(experiment.ranks)
        ],
        flows=[
            PairFlow(
                src=src,
                dst=dst,
                bytes=count,
                completion_s=finished[dst].last_arrival_s[src - experiment.job_of(dst).first] - started[dst],
            )
            for (src, dst), count in demands.items()
        ],
        lanes=[RankLane(rank=rank, lane=lane) for rank in sorted(finished) for lane in finished[rank].lanes],
        discards=discards,
        overruns=after.overruns - before.overruns,
        links=[
            _load(
                port,
                last.tx_bytes - before.counters[port].tx_bytes,
                last.tx_packets - before.counters[port].tx_packets,
                last.dropped - before.counters[port].dropped,
                before,
                after,
            )
            for port, last in sorted(after.counters.items())
        ]
        + _of_faulty_hosts(experiment.topology, before, after),
        samples=[
            Sample(
                at_s=reading.at_s,
                tx_bytes={
                    str(port): reading.counters[port].tx_bytes - before.counters[port].tx_bytes for port in watched
                },
            )
            for reading in readings
        ],
        history=_history(experiment, before, readings) if seed == experiment.seeds[0] else None,
        seen=seen,
        jobs=jobs,
        events=list(happened),
        path_clients=dict(counted),
    )


def found_by_service(status: Mapping[str, Any], read_s: float) -> dict[str, Any]:
    """The fields of a record that a path service with measured paths tells by its status.

    It was read `read_s` seconds after the start of the run.
    """
    if not (measured := status.get("measured")):
        return {}
    began_s = status["now_s"] - read_s

    def since_start(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**event, "at_s": event["at_s"] - began_s} for event in events]

    return {
        "repinned": [Repinned(**event) for event in since_start(measured["repinned"])],
        "lossy_links": [LossyLink(**event) for event in since_start(measured["lossy"])],
    }


def next_hops_of(routes: Forwarding) -> dict[str, dict[str, list[int]]]:
    """By switch and address: the members of each group of several, in order."""
    found: dict[str, dict[str, list[int]]] = {}
    for name, groups in routes.groups.items():
        for address, ports in groups.items():
            if len(ports) > 1:
                found.setdefault(name, {})[str(address)] = list(ports)
    return found


def _of_faulty_hosts(topology: Topology, before: Reading, after: Reading) -> list[LinkLoad]:
    """What hosts with declared faults or delayed links sent: as much as came in at their switches."""
    loads = []
    for port in sorted(port for port in after.faults if topology.has_host(port.node)):
        first, last = (reading.counters[topology.peer(port)] for reading in (before, after))
        sent = last.rx_bytes - first.rx_bytes, last.rx_packets - first.rx_packets
        loads.append(_load(port, *sent, 0, before, after))
    return loads


def _load(
    port: PortRef, tx_bytes: int, tx_packets: int, queue_dropped: int, before: Reading, after: Reading
) -> LinkLoad:
    """The load of a port, with the packets that its declared faults concerned."""
    return LinkLoad(
        port=str(port),
        tx_bytes=tx_bytes,
        tx_packets=tx_packets,
        dropped=queue_dropped + _faulty(port, "dropped", before, after),
        lost=_faulty(port, "lost", before, after),
        corrupted=_faulty(port, "corrupted", before, after),
        marked=_faulty(port, "marked", before, after),
        late=_faulty(port, "late", before, after),
    )


def _faulty(port: PortRef, what: str, before: Reading, after: Reading) -> int:
    """The packets of a port that a fault concerned between two readings; 0 without faults."""
    last, first = (getattr(reading.faults[port], what) if port in reading.faults else 0 for reading in (after, before))
    return int(last) - int(first)


def _wrong_loss_bytes(losses: Sequence[float], of_first: Sequence[float]) -> int:
    """Bytes of a rank's losses, if it reports any, that differ from those of its job's first rank."""
    return 8 * sum(loss != other for loss, other in zip_longest(losses, of_first)) if losses else 0


def _history(experiment: Experiment, before: Reading, readings: Sequence[Reading]) -> LinkHistory:
    ports = [port for port in fabric_ports(experiment.topology) if port in before.counters]
    begin = np.array([before.counters[port].tx_bytes for port in ports], dtype=np.int64)
    moments = [
        (reading.at_s, np.array([reading.counters[port].tx_bytes for port in ports], dtype=np.int64) - begin)
        for reading in readings
    ]
    return history_of(ports, moments)


def host_ports(topology: Topology) -> list[PortRef]:
    """The switch ports that hosts are connected to."""
    return [topology.peer(PortRef(host.name, index + 1)) for host in topology.hosts for index in range(len(host.nics))]
