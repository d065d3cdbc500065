# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment on a fabric that is up: every policy with every seed, one after the other.

In each run the agents, one per rank, open their devices, connect, start at the same instant and report.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from emul import LinkFault
from netmodel import Flow, Link, PortRef, forwarding, lit_links
from sdn.failover.detours import Detours
from sdn.openflow.steering import Steering
from testbed.allocation.optical import Setting
from testbed.analysis.observations import HappenedEvent, RunRecord, SeenFlow
from testbed.errors import TestbedError
from testbed.live.runs_so_far import Began, Entry, Finished, Happened
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run.agents import Agents, R, StartAgent
from testbed.run.fabric import Fabric
from testbed.run.path_service import PathServiceProcess, Services, no_services
from testbed.run.rank_configuration import connect_commands, prepare_commands
from testbed.run.run_record import Reading, record_of
from testbed.run.timeline import Timeline, near_event
from testbed.spec import Event, Experiment, LinkSettings, Optical, Policy
from testbed.workloads.rail_alltoall import RailAlltoall

SAMPLE_S = 0.1
"""Time between two readings of the link counters during a run, in seconds."""

CLOSE_SAMPLE_S = 0.01
"""Time between two readings around events, in seconds."""

_DATA_PACKET_BYTES = 200
"""Flows whose packets are smaller on average carry acknowledgements."""

_ACTIVE_S = 0.3
"""A flow that has sent nothing for this long, in seconds, no longer crosses a link."""

_START_DELAY_S = 0.1
"""From sending the start command to the start itself, so that all agents have received it by then."""

_MARGIN_S = 15.0
"""Added to an agent's own time limit before the runner gives up: the agent's error says more."""


class _RankAgents:
    """The agents of one run, by rank."""

    def __init__(self, agents: Agents, seats: Sequence[int]) -> None:
        self._agents = agents
        self._seats = seats
        self._rank_at = {seat: rank for rank, seat in enumerate(seats)}

    def send(self, commands: Mapping[int, messages.Command]) -> None:
        """Send each rank its command."""
        self._agents.send({self._seats[rank]: command for rank, command in commands.items()})

    def receive(
        self, kind: type[R], timeout_s: float, ranks: Iterable[int] | None = None, **options: Any
    ) -> dict[int, R]:
        """A report from every rank, or from `ranks`; see `Agents.receive`."""
        of = self._seats if ranks is None else [self._seats[rank] for rank in ranks]
        return {
            self._rank_at[seat]: report
            for seat, report in self._agents.receive(kind, timeout_s, of=of, **options).items()
        }


def faults_of(links: Mapping[str, LinkSettings]) -> dict[PortRef, LinkFault]:
    """The faults that a spec declares, by port."""
    return {
        PortRef.parse(port): LinkFault(
            loss=settings.loss,
            corruption=settings.corruption,
            mark_above_bytes=settings.mark_above,
            delay_s=settings.delay,
            reorder=settings.reorder,
            late_by_s=settings.late_by,
        )
        for port, settings in links.items()
    }


class Runner:
    """The runs of one experiment on a fabric that is up.

    `start` starts agents. `services` makes the path service for a policy that needs one, with a name for its logs.
    `tell` is called with entries of a journal, those about events from another thread.
    """

    def __init__(
        self,
        experiment: Experiment,
        fabric: Fabric,
        log_dir: Path,
        start: StartAgent,
        services: Services = no_services,
        tell: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        self._experiment = experiment
        self._fabric = fabric
        self._log_dir = log_dir
        self._start = start
        self._services = services
        self._tell = tell
        self._seen: set[tuple[str, Flow]] = set()
        self._steering: Steering | None = None
        self._setting: Setting | None = None
        self._lit = False
        self._killed: list[str] = []
        routes = forwarding(experiment.topology).groups
        self._choosing = [
            switch for switch, groups in routes.items() if any(len(ports) > 1 for ports in groups.values())
        ]

    def runs(self, steps: Steps) -> Iterator[RunRecord]:
        """Run every policy with every seed. The policies alternate, so that drift of the machine affects all equally.

        Raises TestbedError when a run fails.
        """
        experiment = self._experiment
        hosts = experiment.all_hosts
        if any(event.kill for event in experiment.spec.events):
            self._fabric.allow_detours()
        steps.now(f"starting {len(hosts)} agents")
        with Agents(self._start, hosts, self._log_dir) as agents:
            for seed in experiment.seeds:
                by_rank = _RankAgents(agents, [hosts.index(host) for host in experiment.at(seed).hosts])
                for policy in experiment.spec.policies:
                    steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
                    yield self._run(by_rank, policy, seed)
                    steps.advance()

    def _run(self, agents: _RankAgents, policy: Policy, seed: int) -> RunRecord:
        experiment, limits = self._experiment.at(seed), self._experiment.timeouts
        self._light()
        self._steer(experiment.steering(policy.name))
        self._set_optically(experiment.setting)
        with self._services(policy, f"{policy.name}-{seed}") as service:
            agents.send(prepare_commands(experiment, policy, seed, service))
            prepared = agents.receive(messages.Prepared, limits.start_s)
            agents.send(connect_commands(self._experiment, prepared))
            agents.receive(messages.Connected, limits.connect_s + _MARGIN_S)
            before = self._with_faults(self._read(0.0))
            started: dict[int, float] = {}
            finished: dict[int, messages.Finished] = {}
            readings: list[Reading] = []
            happened: list[HappenedEvent] = []
            for ranks in [job.ranks for job in experiment.jobs] if policy.alone else [range(experiment.ranks)]:
                at_s = time.monotonic() + _START_DELAY_S
                agents.send(dict.fromkeys(ranks, messages.Start(at_s=at_s, timeout_s=limits.run_s)))
                if not started:
                    self._tell(Began(policy.name, seed, at_s))
                started |= dict.fromkeys(ranks, at_s)
                with Timeline(
                    experiment.spec.events, at_s, lambda event: self._act(event, service), self._concerned
                ) as timeline:
                    try:
                        finished |= agents.receive(
                            messages.Finished,
                            limits.run_s + _MARGIN_S,
                            ranks,
                            every_s=CLOSE_SAMPLE_S if experiment.spec.events else SAMPLE_S,
                            meanwhile=self._sampler(readings, started[0]),
                        )
                    except TestbedError as error:
                        raise self._explained(error, experiment, seed, time.monotonic() - at_s) from error
                happened += timeline.happened
            after = self._with_faults(self._read(started[0]))
            readings.append(after)
            status = {} if service is None else service.status()
            for link in self._cut_links():
                self._fabric.set_link(link, True)
            if self._killed:
                self._killed.clear()
                self._fabric.set_detours(Detours())
            for event in experiment.spec.events:
                if event.degrade is not None:
                    self._fabric.set_rate(self._link(event.degrade), 1.0)
            declared = faults_of(experiment.spec.links)
            changed = {port: None for event in experiment.spec.events for port in faults_of(event.links or {})}
            for port in changed:
                self._fabric.set_faults(port, declared.get(port, LinkFault()))
            agents.send(dict.fromkeys(range(experiment.ranks), messages.Close()))
            agents.receive(messages.Closed, limits.connect_s)
        record = record_of(
            experiment, policy, seed, started, finished, before, after, readings, happened, self._newly_seen()
        )
        strays = {str(port): count for port, count in self._fabric.strays().items() if count} if self._steering else {}
        self._tell(Finished(policy.name, seed, record.completion_s))
        return record.model_copy(update={"service": status, "strays": strays})

    def _light(self) -> None:
        """Set the circuits between switches once: those of a placement apply to every run."""
        isolation, optical = self._experiment.isolation, self._experiment.spec.optical
        if isolation is not None and isolation.circuits and not self._lit:
            self._fabric.set_circuits(isolation.circuits, (optical or Optical()).reconfiguration_s)
            self._lit = True

    def _set_optically(self, setting: Setting | None) -> None:
        """One-shot reconfiguration: set the circuits and relays of the run's jobs, and check the relays."""
        if setting is None:
            return
        if setting is not self._setting:
            optical = self._experiment.spec.optical
            assert optical is not None  # or there would be no setting
            self._fabric.set_circuits(setting.circuits, optical.reconfiguration_s)
            self._fabric.set_relays(setting.plan)
            self._setting = setting
        self._fabric.check_relays(setting.plan)

    def _steer(self, steering: Steering | None) -> None:
        """Apply a run's steering to the switches. Their drop counters restart for every run with steering."""
        if steering is None and self._steering is None:
            return
        if steering == self._steering:
            self._fabric.steer(None)
        self._fabric.steer(steering)
        self._steering = steering
        self._seen.clear()

    def _sampler(self, readings: list[Reading], start_s: float) -> Callable[[], None]:
        """A function that takes a reading when one is due: every 10 ms around events, otherwise every 100 ms."""
        events = self._experiment.spec.events

        def sample() -> None:
            at_s = time.monotonic() - start_s
            if not readings or near_event(events, at_s) or at_s >= readings[-1].at_s + SAMPLE_S:
                readings.append(self._read(start_s))

        return sample

    def _explained(self, error: TestbedError, experiment: Experiment, seed: int, at_s: float) -> TestbedError:
        """The error, explained by the cut links when these leave some transfer without a path."""
        cut: dict[str, None] = {}
        for event in sorted(experiment.spec.events, key=lambda event: event.at_s):
            if event.cut is not None and event.at_s <= at_s:
                cut[event.cut] = None
            elif event.mend is not None and event.at_s <= at_s:
                cut = {port: None for port in cut if self._link(port) != self._link(event.mend)}
        dead = frozenset(map(self._link, cut))
        if experiment.cabled is not None and experiment.isolation is not None:
            dead = lit_links(experiment.cabled, experiment.isolation.circuits, dead)
        stranded = experiment.stranded(seed, dead)
        if stranded is None:
            return error
        relaying = isinstance(experiment.spec.workload, RailAlltoall)
        remedy = "; name rails that are dead in workload.failed_rails" if relaying else ""
        return TestbedError(
            f"no path leads from {experiment.hosts[stranded.src]} to {experiment.hosts[stranded.dst]} while "
            f"{', '.join(cut)} {'is' if len(cut) == 1 else 'are'} cut{remedy} ({error})"
        )

    def _act(self, event: Event, service: PathServiceProcess | None) -> float | None:
        """Carry out an event. Returns the monotonic time at which the path service sent new assignments, if it did."""
        for port, up in ((event.cut, False), (event.mend, True)):
            if port is not None:
                self._fabric.set_link(self._link(port), up)
        if event.mend is not None:
            self._fabric.set_rate(self._link(event.mend), 1.0)
        if event.kill is not None:
            self._killed.append(event.kill)
            for link in self._experiment.killed_links([event.kill]):
                self._fabric.set_link(link, False)
            self._fabric.set_detours(self._experiment.detours(self._killed))
        if event.degrade is not None and event.part is not None:
            self._fabric.set_rate(self._link(event.degrade), event.part)
        for faulty, fault in faults_of(event.links or {}).items():
            self._fabric.set_faults(faulty, fault)
        if event.path_service is not None and service is not None:
            if event.path_service in ("kill", "restart"):
                service.kill()
            if event.path_service in ("start", "restart"):
                service.start()
        self._tell(Happened(event.what))
        return None if service is None or event.path_service is not None else service.told_s

    def _concerned(self, event: Event) -> list[str]:
        """Switch ports of the hosts that receive data across the link to be cut, or whose acknowledgements cross it."""
        if event.cut is None:
            return []
        topology = self._experiment.topology
        receivers = {
            seen.flow.dst if seen.bytes >= _DATA_PACKET_BYTES * seen.packets else seen.flow.src
            for seen in self._fabric.crossing(self._link(event.cut), _ACTIVE_S)
        }
        return [str(topology.peer(topology.port_of(address))) for address in sorted(receivers)]

    def _link(self, port: str) -> Link:
        return (self._experiment.cabled or self._experiment.topology).link_at(PortRef.parse(port))

    def _cut_links(self) -> list[Link]:
        """The links that the spec's events cut."""
        events = self._experiment.spec.events
        killed = self._experiment.killed_links([event.kill for event in events if event.kill])
        return list(dict.fromkeys([*(self._link(event.cut) for event in events if event.cut), *killed]))

    def _read(self, start_s: float) -> Reading:
        counters = self._fabric.link_counters()
        return Reading(time.monotonic() - start_s, counters, sum(self._fabric.overruns().values()))

    def _with_faults(self, reading: Reading) -> Reading:
        return replace(reading, faults=self._fabric.fault_counts())

    def _newly_seen(self) -> list[SeenFlow]:
        """Flows that are new since the last call. The datapath also remembers those of earlier runs."""
        fresh: dict[Flow, list[str]] = {}
        for switch in self._choosing:
            for flow, port in self._fabric.observed_ports(switch).items():
                if (switch, flow) not in self._seen:
                    self._seen.add((switch, flow))
                    fresh.setdefault(flow, []).append(str(PortRef(switch, port)))
        return [
            SeenFlow(src=str(flow.src), dst=str(flow.dst), src_port=flow.src_port, dst_port=flow.dst_port, ports=ports)
            for flow, ports in fresh.items()
        ]
