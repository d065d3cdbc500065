# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment on the fluid fabric. What is modelled, and what is not, is in docs/fluid.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np
import numpy.typing as npt

from netmodel import Forwarding, NoRouteError, PortRef, forwarding
from sim.fluid import Messages, Simulation
from sim.links import Links
from sim.paths import Paths, spread_paths
from testbed.analysis.jobs import ideal_at
from testbed.analysis.observations import HappenedEvent, LaneCounters, LinkLoad, Observations, RankLane, RunRecord
from testbed.errors import TestbedError
from testbed.plan.demands import Pair, bytes_by_pair
from testbed.progress import Steps
from testbed.simulate.dependencies import Order, order_of
from testbed.simulate.lanes import Lanes, lanes_of, paths_of_ports
from testbed.simulate.moving_lanes import RULES, Mover
from testbed.simulate.observed import ACK_BYTES, HEADER_BYTES, SAMPLES, Course, packet_bytes, record
from testbed.spec import STEERED, Event, Experiment, Job, Policy

_SPREAD = ("spraying", "oblivious")
"""Policies that give every packet another path, so that a message goes at one rate."""

_Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.int64]


def observe(experiment: Experiment, steps: Steps) -> Observations:
    """Every policy with every seed. Raises TestbedError when a run cannot end, as when a host has been cut off."""
    links = Links(experiment.topology)
    records = []
    for seed in experiment.seeds:
        for policy in experiment.spec.policies:
            steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
            records.append(_run(experiment.at(seed), policy, seed, links))
            steps.advance()
    return Observations(runs=records)


@dataclass(frozen=True, eq=False)
class _Outcome(Course):
    pairs: Sequence[Pair]
    lanes: Lanes
    lane_bits: _Floats
    """By pair and lane, with headers."""


def _run(experiment: Experiment, policy: Policy, seed: int, links: Links) -> RunRecord:
    together = [[job] for job in experiment.jobs] if policy.alone else [list(experiment.jobs)]
    outcomes = [_Model(experiment, policy, seed, links, jobs).run() for jobs in together]
    lanes = [lane for outcome in outcomes for lane in _lanes(experiment, policy, outcome)]
    link_bits = np.sum([outcome.link_bits for outcome in outcomes], axis=0)
    loads = [
        LinkLoad(port=str(port), tx_bytes=round(bits / 8), tx_packets=_packets(bits, experiment), dropped=0)
        for port, bits in zip(links.ports, link_bits.tolist(), strict=True)
    ]
    return record(experiment, policy, seed, links, outcomes, lanes, loads)


class _Model:
    """One simulation: some jobs of an experiment under one policy."""

    def __init__(self, experiment: Experiment, policy: Policy, seed: int, links: Links, jobs: Sequence[Job]) -> None:
        self._experiment = experiment
        self._policy = policy
        self._links = links
        ranks = {rank for job in jobs for rank in job.ranks}
        self._transfers = [transfer for transfer in experiment.transfers(seed) if transfer.src in ranks]
        self._pairs: list[Pair] = list(bytes_by_pair(self._transfers, 1))
        self._lanes = lanes_of(experiment, policy, seed, self._pairs, links)
        self._every_s = ideal_at(experiment, seed) / SAMPLES
        self._next_sample_s = self._every_s
        self._routes: Forwarding | None = None  # as long as all links live
        self._capacity = links.rate_bps.copy()
        self._dead: set[PortRef] = set()
        rates_bps = [links.rate_bps]
        if policy.paced:  # a link of each lane's own
            first = self._lanes.rows[:, 0, 0]
            rates_bps.append(np.repeat(links.rate_bps[first] / policy.m, policy.m))
        self._simulation = Simulation(np.concatenate(rates_bps))
        self._simulation.add_channels(self._paths(self._lanes.rows))
        self._left_bits = np.zeros(self._flows)
        number = {pair: channel for channel, pair in enumerate(self._pairs)}
        channel = np.array([number[transfer.src, transfer.dst] for transfer in self._transfers])
        item_bytes, settings = experiment.spec.workload.item_bytes, experiment.spec.fluid
        payload = np.array([transfer.count * item_bytes for transfer in self._transfers], dtype=np.float64)
        packets = np.ceil(payload / packet_bytes(experiment))
        bits = 8 * (payload + (HEADER_BYTES + ACK_BYTES) * packets)
        delay_s = self._last_packet_s(packets, channel) + settings.message_delay_s
        self._add_messages(channel, bits, delay_s, order_of(experiment, jobs, self._transfers))
        rule = RULES.get(policy.policy)
        self._mover = None if rule is None else Mover(rule, self._round_trip_s(), self._lanes.ports, seed)

    @property
    def _flows(self) -> int:
        return len(self._pairs) if self._policy.policy in _SPREAD else self._lanes.ports.size

    def _paths(self, rows: npt.NDArray[np.int32]) -> Paths:
        """The flows of all pairs, whose lanes cross `rows` of links, by the policy."""
        if self._policy.policy == "spraying":
            ends = np.array(
                [[int(IPv4Address(self._experiment.address(rank))) for rank in pair] for pair in self._pairs],
                dtype=np.uint32,
            ).reshape(-1, 2)
            return spread_paths(self._links, ends[:, 0], ends[:, 1], self._routes)
        if self._policy.policy == "oblivious":
            return Paths.sprayed(rows)
        if self._policy.policy == "qp_scaling":  # a queue pair sends what it was given, not what is left
            return Paths.of(rows.reshape(-1, 1, rows.shape[2]))
        return self._pulling(rows, np.arange(self._lanes.ports.size).reshape(rows.shape[:2]))

    def _pulling(self, rows: npt.NDArray[np.int32], lanes: _Numbers) -> Paths:
        """Lanes, of these numbers, that pull over `rows` of links, each at its pace at most if it has one."""
        if self._policy.paced:
            own = (len(self._links) + lanes[..., None]).astype(np.int32)
            rows = np.concatenate([rows, own], axis=2)
        return Paths.of(rows)

    def _link_bits(self) -> _Floats:
        return self._simulation.link_bits()[: len(self._links)]

    def _add_messages(self, channel: _Numbers, bits: _Floats, delay_s: _Floats, order: Order) -> None:
        """Messages numbered as the transfers are, or, where queue pairs get parts of them, what their parts add up to;
        then the gates of phases.

        Parts are equal, as E-ECMP's are (Gangidi et al., SIGCOMM 2024, section 4.2).
        """
        simulation, earlier, later = self._simulation, order.earlier, order.later
        parted = self._policy.policy == "qp_scaling"
        simulation.add_messages(
            Messages(np.full(bits.size, -1), delay_s=delay_s) if parted else Messages(channel, bits, delay_s)
        )
        simulation.add_messages(Messages(np.full(order.pause_s.size, -1), delay_s=order.pause_s))
        if parted:
            lanes = self._policy.m
            first = simulation.add_messages(
                Messages(
                    np.repeat(channel, lanes) * lanes + np.tile(np.arange(lanes), bits.size),
                    np.repeat(bits, lanes) / lanes,
                )
            )
            parts = first + np.arange(bits.size * lanes).reshape(-1, lanes)
            simulation.add_waits(parts.ravel(), np.repeat(np.arange(bits.size), lanes))
            sent = later < bits.size  # what waits is a transfer, so each part of it does
            simulation.add_waits(np.repeat(earlier[sent], lanes), parts[later[sent]].ravel())
            earlier, later = earlier[~sent], later[~sent]
        simulation.add_waits(earlier, later)

    def run(self) -> _Outcome:
        """From the start to the last delivery."""
        happened: list[HappenedEvent] = []
        samples: list[tuple[float, _Floats]] = []
        for event in sorted(self._experiment.spec.events, key=lambda event: event.at_s):
            if self._advance(event.at_s, samples):
                happened.append(self._happen(event, samples))
        self._advance(np.inf, samples)
        simulation = self._simulation
        delivered_s = simulation.delivered_s()[: len(self._transfers)]
        if simulation.undelivered:
            stuck = self._transfers[int(np.flatnonzero(np.isnan(delivered_s))[0])]
            raise TestbedError(
                f"policy {self._policy.name}: after {simulation.now_s:.3g} s nothing moves any more, and what rank "
                f"{stuck.src} sends rank {stuck.dst} is not there; a link on its way is dead"
            )
        return _Outcome(
            transfers=self._transfers,
            delivered_s=delivered_s,
            pairs=self._pairs,
            lanes=self._lanes,
            lane_bits=self._lane_bits(),
            link_bits=self._link_bits(),
            samples=samples,
            happened=happened,
        )

    def _lane_bits(self) -> _Floats:
        """What each lane has sent, over all paths that it has had."""
        bits = self._left_bits + self._simulation.flow_bits()
        if self._policy.policy in _SPREAD:
            bits = np.repeat(bits / self._policy.m, self._policy.m)
        return bits.reshape(self._lanes.ports.shape)

    def _last_packet_s(self, packets: _Floats, channel: _Numbers) -> _Floats:
        """From the moment at which all but the last packets have left until these are there, by message.

        Of k lanes that send at 1 / k of the line rate each, the last packet takes k times as long as one of a single
        lane (ParaLet, section 5.3); then every switch receives it whole before it passes it on.
        """
        first_s, hops_s = self._packet_s()
        lanes = 1.0 if self._policy.policy in _SPREAD else np.minimum(self._policy.m, packets)
        return np.asarray(hops_s[channel] + (lanes - 1) * first_s[channel])

    def _packet_s(self) -> tuple[_Floats, _Floats]:
        """What a full packet takes to leave its host, and from then on until it is there, by pair."""
        rows = self._lanes.rows[:, 0, :]
        crossed = rows >= 0
        packet_bits = 8 * (packet_bytes(self._experiment) + HEADER_BYTES)
        packet_s = np.where(crossed, packet_bits / self._links.rate_bps[rows], 0.0)
        hops_s = packet_s[:, 1:].sum(axis=1) + crossed.sum(axis=1) * self._experiment.spec.fluid.link_delay_s
        return packet_s[:, 0], hops_s

    def _round_trip_s(self) -> float:
        """Of the longest pair, nothing else being sent: a full packet there, an acknowledgement of no size back."""
        first_s, hops_s = self._packet_s()
        links = (self._lanes.rows[:, 0, :] >= 0).sum(axis=1)
        return float((first_s + hops_s + links * self._experiment.spec.fluid.link_delay_s).max())

    def _advance(self, until_s: float, samples: list[tuple[float, _Floats]]) -> bool:
        """Let time pass, reading the links now and then. Whether the run is still going on."""
        simulation, mover = self._simulation, self._mover
        while simulation.undelivered and simulation.now_s < until_s:
            look_s = np.inf if mover is None else mover.next_s
            simulation.advance(min(until_s, self._next_sample_s, look_s))
            if simulation.now_s >= self._next_sample_s or not simulation.undelivered:
                samples.append((simulation.now_s, self._link_bits()))
                self._next_sample_s = simulation.now_s + self._every_s
            if mover is not None and simulation.now_s >= mover.next_s:
                self._look(mover)
            if simulation.stuck and until_s == np.inf:
                break
        return simulation.undelivered > 0

    def _look(self, mover: Mover) -> None:
        """Let the lanes whose turn it is take other paths."""
        shape = self._lanes.ports.shape
        dead = ((self._capacity[self._lanes.rows] == 0) & (self._lanes.rows >= 0)).any(axis=2)
        moved = mover.look(self._simulation.rates_bps().reshape(shape), self._could_have, dead)
        if not moved.size:
            return
        pairs = moved // shape[1]
        ports = self._lanes.ports.reshape(-1, 1)[moved]
        rows = paths_of_ports(
            self._experiment, [self._pairs[pair] for pair in pairs.tolist()], ports, self._links, self._routes
        )
        self._move(moved, self._pulling(rows, moved[:, None]))
        flat = self._lanes.rows.reshape(shape[0] * shape[1], -1)
        flat[moved] = -1
        flat[moved, : rows.shape[2]] = rows[:, 0, :]

    def _could_have(self, rates: _Floats) -> _Floats:
        """By pair: what a lane of its would have if only its hosts' links held it back, which all that send share."""
        rows = self._lanes.rows[:, 0, :]
        first, last = rows[:, 0], rows[np.arange(len(rows)), (rows >= 0).sum(axis=1) - 1]
        sending = (rates > 0).any(axis=1)
        share = np.full(len(rows), np.inf)
        for end in (first, last):
            users = np.bincount(end[sending], minlength=len(self._links))
            share = np.minimum(share, self._links.rate_bps[end] / np.maximum(users[end], 1))
        return share / self._policy.m

    def _move(self, flows: _Numbers, paths: Paths) -> None:
        self._left_bits[flows] += self._simulation.flow_bits()[flows]
        self._simulation.set_paths(flows, paths)

    def _happen(self, event: Event, samples: list[tuple[float, _Floats]]) -> HappenedEvent:
        port = PortRef.parse(event.link or "")
        link = self._links.number(port)
        at_s = self._simulation.now_s
        concerned = self._concerned(link) if event.cut else []
        rate_bps = 0.0 if event.cut else float(self._links.rate_bps[link]) * (event.part or 1.0)
        for way in (link, self._links.back(link)):
            self._simulation.set_rate(way, rate_bps)
            self._capacity[way] = rate_bps
        if event.degrade is None:
            (self._dead.add if event.cut else self._dead.discard)(min(port, self._experiment.topology.peer(port)))
            self._advance(at_s + self._experiment.spec.fluid.reroute_s, samples)
            self._reroute()
        return HappenedEvent(what=event.what, at_s=at_s, done_s=self._simulation.now_s, concerned=concerned)

    def _reroute(self) -> None:
        """Switches avoid dead links from now on: the same ports go elsewhere."""
        topology = self._experiment.topology
        self._routes = forwarding(topology, frozenset(topology.link_at(port) for port in self._dead))
        try:
            rows = paths_of_ports(self._experiment, self._pairs, self._lanes.ports, self._links, self._routes)
            paths = self._paths(rows)
        except NoRouteError as error:
            raise TestbedError(f"policy {self._policy.name}: {error}") from error
        self._move(np.arange(self._flows), paths)
        self._lanes = Lanes(self._lanes.ports, rows)

    def _concerned(self, link: int) -> list[str]:
        """The switch ports of the hosts whose data cross a link, either way."""
        topology, experiment = self._experiment.topology, self._experiment
        crossing = np.isin(self._lanes.rows, (link, self._links.back(link))).reshape(len(self._pairs), -1)
        receivers = {self._pairs[channel][1] for channel in np.flatnonzero(crossing.any(axis=1))}
        ports = {topology.peer(PortRef(experiment.hosts[rank], experiment.nic + 1)) for rank in receivers}
        return sorted(str(port) for port in ports)


def _lanes(experiment: Experiment, policy: Policy, outcome: _Outcome) -> list[RankLane]:
    """What each lane has carried. How a lane that pulls cut it into flowlets is not modelled."""
    method = "ecmp" if policy.policy in STEERED else policy.policy
    payload = packet_bytes(experiment)
    part = payload / (payload + HEADER_BYTES + ACK_BYTES)
    return [
        RankLane(
            rank=src,
            lane=LaneCounters(
                peer=experiment.address(dst),
                lane=lane,
                port=int(outcome.lanes.ports[channel, lane]),
                port_method=method,
                tx_bytes=round(bits / 8 * part),
                tx_packets=_packets(bits, experiment),
                flowlets=0,
                retransmits=0,
                timeouts=0,
                rtt_s=None,
            ),
        )
        for channel, (src, dst) in enumerate(outcome.pairs)
        for lane, bits in enumerate(outcome.lane_bits[channel].tolist())
    ]


def _packets(bits: float, experiment: Experiment) -> int:
    return int(np.ceil(bits / 8 / (packet_bytes(experiment) + HEADER_BYTES + ACK_BYTES)))
