# SPDX-License-Identifier: Apache-2.0
"""Metrics computed from observations. Pure functions without file access."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import zip_longest
from statistics import fmean

from netmodel import PortRef, Topology
from netmodel import uplinks as upwards
from testbed.analysis.flows import RunFlows
from testbed.analysis.observations import RunRecord
from testbed.spec import Experiment

_SHORTEST_INTERVAL_S = 0.05
"""Interval over which a throughput is computed, in seconds."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """A link from a switch to the tier above, named by the lower switch's port."""

    port: PortRef
    spine: str
    rate_bps: int

    @property
    def label(self) -> str:
        """The name of the uplink as reports write it."""
        return f"{self.port.node} to {self.spine}"


@dataclass(frozen=True, slots=True)
class Balance:
    """The evenness of a set of loads. Both are 1 when all loads are equal, or all zero.

    `max_over_mean`: the most loaded over the average, which is how much longer the most loaded link takes.
    `jain`: (sum x)**2 / (n sum x**2), between 1 / n and 1 (Jain, Chiu and Hawe, DEC-TR-301, 1984).
    """

    max_over_mean: float
    jain: float


@dataclass(frozen=True, eq=False)
class PolicyResult:
    """All runs of one policy, in the order of their seeds."""

    name: str
    service: bool
    """The path service planned its paths."""
    m: int
    flows: tuple[RunFlows, ...]
    """The flows of each run."""

    @property
    def runs(self) -> list[RunRecord]:
        """The record of each run."""
        return [flows.run for flows in self.flows]

    @property
    def completions_s(self) -> list[float]:
        """The completion time of each run in seconds, by seed."""
        return [run.completion_s for run in self.runs]

    @property
    def mean_s(self) -> float:
        """The mean of the completion times of all runs, in seconds."""
        return fmean(self.completions_s)

    @property
    def worst_s(self) -> float:
        """The longest completion time of any run, in seconds."""
        return max(self.completions_s)

    @property
    def verified(self) -> bool:
        """Whether every byte of every run matched the expected data."""
        return all(run.wrong_bytes == 0 for run in self.runs)

    @cached_property
    def retransmits(self) -> int:
        """Retransmitted packets of all runs, ranks and lanes."""
        return sum(entry.lane.retransmits for run in self.runs for entry in run.lanes)


def by_policy(experiment: Experiment, runs: Sequence[RunFlows]) -> list[PolicyResult]:
    """The runs, sorted by policy as the spec lists them."""
    return [
        PolicyResult(
            policy.name,
            policy.needs_service,
            policy.m,
            tuple(run_flows for run_flows in runs if run_flows.run.policy == policy.name),
        )
        for policy in experiment.spec.policies
    ]


@lru_cache(maxsize=8)
def uplinks(topology: Topology) -> tuple[Uplink, ...]:
    """All links from a switch to the tier above, by switch, then by port; without any, those to hosts' first NICs.

    Leaves that circuits join directly have such links to each other.

    On a direct-connect fabric they are the links by which circuits end at hosts, of all NICs.
    """
    leaves = {switch.name for switch in topology.switches if switch.role == "leaf"}
    between = (end for link in topology.links if {link.a.node, link.b.node} <= leaves for end in (link.a, link.b))
    found = [
        Uplink(port, topology.peer(port).node, topology.link_at(port).rate_bps)
        for port in (*upwards(topology), *between)
    ]
    if not found:
        optical = all(switch.role == "ocs" for switch in topology.switches)
        ends = [PortRef(host.name, n + 1) for host in topology.hosts for n in range(len(host.nics) if optical else 1)]
        found = [Uplink(topology.peer(end), end.node, topology.link_at(end).rate_bps) for end in ends]
    order = {switch.name: index for index, switch in enumerate(topology.switches)}
    return tuple(sorted(found, key=lambda uplink: (order[uplink.port.node], uplink.port.port)))


def loads(run: RunRecord, links: Sequence[Uplink]) -> list[int]:
    """Bytes sent over each of `links` during the run, headers included."""
    sent = {load.port: load.tx_bytes for load in run.links}
    return [sent.get(str(link.port), 0) for link in links]


def balance(values: Sequence[float]) -> Balance:
    """The evenness of `values`."""
    total = sum(values)
    if not total:
        return Balance(1.0, 1.0)
    return Balance(max(values) * len(values) / total, total**2 / (len(values) * sum(value**2 for value in values)))


def step_durations_s(run: RunRecord) -> list[float]:
    """Seconds between the ends of successive steps. A step ends with its last transfer on any rank."""
    ends = [max(moments) for moments in zip_longest(*run.step_finished_s, fillvalue=0.0)]  # jobs differ in steps
    return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]


def goodput_bps(run: RunRecord) -> list[tuple[float, float]]:
    """Bits per second that reached hosts, all together and with headers: (middle of the interval, rate).

    Samples that follow closely are left out, because a rate over a few milliseconds shows bursts only.
    """
    points = []
    at_s, count = 0.0, 0
    for sample in run.samples:
        total = sum(sample.tx_bytes.values())
        if sample.at_s >= at_s + _SHORTEST_INTERVAL_S:
            points.append(((at_s + sample.at_s) / 2, 8 * (total - count) / (sample.at_s - at_s)))
            at_s, count = sample.at_s, total
    return points
