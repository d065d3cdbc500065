# SPDX-License-Identifier: Apache-2.0
"""Experiments on hosts with several networks: scheduled and counted bytes of each switch. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from netmodel import PortRef
from testbed.allocation.demands import bytes_by_pair
from testbed.analysis.observations import RunRecord
from testbed.spec import Experiment


@dataclass(frozen=True, slots=True)
class Carried:
    """Bytes of a run that left a switch, to hosts and to other switches: payload as the schedule has it, and counted.

    Counted bytes have headers, acknowledgements and whatever was sent again.
    """

    switch: str
    due_to_hosts: float
    to_hosts: float
    due_onward: float
    onward: float


def carried(experiment: Experiment, runs: Sequence[RunRecord]) -> list[Carried]:
    """Means over `runs` for every switch with hosts, in the topology's order."""
    topology = experiment.topology
    homes = {
        end: topology.peer(end).node
        for host in topology.hosts
        for end in (PortRef(host.name, nic + 1) for nic in range(len(host.nics)))
    }
    due = [_due(experiment, run.seed, homes) for run in runs]
    counted = [_counted(experiment, run) for run in runs]
    return [
        Carried(
            switch.name,
            fmean(each[switch.name, True] for each in due),
            fmean(each[switch.name, True] for each in counted),
            fmean(each[switch.name, False] for each in due),
            fmean(each[switch.name, False] for each in counted),
        )
        for switch in topology.switches
        if switch.name in homes.values()
    ]


def _due(experiment: Experiment, seed: int, homes: dict[PortRef, str]) -> Counter[tuple[str, bool]]:
    """Payload bytes by switch and by whether the next hop is a host."""
    placed = experiment.at(seed)
    sums: Counter[tuple[str, bool]] = Counter()
    demands = bytes_by_pair(placed.transfers(seed), experiment.spec.workload.item_bytes)
    for (src, dst), count in demands.items():
        port = placed.nic_between(src, dst) + 1
        near, far = (homes[PortRef(placed.hosts[rank], port)] for rank in (src, dst))
        sums[far, True] += count
        if near != far:
            sums[near, False] += count
    return sums


def _counted(experiment: Experiment, run: RunRecord) -> Counter[tuple[str, bool]]:
    """Bytes by switch and by whether the next hop is a host."""
    topology = experiment.topology
    sums: Counter[tuple[str, bool]] = Counter()
    for load in run.links:
        port = PortRef.parse(load.port)
        sums[port.node, topology.has_host(topology.peer(port).node)] += load.tx_bytes
    return sums
