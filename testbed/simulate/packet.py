# SPDX-License-Identifier: Apache-2.0
"""Runs of an experiment on the packet fabric. docs/packet.md says what is modelled and what is not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from netmodel import Path, PortRef
from sim.links import Links
from sim.messages import NO_CHANNEL
from sim.packet import Options, Simulation
from testbed.analysis.kept_runs import NOT_KEPT, Runs
from testbed.analysis.observations import HappenedEvent, LinkLoad, Observations, RunRecord
from testbed.errors import InputError
from testbed.progress import Steps
from testbed.simulate.lane_paths import Lanes, path_rows
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
from testbed.spec import Experiment, Instance, Job, LinkSettings, Policy

_Longs = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


def observe(experiment: Experiment, steps: Steps, runs: Runs = NOT_KEPT) -> Observations:
    """Every policy with every seed. Raises InputError when the settings do not fit the topology."""
    return observe_runs(experiment, steps, partial(_run, steps=steps), runs)


@dataclass(frozen=True, eq=False)
class _SimulatedJobs(SimulatedJobs):
    packets: _Longs
    """By link, as all below."""
    dropped: _Longs
    lost: _Longs
    marked: _Longs


def _run(instance: Instance, policy: Policy, links: Links, steps: Steps) -> RunRecord:
    simulated = [
        _simulate(instance, policy, links, jobs, steps) for jobs in simultaneous_jobs(instance.experiment, policy)
    ]
    bits, packets, dropped, lost, marked = (
        np.sum([getattr(model, name) for model in simulated], axis=0)
        for name in ("link_bits", "packets", "dropped", "lost", "marked")
    )
    loads = [
        LinkLoad(
            port=str(port),
            tx_bytes=int(bits[n]) // 8,
            tx_packets=int(packets[n]),
            dropped=int(dropped[n]),
            lost=int(lost[n]),
            marked=int(marked[n]),
        )
        for n, port in enumerate(links.ports)
    ]
    return run_record(instance, policy, links, simulated, loads)


def _simulate(instance: Instance, policy: Policy, links: Links, jobs: Sequence[Job], steps: Steps) -> _SimulatedJobs:
    """One simulation: jobs that run at once under one policy."""
    experiment, seed = instance.experiment, instance.seed
    traffic = Traffic.of(instance, policy, links, jobs)
    options = _options(experiment, policy)
    pauses_s, dependencies = traffic.dependencies.pause_s, traffic.dependencies
    planner = TalkPlanner.of(instance, policy, traffic)
    every_s = instance.ideal_s() / SAMPLES
    samples: list[tuple[float, _Floats]] = []
    happened: list[HappenedEvent] = []
    events = sorted(experiment.spec.events, key=lambda event: event.at_s, reverse=True)
    try:
        simulation = Simulation(links, options, seed)
        _set_links(simulation, links, experiment.spec.links)
        simulation.add_channels(
            traffic.lanes.rows,
            policy.flowlet_bytes or _flowlet_bytes(traffic.lanes, links, options),
            traffic.lanes.back,
        )
        milestone = np.zeros(traffic.channel.size + pauses_s.size, dtype=np.bool_)
        if planner is not None:
            milestone[planner.milestones] = True
            _take(simulation, planner.start(), policy.m, links)
        sends, gates = np.split(milestone, [traffic.channel.size])
        simulation.add_messages(traffic.channel, traffic.payload_bytes, milestone=sends)
        simulation.add_messages(np.full(pauses_s.size, NO_CHANNEL), 0, pause_s=pauses_s, milestone=gates)
        simulation.add_waits(dependencies.earlier, dependencies.later)
        messages, next_s = simulation.undelivered, every_s
        while simulation.undelivered:
            reached = simulation.advance(min(next_s, events[-1].at_s) if events else next_s)
            if reached and planner is not None:
                _take(simulation, planner.reached(reached), policy.m, links)
                continue
            while simulation.undelivered and events and events[-1].at_s <= simulation.now_s:
                event = events.pop()
                _set_links(simulation, links, event.links or {})
                at_s = simulation.now_s
                happened.append(HappenedEvent(what=event.what, at_s=at_s, done_s=at_s, concerned=[]))
            next_s = simulation.now_s + every_s
            samples.append((simulation.now_s, _bits(simulation)))
            steps.now(f"{policy.name}, seed {seed}: {simulation.undelivered:,} of {messages:,} messages undelivered")
    except ValueError as error:
        raise InputError(f"packet: {error}") from error
    delivered_s, computed_s = np.split(simulation.delivered_s(), [len(traffic.transfers)])
    by_link, by_route = simulation.link_counters(), simulation.route_counters()
    return _SimulatedJobs(
        traffic=traffic,
        delivered_s=delivered_s,
        computed_s=computed_s,
        link_bits=_bits(simulation),
        samples=samples,
        happened=happened,
        lanes=LaneTotals(
            tx_bytes=by_route["bytes"].tolist(),
            tx_packets=by_route["packets"].tolist(),
            flowlets=by_route["flowlets"].tolist(),
            retransmits=by_route["retransmits"].tolist(),
            timeouts=by_route["timeouts"].tolist(),
        ),
        packets=by_link["packets"],
        dropped=by_link["dropped"],
        lost=by_link["lost"],
        marked=by_link["marked"],
    )


def _take(simulation: Simulation, paths: Mapping[int, Path], lanes: int, links: Links) -> None:
    """Move all lanes of these pairs to the paths that a planner has given them."""
    if paths:
        moved = np.array(list(paths))[:, None] * lanes + np.arange(lanes)
        simulation.move_lanes(moved.ravel(), np.repeat(path_rows(list(paths.values()), 1, links)[:, 0], lanes, axis=0))


def _set_links(simulation: Simulation, links: Links, settings: Mapping[str, LinkSettings]) -> None:
    """Give the links that leave by these ports the settings. `checks` has refused those that are not modelled."""
    for port, said in settings.items():
        number = links.number(PortRef.parse(port))
        simulation.set_conditions(number, delay_s=said.delay, mark_bytes=said.mark_above, loss=said.loss)


def _bits(simulation: Simulation) -> _Floats:
    return 8 * simulation.link_counters()["bytes"].astype(np.float64)


def _options(experiment: Experiment, policy: Policy) -> Options:
    settings = experiment.spec.packet
    return Options(
        link_delay_s=settings.link_delay_s,
        switch_buffer_bytes=settings.switch_buffer_bytes,
        port_buffer_bytes=settings.port_buffer_bytes,
        ecn_bytes=settings.ecn_bytes,
        pfc=settings.pfc,
        payload_bytes=packet_bytes(experiment),
        header_bytes=header_bytes(experiment),
        ack_bytes=ack_bytes(experiment),
        receiver=policy.receiver
        or settings.receiver
        or ("selective_repeat" if _links_lose(experiment) else "go_back_n"),
        congestion=settings.congestion or ("dctcp" if _links_mark(experiment) else "fixed"),
        window_bdp=settings.window_bdp,
        timeout_rtts=settings.timeout_rtts,
        scheme=policy.kind.scheme,
        flowlet_gap_s=settings.flowlet_gap_s,
        reroute_rtts=settings.reroute_rtts,
        hold_s=settings.hold_s,
        lanes_per_host=policy.lanes_per == "host",
    )


def _links_mark(experiment: Experiment) -> bool:
    """Whether any link is told to mark packets, from the start or by an event."""
    return any(settings.mark_above is not None for settings in _link_settings(experiment))


def _links_lose(experiment: Experiment) -> bool:
    """Whether any link is told to lose packets, from the start or by an event."""
    return any(settings.loss > 0 for settings in _link_settings(experiment))


def _link_settings(experiment: Experiment) -> list[LinkSettings]:
    """All settings of links, from the start and by events."""
    spec = experiment.spec
    said = [spec.links, *(event.links or {} for event in spec.events)]
    return [settings for links in said for settings in links.values()]


def _flowlet_bytes(lanes: Lanes, links: Links, options: Options) -> _Longs:
    """The flowlet size of each channel: S = 4 BDP / m, and at least one packet (ParaLet, section 5.3)."""
    rows = lanes.rows[:, 0, :]
    crossed = rows >= 0
    both_ways_bits = 8 * (options.payload_bytes + options.header_bytes + options.ack_bytes)
    delay_s = links.delay_s(options.link_delay_s)
    rtt_s = np.where(crossed, both_ways_bits / links.rate_bps[rows] + 2 * delay_s[rows], 0.0).sum(axis=1)
    product_bytes = rtt_s * links.rate_bps[rows[:, 0]] / 8
    found: _Longs = np.maximum(4 * product_bytes / lanes.rows.shape[1], options.payload_bytes).astype(np.int64)
    return found
