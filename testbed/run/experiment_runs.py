# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment on a fabric that is up: every policy with every seed, one after the other.

In each run the agents, one per rank, open their devices, connect, start at the same instant and report.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from testbed.analysis.busy import busy_sentence, too_busy
from testbed.analysis.kept_runs import NOT_KEPT, Runs
from testbed.analysis.observations import HappenedEvent, RunRecord
from testbed.arrangements import Arranger
from testbed.errors import TestbedError
from testbed.live.runs_so_far import Began, Entry, Finished, Happened
from testbed.progress import Steps
from testbed.run import agent_messages as messages
from testbed.run.agents import Agents, R, StartAgent
from testbed.run.events import FabricEvents
from testbed.run.fabric import Fabric
from testbed.run.path_service import PathServiceProcess, Services, no_services
from testbed.run.processor_waits import mean_wait_s, waits_so_far
from testbed.run.rank_configuration import connect_commands, prepare_commands
from testbed.run.run_record import Reading, found_by_service, next_hops_of, record_of
from testbed.run.seen_flows import SeenFlows
from testbed.run.switches import Switches
from testbed.run.timeline import Timeline, near_event
from testbed.spec import Event, Experiment, Instance, Policy, all_hosts

SAMPLE_S = 0.1
"""Time between two readings of the link counters during a run, in seconds."""

CLOSE_SAMPLE_S = 0.01
"""Time between two readings around events, in seconds."""

_START_DELAY_S = 0.1
"""From sending the start command to the start itself, so that all agents have received it by then."""

_TRIES = 3
"""Runs of one policy with one seed, at the most, where the spec asks to repeat those on a busy machine."""

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


class Runner:
    """The runs of one experiment on a fabric that is up.

    `switches` are those of the fabric. `arrangers` put the experiment's arrangements into effect. `start` starts
    agents. `services` makes the path service for a policy that needs one, with a name for its logs. `tell` is called
    with entries of a journal, those about events from another thread.
    """

    def __init__(
        self,
        experiment: Experiment,
        fabric: Fabric,
        switches: Switches,
        arrangers: Sequence[Arranger],
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
        self._arrangers = arrangers
        self._switches = switches
        self._seen = SeenFlows(fabric, experiment.topology)

    def runs(self, steps: Steps, runs: Runs = NOT_KEPT) -> Iterator[RunRecord]:
        """Run every policy with every seed of which `runs` has none.

        The policies alternate, so that drift of the machine affects all equally.

        Raises TestbedError when a run fails.
        """
        experiment = self._experiment
        hosts = all_hosts(experiment)
        for arranger in self._arrangers:
            arranger.prepare([event.kill for event in experiment.spec.events if event.kill is not None])
        steps.now(f"starting {len(hosts)} agents")
        with Agents(self._start, hosts, self._log_dir) as agents:
            for seed in experiment.seeds:
                instance = Instance(experiment, seed)
                by_rank = _RankAgents(agents, [hosts.index(host) for host in instance.hosts])
                for policy in experiment.spec.policies:
                    steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
                    yield runs.get(policy.name, seed, partial(self._trusted, by_rank, policy, instance, steps))
                    steps.advance()

    def _trusted(self, agents: _RankAgents, policy: Policy, instance: Instance, steps: Steps) -> RunRecord:
        """A run that the spec trusts: one on a busy machine is repeated or refused where it asks for that."""
        record = self._run(agents, policy, instance)
        asked = self._experiment.spec.when_busy
        for number in range(2, _TRIES + 1):
            if asked != "repeat" or not too_busy(record):
                break
            steps.now(f"{policy.name} (m = {policy.m}), seed {instance.seed}, try {number}: the machine was too busy")
            again = self._run(agents, policy, instance)
            record = again.model_copy(update={"seen": [*record.seen, *again.seen]})  # each flow is seen once
        if asked == "refuse" and (sentence := busy_sentence([record])) is not None:
            raise TestbedError(sentence)
        return record

    def _run(self, agents: _RankAgents, policy: Policy, instance: Instance) -> RunRecord:
        experiment, seed, limits = self._experiment, instance.seed, self._experiment.timeouts
        with ExitStack() as run:
            for arranger in self._arrangers:
                arranger.before_run(instance.job_hosts, run)
            ready = self._switches.before_run(policy.steering(instance.placed))
            if ready.forgetful:
                self._seen.forget()
            service = run.enter_context(self._services(policy, f"{policy.name}-{seed}"))
            if service is not None and ready.routes is not None:
                service.follow(ready.routes.groups)
            if service is not None:
                service.keep_to(instance.paths_to_keep(policy))
            agents.send(prepare_commands(instance, policy, service, ready.routes))
            prepared = agents.receive(messages.Prepared, limits.start_s)
            agents.send(connect_commands(experiment, prepared))
            agents.receive(messages.Connected, limits.connect_s + _MARGIN_S)
            before, waits = self._with_faults(self._read(0.0)), waits_so_far()
            started: dict[int, float] = {}
            finished: dict[int, messages.Finished] = {}
            readings: list[Reading] = []
            happened: list[HappenedEvent] = []
            with FabricEvents(experiment, self._fabric, self._switches, self._arrangers) as changes:
                for ranks in [job.ranks for job in experiment.jobs] if policy.alone else [range(experiment.ranks)]:
                    at_s = time.monotonic() + _START_DELAY_S
                    agents.send(dict.fromkeys(ranks, messages.Start(at_s=at_s, timeout_s=limits.run_s)))
                    if not started:
                        self._tell(Began(policy.name, seed, at_s))
                    started |= dict.fromkeys(ranks, at_s)
                    act = partial(self._act, changes, service)
                    with Timeline(experiment.spec.events, at_s, act, changes.concerned) as timeline:
                        try:
                            finished |= agents.receive(
                                messages.Finished,
                                limits.run_s + _MARGIN_S,
                                ranks,
                                every_s=CLOSE_SAMPLE_S if experiment.spec.events else SAMPLE_S,
                                meanwhile=self._sampler(readings, started[0]),
                            )
                        except TestbedError as error:
                            self._switches.check()  # the cause, where there is one
                            raise self._explained(error, instance, time.monotonic() - at_s) from error
                    happened += timeline.happened
                after, wait_s = self._with_faults(self._read(started[0])), mean_wait_s(waits, waits_so_far())
                readings.append(after)
                self._switches.check()
                status = {} if service is None else service.status()
                found = found_by_service(status, time.monotonic() - started[0])
            agents.send(dict.fromkeys(range(experiment.ranks), messages.Close()))
            agents.receive(messages.Closed, limits.connect_s)
        record = record_of(instance, policy, started, finished, before, after, readings, happened, self._seen.fresh())
        self._tell(Finished(policy.name, seed, record.completion_s))
        next_hops = {} if ready.routes is None else next_hops_of(ready.routes)
        said = {"service": status, "wait_s": wait_s, **found}
        return record.model_copy(update={**said, "strays": self._switches.strays(), "next_hops": next_hops})

    def _sampler(self, readings: list[Reading], start_s: float) -> Callable[[], None]:
        """A function that takes a reading when one is due: every 10 ms around events, otherwise every 100 ms."""
        events = self._experiment.spec.events

        def sample() -> None:
            at_s = time.monotonic() - start_s
            if not readings or near_event(events, at_s) or at_s >= readings[-1].at_s + SAMPLE_S:
                readings.append(self._read(start_s))

        return sample

    def _explained(self, error: TestbedError, instance: Instance, at_s: float) -> TestbedError:
        """The error, explained by the cut links when these leave some transfer without a path."""
        experiment = self._experiment
        cut: dict[str, None] = {}
        for event in sorted(experiment.spec.events, key=lambda event: event.at_s):
            if event.cut is not None and event.at_s <= at_s:
                cut[event.cut] = None
            elif event.mend is not None and event.at_s <= at_s:
                mended = experiment.cable(event.mend)
                cut = {port: None for port in cut if experiment.cable(port) != mended}
        dead = experiment.dead_links(frozenset(map(experiment.cable, cut)))
        stranded = next(instance.stranded(dead), None)
        if stranded is None:
            return error
        remedy = experiment.spec.workload.STRANDED
        return TestbedError(
            f"no path leads from {instance.hosts[stranded.src]} to {instance.hosts[stranded.dst]} while "
            f"{', '.join(cut)} {'is' if len(cut) == 1 else 'are'} cut{remedy and f'; {remedy}'} ({error})"
        )

    def _act(self, changes: FabricEvents, service: PathServiceProcess | None, event: Event) -> float | None:
        """Carry out an event. Returns the monotonic time at which the path service sent new assignments, if it did."""
        changes.act(event)
        if service is not None and event.path_service is None and (groups := self._switches.next_hops()) is not None:
            service.follow(groups)
        if event.path_service is not None and service is not None:
            if event.path_service in ("kill", "restart"):
                service.kill()
            if event.path_service in ("start", "restart"):
                service.start()
        self._tell(Happened(event.what))
        return None if service is None or event.path_service is not None else service.reported_s

    def _read(self, start_s: float) -> Reading:
        counters = self._fabric.link_counters()
        return Reading(time.monotonic() - start_s, counters, sum(self._fabric.overruns().values()))

    def _with_faults(self, reading: Reading) -> Reading:
        return replace(reading, faults=self._fabric.fault_counts())
