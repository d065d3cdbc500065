# SPDX-License-Identifier: Apache-2.0
"""The flows of runs: what each carried, the path that it is predicted to take, and the one that was observed. Pure."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from ipaddress import ip_address

import numpy as np
import numpy.typing as npt

from netmodel import ROCE_PORT, Flow, FlowFields, Forwarding, Path, PortRef, forwarding, in_order_of, path_of
from netmodel.flow import Address, address_array
from sdn.openflow.steering import Steering
from sim.links import Links
from sim.paths import hashed_paths
from testbed.analysis.observations import Observations, RunRecord
from testbed.spec import OF_ROUTERS, Experiment, Instance

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunFlows:
    """The flows that carried payload in a run.

    Results, tables, plots and the report all ask for them, so they are found once, when first asked for.
    """

    instance: Instance
    run: RunRecord

    @cached_property
    def routes(self) -> Forwarding:
        """The forwarding of the switches while all links live."""
        routes = self.instance.routes(self.instance.experiment.policy(self.run.policy))
        return in_order_of(self.run.next_hops, routes) if self.run.next_hops else routes

    @cached_property
    def sent(self) -> list[tuple[Flow, int]]:
        """Each flow and its payload bytes, from the lanes' counters."""
        topology, nics = self.instance.experiment.topology, dict[str, int]()
        protocol = self.instance.experiment.policy(self.run.policy).protocol
        address_of = cache(self.instance.address)
        found: dict[tuple[str, str, int], int] = {}  # texts, because an address takes long to hash
        for entry in self.run.lanes:
            lane = entry.lane
            if not lane.tx_bytes:
                continue
            if lane.local is None and lane.peer not in nics:
                # Flows join NICs of the same index, unless they are relayed.
                nics[lane.peer] = topology.port_of(_address(lane.peer)).port - 1
            peer = self._member(lane.peer, lane.member) if lane.member else lane.peer
            key = lane.local or address_of(entry.rank, nics[lane.peer]), peer, lane.port
            found[key] = found.get(key, 0) + lane.tx_bytes
        return [
            (Flow(_address(src), _address(dst), port, protocol=protocol), count)
            for (src, dst, port), count in found.items()
        ]

    def _member(self, peer: str, member: int) -> str:
        """The address of a NIC of the fused device whose first address is `peer`."""
        topology = self.instance.experiment.topology
        host = topology.host(topology.port_of(_address(peer)).node)
        return str(host.nics[self.instance.fused[member]].address)

    @cached_property
    def bytes(self) -> _Numbers:
        """Payload bytes by flow, in the order of `sent`."""
        return np.array([count for _, count in self.sent], dtype=np.int64)

    @cached_property
    def links(self) -> Links:
        """The links by number."""
        return Links(self.instance.experiment.topology)

    @cached_property
    def rows(self) -> npt.NDArray[np.int32]:
        """The links of each flow's predicted path, in the order of `sent`, filled up with -1."""
        return self.rows_of([flow for flow, _ in self.sent])

    def rows_of(self, flows: Collection[Flow]) -> npt.NDArray[np.int32]:
        """The links of the predicted path of each of these flows, filled up with -1."""
        rows = _rows(self.instance, flows, self.routes, self.links)
        for number, flow in enumerate(flows if self.by_segments else ()):
            if (path := self.by_segments.get((str(flow.src), str(flow.dst), flow.src_port))) is not None:
                rows[number] = [*self.links.row(path), *[-1] * (rows.shape[1] - len(path))]
        return rows

    @cached_property
    def by_segments(self) -> dict[tuple[str, str, int], Path]:
        """The paths of flows whose packets name them."""
        if self.instance.experiment.spec.pinning != "srv6":
            return {}
        return self.instance.by_segments(self.instance.experiment.policy(self.run.policy))

    @cached_property
    def payload(self) -> _Numbers:
        """Predicted payload bytes over each link: every flow's bytes along its predicted path."""
        taken = self.rows >= 0
        sums = np.zeros(len(self.links), dtype=np.int64)
        np.add.at(sums, self.rows[taken], np.broadcast_to(self.bytes[:, None], self.rows.shape)[taken])
        return sums

    def predicted_loads(self, ports: Iterable[PortRef]) -> list[int]:
        """Predicted payload bytes over the link of each port."""
        return [int(self.payload[self.links.number(port)]) for port in ports]


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


def flows_of(experiment: Experiment, observations: Observations) -> list[RunFlows]:
    """The flows of each run, in the order of the runs."""
    instances = {seed: Instance(experiment, seed) for seed in experiment.seeds}
    return [RunFlows(instances[run.seed], run) for run in observations.runs]


def check_flows(experiment: Experiment, runs: Iterable[RunFlows]) -> list[FlowCheck]:
    """Every flow of lanes with its predicted and its observed way, run by run in the order in which they ran.

    Those are the flows that carried payload, by the lanes' counters, and whatever else the datapath saw for the first
    time in the run: acknowledgements, and ports that a lane of policy `adaptive` has left again. With events that
    change routes, and with switches whose routes are not known, nothing is compared.
    """
    ways: dict[Flow, list[str]] = {}
    steering: Steering | None = None
    checks = []
    uncompared = not experiment.predicts or _is_rerouted(experiment)  # flows went otherwise meanwhile
    for flows in runs:
        run = flows.run
        if (
            steered := experiment.policy(run.policy).steering(flows.instance.placed)
        ) is not None or steering is not None:
            ways = {}  # the datapath's table has been emptied
        steering = steered
        new_to_datapath = [] if uncompared else run.seen
        known = {flow for flow, _ in flows.sent} if new_to_datapath else set()
        others: dict[Flow, None] = {}
        for seen in new_to_datapath:
            flow = Flow(_address(seen.src), _address(seen.dst), seen.src_port, seen.dst_port, seen.protocol)
            ways.setdefault(flow, []).extend(seen.ports)
            if flow.dst_port == ROCE_PORT and flow not in known:
                others[flow] = None
        others_rows = flows.rows_of(others)
        for some, rows in ((flows.sent, flows.rows), ([(flow, 0) for flow in others], others_rows)):
            checks += [
                FlowCheck(
                    policy=run.policy,
                    seed=run.seed,
                    flow=flow,
                    tx_bytes=count,
                    predicted=predicted,
                    observed=tuple(ways.get(flow, ())) if ways else (),
                )
                for (flow, count), predicted in zip(
                    some, _choices(flows.instance, flows.links, (flow for flow, _ in some), rows), strict=True
                )
            ]
    return checks


def predicted_choices(instance: Instance, flow: Flow, routes: Forwarding) -> tuple[str, ...]:
    """The ports of the predicted path at switches with several next hops, which observations can confirm."""
    links = Links(instance.experiment.topology)
    (found,) = _choices(instance, links, [flow], np.array([links.row(predicted_path(instance, flow, routes))]))
    return found


def predicted_path(instance: Instance, flow: Flow, routes: Forwarding) -> Path:
    """The path from the source host on that the emulated switches will choose, by their `routes` and their hash.

    Where an arrangement decides the paths: the one that it decides on.
    """
    experiment = instance.experiment
    if (decided := instance.decided_paths) is not None:
        source, destination = (experiment.topology.port_of(address) for address in (flow.src, flow.dst))
        return decided.path(source, destination)
    return path_of(experiment.topology, flow, experiment.ecmp_hash, routes=routes)


@lru_cache(maxsize=1 << 16)
def _address(text: str) -> Address:
    """Parsed once: hosts have many lanes, and parsing took a quarter of the report of a large run."""
    return ip_address(text)


def _is_rerouted(experiment: Experiment) -> bool:
    """Whether events change routes. Routers also go around links that lose the packets of their sessions."""
    events = experiment.spec.events
    if not experiment.spec.fabric_kind.routers:
        return any(event.cut or event.swap for event in events)
    lossy = any(settings.loss for event in events for settings in (event.links or {}).values())
    return lossy or any(getattr(event, name) for event in events for name in ("cut", "kill", *OF_ROUTERS))


def _rows(instance: Instance, flows: Collection[Flow], routes: Forwarding, links: Links) -> npt.NDArray[np.int32]:
    """The links of the predicted path of each flow, filled up with -1: of all at once where switches forward by
    destination only."""
    if instance.decided_paths is not None or routes.ingress or not flows:
        paths = [links.row(predicted_path(instance, flow, routes)) for flow in flows]
        found = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int32)
        for row, path in zip(found, paths, strict=True):
            row[: len(path)] = path
        return found
    fields = FlowFields(
        src=address_array(flow.src for flow in flows),
        dst=address_array(flow.dst for flow in flows),
        sport=np.array([flow.src_port for flow in flows], dtype=np.uint16),
        dport=np.array([flow.dst_port for flow in flows], dtype=np.uint16),
        proto=np.array([flow.protocol for flow in flows], dtype=np.uint8),
    )
    return hashed_paths(links, fields, instance.experiment.ecmp_hash, routes)


def _choices(
    instance: Instance, links: Links, flows: Iterable[Flow], rows: npt.NDArray[np.int32]
) -> Iterator[tuple[str, ...]]:
    """By flow: the ports of its path at switches with several next hops."""
    groups, ports = forwarding(instance.experiment.topology).groups, links.ports
    names, switches = [str(port) for port in ports], [port.node for port in ports]
    arranged = instance.decided_paths is not None
    several: dict[tuple[str, str], bool] = {}  # by switch and home: all hosts behind a switch have the same groups
    for flow, row in zip(flows, rows.tolist(), strict=True):
        path = [] if arranged else [link for link in row[1:] if link >= 0]
        home = switches[path[-1]] if path else ""
        for link in path:
            if (switches[link], home) not in several:
                several[switches[link], home] = len(groups[switches[link]][flow.dst]) > 1
        yield tuple(names[link] for link in path if several[switches[link], home])
