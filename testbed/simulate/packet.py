# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment on the packet fabric. What is modelled, and what is not, is in docs/packet.md."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.links import Links
from sim.packet import Options, Scheme, Simulation
from testbed.analysis.jobs import ideal_at
from testbed.analysis.observations import LaneCounters, LinkLoad, Observations, RankLane, RunRecord
from testbed.errors import InputError
from testbed.plan.demands import Pair, bytes_by_pair
from testbed.progress import Steps
from testbed.simulate.dependencies import order_of
from testbed.simulate.lanes import Lanes, lanes_of
from testbed.simulate.observed import ACK_BYTES, HEADER_BYTES, SAMPLES, Course, packet_bytes, record
from testbed.spec import STEERED, Experiment, Job, Policy, PolicyName

_Longs = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


_SCHEMES: dict[PolicyName, Scheme] = {
    "oblivious": "oblivious",
    "recycled": "recycled",
    "plb": "plb",
    "conweave": "conweave",
    "spraying": "spraying",
    "drill": "drill",
    "letflow": "letflow",
}
"""Under all other policies each lane has a port, and switches hash it."""


def observe(experiment: Experiment, steps: Steps) -> Observations:
    """Every policy with every seed. Raises InputError when the settings do not fit the topology."""
    links = Links(experiment.topology)
    records = []
    for seed in experiment.seeds:
        for policy in experiment.spec.policies:
            steps.now(f"{policy.name} (m = {policy.m}), seed {seed}")
            records.append(_run(experiment.at(seed), policy, seed, links, steps))
            steps.advance()
    return Observations(runs=records)


@dataclass(frozen=True, eq=False)
class _Outcome(Course):
    lanes: list[RankLane]
    packets: _Longs
    """By link."""
    dropped: _Longs
    """By link."""


def _run(experiment: Experiment, policy: Policy, seed: int, links: Links, steps: Steps) -> RunRecord:
    together = [[job] for job in experiment.jobs] if policy.alone else [list(experiment.jobs)]
    outcomes = [_outcome(experiment, policy, seed, links, jobs, steps) for jobs in together]
    bits, packets, dropped = (
        np.sum([getattr(outcome, name) for outcome in outcomes], axis=0) for name in ("link_bits", "packets", "dropped")
    )
    loads = [
        LinkLoad(port=str(port), tx_bytes=int(bits[n]) // 8, tx_packets=int(packets[n]), dropped=int(dropped[n]))
        for n, port in enumerate(links.ports)
    ]
    return record(experiment, policy, seed, links, outcomes, [lane for one in outcomes for lane in one.lanes], loads)


def _outcome(
    experiment: Experiment, policy: Policy, seed: int, links: Links, jobs: Sequence[Job], steps: Steps
) -> _Outcome:
    """One simulation: some jobs of an experiment under one policy."""
    ranks = {rank for job in jobs for rank in job.ranks}
    transfers = [transfer for transfer in experiment.transfers(seed) if transfer.src in ranks]
    pairs: list[Pair] = list(bytes_by_pair(transfers, 1))
    lanes = lanes_of(experiment, policy, seed, pairs, links)
    options = _options(experiment, policy)
    channel = {pair: number for number, pair in enumerate(pairs)}
    item_bytes = experiment.spec.workload.item_bytes
    order = order_of(experiment, jobs, transfers)
    every_s = ideal_at(experiment, seed) / SAMPLES
    samples: list[tuple[float, _Floats]] = []
    try:
        simulation = Simulation(links, options, seed)
        simulation.add_channels(lanes.rows, policy.flowlet_bytes or _flowlet_bytes(lanes, links, options))
        simulation.add_messages(
            [channel[transfer.src, transfer.dst] for transfer in transfers],
            [transfer.count * item_bytes for transfer in transfers],
        )
        simulation.add_messages(np.full(order.pause_s.size, -1), 0, pause_s=order.pause_s)
        simulation.add_waits(order.earlier, order.later)
        messages = simulation.undelivered
        while simulation.undelivered:
            simulation.advance(simulation.now_s + every_s)
            samples.append((simulation.now_s, _bits(simulation)))
            steps.now(f"{policy.name}, seed {seed}: {simulation.undelivered:,} of {messages:,} messages to come")
    except ValueError as error:
        raise InputError(f"packet: {error}") from error
    counters = simulation.link_counters()
    return _Outcome(
        transfers=transfers,
        delivered_s=simulation.delivered_s()[: len(transfers)],
        link_bits=_bits(simulation),
        samples=samples,
        happened=[],
        lanes=_lanes(experiment, policy, pairs, lanes, simulation.route_counters()),
        packets=counters["packets"],
        dropped=counters["dropped"],
    )


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
        header_bytes=HEADER_BYTES,
        ack_bytes=ACK_BYTES,
        receiver=policy.receiver or settings.receiver,
        congestion=settings.congestion,
        window_bdp=settings.window_bdp,
        timeout_rtts=settings.timeout_rtts,
        reorder_rtts=settings.reorder_rtts,
        scheme=_SCHEMES.get(policy.policy, "hashed"),
        flowlet_gap_s=settings.flowlet_gap_s,
        reroute_rtts=settings.reroute_rtts,
        hold_s=settings.hold_s,
    )


def _flowlet_bytes(lanes: Lanes, links: Links, options: Options) -> _Longs:
    """S = 4 BDP / m of each channel, a packet at least (ParaLet, section 5.3); where a channel has one lane only, a
    message comes in as many flowlets, which go one after the other."""
    rows = lanes.rows[:, 0, :]
    crossed = rows >= 0
    both_ways_bits = 8 * (options.payload_bytes + options.header_bytes + options.ack_bytes)
    rtt_s = np.where(crossed, both_ways_bits / links.rate_bps[rows] + 2 * options.link_delay_s, 0.0).sum(axis=1)
    product_bytes = rtt_s * links.rate_bps[rows[:, 0]] / 8
    found: _Longs = np.maximum(4 * product_bytes / lanes.rows.shape[1], options.payload_bytes).astype(np.int64)
    return found


def _lanes(
    experiment: Experiment, policy: Policy, pairs: Sequence[Pair], lanes: Lanes, counters: dict[str, _Longs]
) -> list[RankLane]:
    """What each lane has carried; where a queue pair chooses, what went by each port."""
    many = lanes.ports.shape[1]
    method = "ecmp" if policy.policy in STEERED else policy.policy
    return [
        RankLane(
            rank=src,
            lane=LaneCounters(
                peer=experiment.address(dst),
                lane=lane,
                port=int(lanes.ports[channel, lane]),
                port_method=method,
                tx_bytes=int(counters["bytes"][channel * many + lane]),
                tx_packets=int(counters["packets"][channel * many + lane]),
                flowlets=int(counters["flowlets"][channel * many + lane]),
                retransmits=int(counters["retransmits"][channel * many + lane]),
                timeouts=int(counters["timeouts"][channel * many + lane]),
                rtt_s=None,
            ),
        )
        for channel, (src, dst) in enumerate(pairs)
        for lane in range(many)
    ]
