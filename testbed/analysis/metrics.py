# SPDX-License-Identifier: Apache-2.0
"""Metrics computed from observations. Pure functions without file access."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from itertools import zip_longest
from statistics import fmean

import numpy as np
import numpy.typing as npt

from netmodel import ROCE_PORT, Flow, FlowFields, Forwarding, Path, PortRef, Topology, forwarding, path_of
from netmodel.flow import IPPROTO_UDP, Address, address_array
from sdn.openflow.steering import Steering
from sim.links import Links
from sim.paths import hashed_paths
from testbed.analysis.observations import Observations, RunRecord
from testbed.spec import Experiment

_Groups = Mapping[str, Mapping[Address, tuple[int, ...]]]

_SHORTEST_INTERVAL_S = 0.05
"""Interval over which a throughput is computed, in seconds."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """A leaf-to-spine link, named by the leaf's port."""

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


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """All runs of one policy, in the order of their seeds."""

    name: str
    policy: str
    m: int
    runs: tuple[RunRecord, ...]

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

    @property
    def retransmits(self) -> int:
        """Retransmitted packets of all runs, ranks and lanes."""
        return sum(entry.lane.retransmits for run in self.runs for entry in run.lanes)


@dataclass(frozen=True, slots=True)
class FlowCheck:
    """One flow of one run: its predicted and its observed ports at switches with several next hops."""

    policy: str
    seed: int
    flow: Flow
    tx_bytes: int
    predicted: tuple[str, ...]
    observed: tuple[str, ...]

    @property
    def checked(self) -> bool:
        """Whether the flow was observed."""
        return bool(self.observed)

    @property
    def matched(self) -> bool:
        """Whether the flow took the predicted port at every switch."""
        return set(self.predicted) == set(self.observed)


def by_policy(experiment: Experiment, observations: Observations) -> list[PolicyResult]:
    """The runs, sorted by policy as the spec lists them."""
    return [
        PolicyResult(
            policy.name, policy.policy, policy.m, tuple(r for r in observations.runs if r.policy == policy.name)
        )
        for policy in experiment.spec.policies
    ]


def uplinks(topology: Topology) -> list[Uplink]:
    """All leaf-to-spine links, by leaf, then by port; in a fabric without any, the links to hosts' first NICs.

    Leaves that circuits join directly have such links to each other.

    On a direct-connect fabric they are the links by which circuits end at hosts, of all NICs.
    """
    roles = {switch.name: switch.role for switch in topology.switches}
    found = []
    for link in topology.links:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if roles.get(near.node) == "leaf" and roles.get(far.node) in ("leaf", "spine"):
                found.append(Uplink(near, far.node, link.rate_bps))
    if not found:
        optical = all(switch.role == "ocs" for switch in topology.switches)
        ends = [PortRef(host.name, n + 1) for host in topology.hosts for n in range(len(host.nics) if optical else 1)]
        found = [Uplink(topology.peer(end), end.node, topology.link_at(end).rate_bps) for end in ends]
    order = {switch.name: index for index, switch in enumerate(topology.switches)}
    return sorted(found, key=lambda uplink: (order[uplink.port.node], uplink.port.port))


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


@lru_cache(maxsize=1 << 16)
def _address(text: str) -> Address:
    """Parsed once: hosts have many lanes, and parsing took a quarter of the report of a large run."""
    return ip_address(text)


def carried(experiment: Experiment, run: RunRecord) -> dict[Flow, int]:
    """Payload bytes that each flow carried in a run, from the lanes' counters."""
    flows: dict[Flow, int] = {}
    placed = experiment.at(run.seed)
    for entry in run.lanes:
        if entry.lane.tx_bytes:
            peer = _address(entry.lane.peer)
            nic = placed.topology.port_of(peer).port - 1  # flows join NICs of the same index, unless they are relayed
            local = entry.lane.local or placed.address(entry.rank, nic)
            flow = Flow(_address(local), peer, entry.lane.port)
            flows[flow] = flows.get(flow, 0) + entry.lane.tx_bytes
    return flows


def check_flows(experiment: Experiment, observations: Observations) -> list[FlowCheck]:
    """Every RoCEv2 flow, run by run, with its predicted and its observed way.

    Those are the flows that carried payload, by the lanes' counters, and whatever else the datapath saw for the first
    time in the run: acknowledgements, and ports that a lane of policy `adaptive` has left again. With events that cut
    links nothing is compared.
    """
    ways: dict[Flow, list[str]] = {}
    steering: Steering | None = None
    checks = []
    links_died = any(event.cut for event in experiment.spec.events)  # flows went otherwise meanwhile
    groups = forwarding(experiment.topology).groups
    for run in observations.runs:
        placed = experiment.at(run.seed)
        if (steered := placed.steering(run.policy)) is not None or steering is not None:
            ways = {}  # the datapath's table has been emptied
        steering, routes = steered, placed.routes(run.policy)
        flows = carried(experiment, run)
        for seen in () if links_died else run.seen:
            flow = Flow(_address(seen.src), _address(seen.dst), seen.src_port, seen.dst_port)
            ways.setdefault(flow, []).extend(seen.ports)
            if flow.dst_port == ROCE_PORT:
                flows.setdefault(flow, 0)
        paths = predicted_paths(placed, flows, routes)
        checks += [
            FlowCheck(
                policy=run.policy,
                seed=run.seed,
                flow=flow,
                tx_bytes=count,
                predicted=() if experiment.layouts else _choices(groups, flow, paths[flow]),
                observed=tuple(ways.get(flow, ())),
            )
            for flow, count in flows.items()
        ]
    return checks


def predicted_loads(experiment: Experiment, run: RunRecord, links: Sequence[Uplink]) -> list[int]:
    """Predicted payload bytes over each of `links`: every flow's bytes along its predicted path."""
    placed = experiment.at(run.seed)
    routes = placed.routes(run.policy)
    flows = carried(experiment, run)
    if not _hashed(placed, flows, routes):
        sums: Counter[PortRef] = Counter()
        for flow, path in predicted_paths(placed, flows, routes).items():
            for port in path:
                sums[port] += flows[flow]
        return [sums[link.port] for link in links]
    numbers, rows = _hashed_rows(placed, flows, routes)
    taken = rows >= 0
    sizes = np.broadcast_to(np.fromiter(flows.values(), dtype=np.int64, count=len(flows))[:, None], rows.shape)
    loads = np.zeros(len(numbers), dtype=np.int64)
    np.add.at(loads, rows[taken], sizes[taken])
    return [int(loads[numbers.number(link.port)]) for link in links]


def predicted_choices(experiment: Experiment, flow: Flow, routes: Forwarding) -> tuple[str, ...]:
    """The ports of the predicted path at switches with several next hops, which observations can confirm."""
    if experiment.layouts:
        return ()
    return _choices(forwarding(experiment.topology).groups, flow, predicted_path(experiment, flow, routes))


def _choices(groups: _Groups, flow: Flow, path: Path) -> tuple[str, ...]:
    return tuple(str(port) for port in path[1:] if len(groups[port.node][flow.dst]) > 1)


def predicted_paths(experiment: Experiment, flows: Collection[Flow], routes: Forwarding) -> dict[Flow, Path]:
    """`predicted_path` of many flows: at once where switches forward by destination only."""
    if not _hashed(experiment, flows, routes):
        return {flow: predicted_path(experiment, flow, routes) for flow in flows}
    links, rows = _hashed_rows(experiment, flows, routes)
    ports = links.ports
    return {
        flow: tuple(ports[link] for link in row if link >= 0) for flow, row in zip(flows, rows.tolist(), strict=True)
    }


def _hashed(experiment: Experiment, flows: Collection[Flow], routes: Forwarding) -> bool:
    """Whether switches forward these flows by their hash and destination only."""
    return bool(flows) and not experiment.layouts and not routes.ingress


def _hashed_rows(
    experiment: Experiment, flows: Collection[Flow], routes: Forwarding
) -> tuple[Links, npt.NDArray[np.int32]]:
    """The links by number, and a row of them for each flow, filled up with -1."""
    fields = FlowFields(
        src=address_array(flow.src for flow in flows),
        dst=address_array(flow.dst for flow in flows),
        sport=np.array([flow.src_port for flow in flows], dtype=np.uint16),
        dport=np.array([flow.dst_port for flow in flows], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    links = Links(experiment.topology)
    return links, hashed_paths(links, fields, experiment.ecmp_hash, routes)


def predicted_path(experiment: Experiment, flow: Flow, routes: Forwarding) -> Path:
    """The path from the source host on that the emulated switches will choose, by their `routes` and their hash.

    On an optical fabric: by the circuits and relays of the experiment's placement.
    """
    if (setting := experiment.setting) is not None:
        source, destination = (experiment.topology.port_of(address) for address in (flow.src, flow.dst))
        return setting.path(experiment.topology, source, destination)
    return path_of(experiment.topology, flow, experiment.ecmp_hash, routes=routes)
