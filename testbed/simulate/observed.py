# SPDX-License-Identifier: Apache-2.0
"""Modelled runs told like emulated ones: what the fluid and the packet fabric share. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from netmodel import PortRef
from sim.links import Links
from testbed.analysis.observations import HappenedEvent, JobRecord, LinkLoad, PairFlow, RankLane, RunRecord, Sample
from testbed.plan.demands import Pair, bytes_by_pair
from testbed.spec import LARGEST_HEADERS_BYTES, Experiment, Policy
from testbed.workloads import Transfer

HEADER_BYTES = 14 + 20 + 8 + 12 + 4
"""What every packet has beside its payload, as links count it: Ethernet, IPv4, UDP, BTH, ICRC."""

ACK_BYTES = HEADER_BYTES + 4
"""A packet's acknowledgement (AETH). A fluid sends it along with its packet: others' data go the other way."""

SAMPLES = 60
"""Readings of the links in the ideal time."""

_PATH_MTUS = (4096, 2048, 1024, 512, 256)

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Course:
    """Jobs that ran at once. Times are from their start."""

    transfers: Sequence[Transfer]
    delivered_s: _Floats
    link_bits: _Floats
    samples: list[tuple[float, _Floats]]
    """When, and bits by link."""
    happened: list[HappenedEvent]


def packet_bytes(experiment: Experiment) -> int:
    """Payload of a full packet: the spec's, or the largest that fits the topology's MTU, as the engine has it."""
    fitting = (size for size in _PATH_MTUS if size + LARGEST_HEADERS_BYTES <= experiment.topology.mtu_bytes)
    return experiment.spec.path_mtu or next(fitting, _PATH_MTUS[-1])


def record(
    experiment: Experiment,
    policy: Policy,
    seed: int,
    links: Links,
    courses: Sequence[Course],
    lanes: list[RankLane],
    loads: Sequence[LinkLoad],
) -> RunRecord:
    """What an emulated run would have told. `loads` of all links; those that leave by a switch are kept."""
    arrival: dict[Pair, float] = {}
    finished = [0.0] * experiment.ranks
    by_step: list[dict[int, float]] = [{} for _ in range(experiment.ranks)]
    for course in courses:
        for transfer, moment in zip(course.transfers, course.delivered_s.tolist(), strict=True):
            pair = transfer.src, transfer.dst
            arrival[pair] = max(arrival.get(pair, 0.0), moment)
            for rank in pair:
                by_step[rank][transfer.step] = max(by_step[rank].get(transfer.step, 0.0), moment)
                finished[rank] = max(finished[rank], moment)
    demands = bytes_by_pair(experiment.transfers(seed), experiment.spec.workload.item_bytes)
    jobs = [
        JobRecord(name=job.name, ranks=job.size, completion_s=max(finished[rank] for rank in job.ranks))
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
        lanes=lanes,
        discards={},
        overruns=0,
        links=[
            load
            for port, load in sorted(zip(links.ports, loads, strict=True), key=lambda pair: pair[0])
            if not experiment.topology.has_host(port.node)
        ],
        samples=_samples(experiment, links, courses),
        seen=[],
        jobs=jobs,
        events=[event for course in courses for event in course.happened],
    )


def _running(by_step: dict[int, float]) -> list[float]:
    """When each step was over, from the first to the last; steps without anything count as the one before."""
    moments = [by_step.get(step, 0.0) for step in range(1 + max(by_step, default=-1))]
    return np.maximum.accumulate(moments).tolist() if moments else []


def _samples(experiment: Experiment, links: Links, courses: Sequence[Course]) -> list[Sample]:
    """What had left towards each host; jobs that ran one after the other are put end to end."""
    hosts = dict.fromkeys(experiment.hosts)
    watched = [experiment.topology.peer(PortRef(host, experiment.nic + 1)) for host in hosts]
    columns = [links.number(port) for port in watched]
    found, base_s, base = [], 0.0, Counter[int]()
    for course in courses:
        for at_s, bits in course.samples:
            counts = [round(base[column] + bits[column] / 8) for column in columns]
            found.append(Sample(at_s=base_s + at_s, tx_bytes={str(p): n for p, n in zip(watched, counts, strict=True)}))
        base_s += float(course.delivered_s.max(initial=0.0))
        base.update({column: round(course.link_bits[column] / 8) for column in columns})
    return found
