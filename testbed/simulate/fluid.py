# SPDX-License-Identifier: Apache-2.0
"""Runs of an experiment on the fluid fabric. docs/fluid.md says what is modelled and what is not."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netmodel import Forwarding, Link, NoRouteError, Path, PortRef, forwarding
from sim.fluid import Messages, Simulation
from sim.links import Links
from sim.messages import NO_CHANNEL
from sim.paths import Paths, spread_paths
from testbed.allocation.routes import Pair
from testbed.analysis.kept_runs import NOT_KEPT, Runs
from testbed.analysis.observations import HappenedEvent, LinkLoad, Observations, RunRecord
from testbed.arrangements import DecidedPaths, FibreState, Repair
from testbed.errors import TestbedError
from testbed.progress import Steps
from testbed.simulate.adaptive_lanes import LaneMover
from testbed.simulate.lane_paths import Lanes, addresses_of, path_rows, paths_of_ports
from testbed.simulate.live_plan import TalkPlanner
from testbed.simulate.runs import (
    SAMPLES,
    LaneTotals,
    SimulatedJobs,
    Traffic,
    ack_bytes,
    header_bytes,
    observe_runs,
    packet_bytes,
    run_record,
    simultaneous_jobs,
)
from testbed.spec import Event, Experiment, Instance, Job, Policy

_SPREAD = ("sprayed", "cycled")
"""Divisions of a message by packets, so that a whole message is sent at one rate."""

_Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.int64]


def observe(experiment: Experiment, steps: Steps, runs: Runs = NOT_KEPT) -> Observations:
    """Every policy with every seed. Raises TestbedError when a run cannot end, as when a host is cut off."""
    return observe_runs(experiment, steps, _run, runs)


def _run(instance: Instance, policy: Policy, links: Links) -> RunRecord:
    experiment = instance.experiment
    simulated = [_Model(instance, policy, links, jobs).run() for jobs in simultaneous_jobs(experiment, policy)]
    link_bits = np.sum([model.link_bits for model in simulated], axis=0)
    loads = [
        LinkLoad(port=str(port), tx_bytes=round(bits / 8), tx_packets=_packets(bits, experiment), dropped=0)
        for port, bits in zip(links.ports, link_bits.tolist(), strict=True)
    ]
    return run_record(instance, policy, links, simulated, loads)


class _Model:
    """One simulation: some jobs of an experiment under one policy."""

    def __init__(self, instance: Instance, policy: Policy, links: Links, jobs: Sequence[Job]) -> None:
        experiment = instance.experiment
        self._instance = instance
        self._experiment = experiment
        self._policy = policy
        self._links = links
        self._traffic = Traffic.of(instance, policy, links, jobs)
        self._pairs = self._traffic.pairs
        self._lanes = self._traffic.lanes
        self._every_s = instance.ideal_s() / SAMPLES
        self._next_sample_s = self._every_s
        self._delay_s = links.delay_s(experiment.spec.fluid.link_delay_s)
        self._routes: Forwarding | None = None  # None while no link is dead
        self._capacity = links.rate_bps.copy()
        self._dead: set[PortRef] = set()
        self._killed: list[str] = []
        self._swapped: list[tuple[PortRef, frozenset[Link]]] = []
        rates_bps = [links.rate_bps]
        if policy.paced:  # one more link per lane, which limits its rate
            first = self._lanes.rows[:, 0, 0]
            rates_bps.append(np.repeat(links.rate_bps[first] / policy.m, policy.m))
        self._nowhere = sum(map(len, rates_bps))  # a link of rate 0, the path of pairs that are `_dark`
        self._simulation = Simulation(np.concatenate([*rates_bps, [0.0]]))
        self._cut_off = np.zeros(len(self._pairs), dtype=np.bool_)  # by pair: no way, so that it waits for a mend
        self._dark = self._cut_off.copy()  # by pair: cut off, and its last path is not there even if no cable is dead
        self._simulation.add_channels(self._paths(self._lanes.rows, np.arange(len(self._pairs))))
        self._planner = TalkPlanner.of(instance, policy, self._traffic)
        self._left_bits = np.zeros(self._flows)  # by flow: bits sent on paths that it has left
        payload = self._traffic.payload_bytes.astype(np.float64)
        packets = np.ceil(payload / packet_bytes(experiment))
        bits = 8 * (payload + (header_bytes(experiment) + ack_bytes(experiment)) * packets)
        delay_s = self._last_packet_s(packets, self._traffic.channel) + experiment.spec.fluid.message_delay_s
        self._add_messages(bits, delay_s)
        rule = policy.kind.movement
        self._mover = None if rule is None else LaneMover(rule, self._round_trip_s(), self._lanes.ports, instance.seed)
        if self._planner is not None:
            self._take(self._planner.start())

    @property
    def _flows(self) -> int:
        return len(self._pairs) if self._policy.kind.division in _SPREAD else self._lanes.ports.size

    def _flows_of(self, pairs: _Numbers) -> _Numbers:
        """The numbers of the flows of these pairs, by pair."""
        return pairs if self._policy.kind.division in _SPREAD else self._lanes_of(pairs).ravel()

    def _lanes_of(self, pairs: _Numbers) -> _Numbers:
        """The numbers of the lanes of these pairs, by pair."""
        lanes = self._lanes.ports.shape[1]
        found: _Numbers = pairs[:, None] * lanes + np.arange(lanes)
        return found

    def _paths(self, rows: npt.NDArray[np.int32], pairs: _Numbers) -> Paths:
        """The flows of these pairs under the policy, where `rows` are the links of each of their lanes."""
        division = self._policy.kind.division
        if division == "sprayed":
            src, dst = addresses_of(self._instance, [self._pairs[pair] for pair in pairs.tolist()])
            return spread_paths(self._links, src, dst, self._routes)
        if division == "cycled":
            return Paths.sprayed(rows)
        if division == "parted":  # a queue pair sends its fixed part of a message
            return Paths.of(rows.reshape(-1, 1, rows.shape[2]))
        return self._pulling(rows, self._lanes_of(pairs))

    def _pulling(self, rows: npt.NDArray[np.int32], lanes: _Numbers) -> Paths:
        """Lanes with these numbers that pull over `rows` of links, at their pace at most if the policy has one."""
        if self._policy.paced:
            own = (len(self._links) + lanes[..., None]).astype(np.int32)
            rows = np.concatenate([rows, own], axis=2)
        return Paths.of(rows)

    def _link_bits(self) -> _Floats:
        return self._simulation.link_bits()[: len(self._links)]

    def _add_messages(self, bits: _Floats, delay_s: _Floats) -> None:
        """Add a message per transfer, with the same number, and then the gates of phases.

        Where lanes send parts of a message, these messages send nothing. Each waits for its parts, one per queue pair,
        which are added after the gates. Parts are equal, as in E-ECMP (Gangidi et al., SIGCOMM 2024, section 4.2).
        """
        simulation, channel, dependencies = self._simulation, self._traffic.channel, self._traffic.dependencies
        earlier, later = dependencies.earlier, dependencies.later
        parted = self._policy.kind.division == "parted"
        milestone = np.zeros(bits.size + dependencies.pause_s.size, dtype=np.bool_)
        if self._planner is not None:
            milestone[self._planner.milestones] = True
        sends, gates = np.split(milestone, [bits.size])
        simulation.add_messages(
            Messages(np.full(bits.size, NO_CHANNEL), delay_s=delay_s)
            if parted
            else Messages(channel, bits, delay_s, milestone=sends)
        )
        simulation.add_messages(
            Messages(np.full(gates.size, NO_CHANNEL), delay_s=dependencies.pause_s, milestone=gates)
        )
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
            is_transfer = later < bits.size  # each part of a transfer waits for what the transfer waits for
            simulation.add_waits(np.repeat(earlier[is_transfer], lanes), parts[later[is_transfer]].ravel())
            earlier, later = earlier[~is_transfer], later[~is_transfer]
        simulation.add_waits(earlier, later)

    def run(self) -> SimulatedJobs:
        """Simulate from the start to the last delivery."""
        happened: list[HappenedEvent] = []
        samples: list[tuple[float, _Floats]] = []
        for event in sorted(self._experiment.spec.events, key=lambda event: event.at_s):
            if self._advance(event.at_s, samples):
                happened.append(self._happen(event, samples))
        self._advance(np.inf, samples)
        simulation = self._simulation
        gates = len(self._traffic.transfers) + sum(self._traffic.dependencies.gates)
        delivered_s, computed_s, _ = np.split(simulation.delivered_s(), [len(self._traffic.transfers), gates])
        if simulation.undelivered:
            stuck = self._traffic.transfers[int(np.flatnonzero(np.isnan(delivered_s))[0])]
            raise TestbedError(
                f"policy {self._policy.name}: the run stops after {simulation.now_s:.3g} s, because "
                f"{self._why_stuck((stuck.src, stuck.dst))}; let an event mend it"
            )
        return SimulatedJobs(
            traffic=self._traffic,
            delivered_s=delivered_s,
            computed_s=computed_s,
            link_bits=self._link_bits(),
            samples=samples,
            happened=happened,
            lanes=self._lane_totals(),
        )

    def _why_stuck(self, pair: Pair) -> str:
        said = f"a link on the path from rank {pair[0]} to rank {pair[1]} is dead"
        if self._swapped:
            said += ", or a swap has taken away a circuit of it"
        ports = self._lanes.ports[[self._pairs.index(pair)]]
        try:
            paths_of_ports(self._instance, [pair], ports, self._links, self._routes)
        except NoRouteError as error:
            return f"{said}: {error}"
        return said

    def _lane_totals(self) -> LaneTotals:
        """The bytes that each lane has sent over all its paths. The model does not cut messages into flowlets."""
        bits = self._left_bits + self._simulation.flow_bits()
        if self._policy.kind.division in _SPREAD:
            bits = np.repeat(bits / self._policy.m, self._policy.m)
        payload = packet_bytes(self._experiment)
        part = payload / (payload + header_bytes(self._experiment) + ack_bytes(self._experiment))
        none = [0] * bits.size
        return LaneTotals(
            tx_bytes=[round(sent / 8 * part) for sent in bits.tolist()],
            tx_packets=[_packets(sent, self._experiment) for sent in bits.tolist()],
            flowlets=none,
            retransmits=none,
            timeouts=none,
        )

    def _last_packet_s(self, packets: _Floats, channel: _Numbers) -> _Floats:
        """The time from the last bit sent until the last packet is received, by message.

        With k lanes at 1 / k of the line rate each, the last packet takes k times as long to send as with one lane
        (ParaLet, section 5.3). Every switch then receives it completely before it forwards it.
        """
        first_s, hops_s = self._packet_s()
        lanes = 1.0 if self._policy.kind.division in _SPREAD else np.minimum(self._policy.m, packets)
        return np.asarray(hops_s[channel] + (lanes - 1) * first_s[channel])

    def _packet_s(self) -> tuple[_Floats, _Floats]:
        """The time for a full packet to leave its host, and from then on until it is received, by pair.

        Delays are those of the lane on whose links they are longest.
        """
        rows = self._lanes.rows[:, 0, :]
        crossed = rows >= 0
        packet_bits = 8 * (packet_bytes(self._experiment) + header_bytes(self._experiment))
        packet_s = np.where(crossed, packet_bits / self._links.rate_bps[rows], 0.0)
        return packet_s[:, 0], packet_s[:, 1:].sum(axis=1) + self._way_s()

    def _way_s(self) -> _Floats:
        """The sum of the delays of the links on the way of each pair, for the lane with the longest."""
        rows = self._lanes.rows
        found: _Floats = np.where(rows >= 0, self._delay_s[rows], 0.0).sum(axis=2).max(axis=1)
        return found

    def _round_trip_s(self) -> float:
        """Round trip of the longest pair on an unloaded fabric: a full packet, and an acknowledgement of size 0."""
        first_s, hops_s = self._packet_s()
        return float((first_s + hops_s + self._way_s()).max())

    def _advance(self, until_s: float, samples: list[tuple[float, _Floats]]) -> bool:
        """Advance time and sample the links. Whether messages are still undelivered."""
        simulation, mover = self._simulation, self._mover
        while simulation.undelivered and simulation.now_s < until_s:
            look_s = np.inf if mover is None else mover.next_s
            reached = simulation.advance(min(until_s, self._next_sample_s, look_s))
            if reached and self._planner is not None:
                self._take(self._planner.reached(reached))
            if simulation.now_s >= self._next_sample_s or not simulation.undelivered:
                samples.append((simulation.now_s, self._link_bits()))
                self._next_sample_s = simulation.now_s + self._every_s
            if mover is not None and simulation.now_s >= mover.next_s:
                self._look(mover)
            if simulation.stuck and until_s == np.inf:
                break
        return simulation.undelivered > 0

    def _look(self, mover: LaneMover) -> None:
        """Let the lanes that are due compare their rates and take other paths."""
        shape = self._lanes.ports.shape
        dead = ((self._capacity[self._lanes.rows] == 0) & (self._lanes.rows >= 0)).any(axis=2)
        moved = mover.look(self._simulation.rates_bps().reshape(shape), self._could_have, dead)
        moved = moved[~self._cut_off[moved // shape[1]]]
        if not moved.size:
            return
        pairs = moved // shape[1]
        ports = self._lanes.ports.reshape(-1, 1)[moved]
        rows = paths_of_ports(
            self._instance, [self._pairs[pair] for pair in pairs.tolist()], ports, self._links, self._routes
        )
        self._take_rows(moved, rows)

    def _take(self, paths: dict[int, Path]) -> None:
        """Move all lanes of these pairs to the paths that a planner has given them."""
        if not paths:
            return
        lanes = self._lanes.ports.shape[1]
        rows = path_rows(list(paths.values()), 1, self._links)
        pairs = np.array(list(paths), dtype=np.int64)
        flows = (pairs[:, None] * lanes + np.arange(lanes)).ravel()
        self._take_rows(flows, np.repeat(rows, lanes, axis=0))

    def _take_rows(self, moved: _Numbers, rows: npt.NDArray[np.int32]) -> None:
        """Move these lanes to `rows` of links, which have one path each."""
        self._move(moved, self._pulling(rows, moved[:, None]))
        flat = self._lanes.rows.reshape(self._lanes.ports.size, -1)
        flat[moved] = -1
        flat[moved, : rows.shape[2]] = rows[:, 0, :]

    def _could_have(self, rates: _Floats) -> _Floats:
        """By pair: the rate of a lane if only the links of its hosts, shared by all that send, limited it."""
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
        at_s = self._simulation.now_s
        if event.swap is not None:
            self._swap(PortRef.parse(event.swap), samples)
            return HappenedEvent(what=event.what, at_s=at_s, done_s=self._simulation.now_s, concerned=[])
        if event.kill is None:
            ports = [PortRef.parse(event.link or "")]
        else:
            ports = [link.a for link in self._experiment.killed_links([event.kill])]
            self._killed.append(event.kill)
        dies = bool(event.cut or event.kill)
        concerned = sorted(
            {host for port in ports for host in self._concerned(self._links.number(port))} if dies else ()
        )
        for port in ports:
            link = self._links.number(port)
            rate_bps = 0.0 if dies else float(self._links.rate_bps[link]) * (event.part or 1.0)
            for way in (link, self._links.back(link)):
                self._simulation.set_rate(way, rate_bps)
                self._capacity[way] = rate_bps
            if event.degrade is None:
                (self._dead.add if dies else self._dead.discard)(min(port, self._experiment.topology.peer(port)))
        if event.degrade is None:
            self._advance(at_s + self._experiment.spec.fluid.reroute_s, samples)
            self._reroute()
        return HappenedEvent(what=event.what, at_s=at_s, done_s=self._simulation.now_s, concerned=concerned)

    def _swap(self, port: PortRef, samples: list[tuple[float, _Floats]]) -> None:
        """Let another NIC take the place of the one at this port. Circuits that change are dark until hosts know."""
        before = self._repair()
        self._swapped.append((port, self._dead_cables()))
        after = self._repair()
        assert before is not None
        assert after is not None  # circuits only
        dark = [
            self._links.number(nic)
            for nic in before.arrivals.keys() | after.arrivals.keys()
            if before.arrivals.get(nic) != after.arrivals.get(nic)
        ]
        for link in dark:
            self._simulation.set_rate(link, 0.0)
        self._advance(self._simulation.now_s + after.change_s + self._experiment.spec.fluid.reroute_s, samples)
        for link in dark:
            self._simulation.set_rate(link, float(self._capacity[link]))
        self._reroute()

    def _repair(self) -> Repair | None:
        return self._instance.repaired(FibreState(self._dead_cables(), tuple(self._swapped)))

    def _dead_cables(self) -> frozenset[Link]:
        return frozenset(self._experiment.topology.link_at(port) for port in self._dead)

    def _reroute(self) -> None:
        """Recompute all paths without dead links; ports do not change. Pairs without a way keep their dead paths."""
        dead = self._dead_cables()
        self._routes = forwarding(self._experiment.topology, dead)
        rows = self._rows_around(dead)
        there = np.flatnonzero(~self._cut_off)
        if there.size:
            self._move(self._flows_of(there), self._paths(rows[there], there))
        dark = self._flows_of(np.flatnonzero(self._dark))
        if dark.size:
            self._move(dark, Paths.of(np.full((dark.size, 1, 1), self._nowhere, dtype=np.int32)))
        self._lanes = Lanes(self._lanes.ports, rows)
        if self._planner is not None:
            self._take(self._planner.refit(dead))

    def _rows_around(self, dead: frozenset[Link]) -> npt.NDArray[np.int32]:
        """The links of all lanes without dead links, over other rails where a rail is dead. Notes pairs without one."""
        ports, hosts = self._lanes.ports, self._instance.hosts
        plan = self._instance.detours(self._killed)
        names = [(hosts[src], hosts[dst]) for src, dst in self._pairs]
        around = [place for place, ends in enumerate(names) if ends in plan.ways]
        left = sorted({*range(len(names))} - {*around})
        self._cut_off[:] = self._dark[:] = False
        if (repair := self._repair()) is not None:
            return self._rows_repaired(repair.paths)
        if dead:
            reached = list(self._instance.reached((self._pairs[place] for place in left), dead))
            self._cut_off[[place for place, way in zip(left, reached, strict=True) if not way]] = True
        left = [place for place in left if not self._cut_off[place]]
        kept = np.flatnonzero(self._cut_off).tolist()
        found = [(kept, self._lanes.rows[kept])]
        if left:
            pairs = [self._pairs[place] for place in left]
            found.append((left, paths_of_ports(self._instance, pairs, ports[left], self._links, self._routes)))
        if around:
            paths = [plan.path(self._experiment.topology, *names[place]) for place in around]
            found.append((around, path_rows(paths, ports.shape[1], self._links)))
        rows = np.full((*ports.shape, max(some.shape[2] for _, some in found)), -1, dtype=np.int32)
        for places, some in found:
            rows[places, :, : some.shape[2]] = some
        return rows

    def _rows_repaired(self, paths: DecidedPaths) -> npt.NDArray[np.int32]:
        """The links of all lanes by these paths. Notes pairs without one."""
        lanes, found = self._lanes.rows.shape[1], []
        whole = self._instance.repaired(FibreState(swapped=tuple(self._swapped)))
        assert whole is not None  # circuits, as those of `paths`
        for number, (pair, route) in enumerate(zip(self._pairs, self._traffic.routes, strict=True)):
            nics = self._instance.nics_between(*pair, route)
            ends = tuple(PortRef(self._instance.hosts[rank], nic + 1) for rank, nic in zip(pair, nics, strict=True))
            row = self._row(paths, *ends)
            if row is None:
                row = [link for link in self._lanes.rows[number, 0].tolist() if link >= 0]
                self._cut_off[number] = True
                self._dark[number] = row != self._row(whole.paths, *ends)
            found.append(row)
        rows = np.full((len(found), lanes, max(map(len, found))), -1, dtype=np.int32)
        for number, row in enumerate(found):
            rows[number, :, : len(row)] = row
        return rows

    def _row(self, paths: DecidedPaths, source: PortRef, target: PortRef) -> list[int] | None:
        """The links from one NIC to another; None where no path leads there."""
        try:
            return self._links.row(paths.path(source, target))
        except KeyError:
            return None

    def _concerned(self, link: int) -> list[str]:
        """The switch ports of the hosts that receive data over a link, in either direction."""
        topology, experiment = self._experiment.topology, self._experiment
        crossing = np.isin(self._lanes.rows, (link, self._links.back(link))).reshape(len(self._pairs), -1)
        receivers = {self._pairs[channel][1] for channel in np.flatnonzero(crossing.any(axis=1)).tolist()}
        ports = {topology.peer(PortRef(self._instance.hosts[rank], experiment.nic + 1)) for rank in receivers}
        return sorted(str(port) for port in ports)


def _packets(bits: float, experiment: Experiment) -> int:
    each = packet_bytes(experiment) + header_bytes(experiment) + ack_bytes(experiment)
    return int(np.ceil(bits / 8 / each))
