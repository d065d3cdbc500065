# SPDX-License-Identifier: Apache-2.0
"""Fidelity `fair` against the fluid model, and the other fidelities against `fair`."""

from dataclasses import replace

import numpy as np
import pytest

from sdn.isolation import Allocation, Cluster
from sim.cluster import FidelityName, Job, NetworkName, Pattern, Scenario, Shape, TraceShape, generate, simulate
from sim.cluster.fair import Fair
from sim.cluster.jobs import steps_of
from sim.cluster.networks import Traffic, traffic_of
from sim.fluid import Messages, Simulation
from sim.messages import NO_CHANNEL
from sim.paths import Paths

SHAPE = Shape(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2)
PODS = replace(SHAPE, spines=2, pods=2, cores=2)
RANKS = 8


def ends_by_fair(shape: Shape, jobs: list[Job], traffics: list[Traffic]) -> list[float]:
    """When jobs end that all start at 0."""
    network = Fair(shape)
    left = {slot: network.start(slot, *both) for slot, both in enumerate(zip(jobs, traffics, strict=True))}
    ends, now_s = [0.0] * len(jobs), 0.0
    while left:
        slots, speeds = network.speeds()
        speed = dict(zip(slots.tolist(), speeds.tolist(), strict=True))
        slot = min(left, key=lambda slot: left[slot] / speed[slot])
        passed_s = left[slot] / speed[slot]
        network.advance(passed_s)
        now_s += passed_s
        left = {other: work - speed[other] * passed_s for other, work in left.items()}
        if (work := network.next(slot)) is None:
            del left[slot]
            ends[slot] = now_s
        else:
            left[slot] = work
    return ends


def ends_by_fluid(shape: Shape, jobs: list[Job], traffics: list[Traffic]) -> list[float]:
    """The same by the fluid model: a channel for each lane of each flow, and steps that wait for each other."""
    rows: list[list[int]] = []
    bits: list[float] = []
    waves: list[list[list[int]]] = []  # by job and step: its channels
    nic = shape.links
    for job, traffic in zip(jobs, traffics, strict=True):
        paths = traffic.paths
        assert paths is not None
        steps: list[list[int]] = [[] for _ in traffic.starts]
        for step, ways in zip(paths.step.tolist(), paths.links.tolist(), strict=True):
            lanes = len(ways) // shape.planes
            for number, links in enumerate(ways):
                steps[step].append(len(rows))
                rows.append([*links, nic + number // lanes])
                bits.append(job.run_s * job.communication * float(traffic.shares[step]) / lanes)
            nic += shape.planes
        waves.append(steps)
    simulation = Simulation(np.ones(nic))
    simulation.add_channels(Paths.of(np.array(rows)[:, np.newaxis]))
    last: list[list[int]] = []
    for job, traffic, steps in zip(jobs, traffics, waves, strict=True):
        quiet_s = job.run_s * (1 - job.communication + job.communication * traffic.quiet)
        before = [simulation.add_messages(Messages([NO_CHANNEL], delay_s=quiet_s))]
        for channels in steps:
            first = simulation.add_messages(Messages(channels, [bits[channel] for channel in channels]))
            now = list(range(first, first + len(channels)))
            pairs = [(earlier, later) for earlier in before for later in now]
            simulation.add_waits([earlier for earlier, _ in pairs], [later for _, later in pairs])
            before = now
        last.append(before)
    assert simulation.advance() == []
    delivered = simulation.delivered_s()
    return [float(delivered[messages].max()) for messages in last]


@pytest.mark.parametrize(("network", "lanes"), [("ecmp", 1), ("source_routing", 1), ("paralet", 3)])
@pytest.mark.parametrize("pattern", ["ring", "halving_doubling", "pairwise_alltoall"])
@pytest.mark.parametrize("shape", [SHAPE, PODS, replace(PODS, planes=2)], ids=["leaves", "pods", "planes"])
def test_two_jobs_end_when_the_fluid_model_says(
    network: NetworkName, lanes: int, pattern: Pattern, shape: Shape
) -> None:
    steps = steps_of(pattern, RANKS, shape.gpus_per_server)
    gpus = sorted(Cluster.empty(4, 4, 2, 2).idle)
    stretched = 0
    for seed in range(10 if shape is SHAPE else 4):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(gpus))
        parts = (order[:RANKS], order[RANKS:])
        jobs = [Job(f"job{n}", 0.0, RANKS, run_s, 0.8, pattern) for n, run_s in enumerate(rng.uniform(5, 10, 2))]
        traffics = [
            traffic_of(
                shape,
                network,
                Allocation(job.name, 2, tuple(gpus[n] for n in sorted(part))),
                steps,
                np.zeros(shape.links),
                rng,
                lanes,
                with_paths=True,
            )
            for job, part in zip(jobs, parts, strict=True)
        ]
        present = [traffic for traffic in traffics if traffic is not None]
        assert len(present) == len(jobs)
        fair = ends_by_fair(shape, jobs, present)
        assert fair == pytest.approx(ends_by_fluid(shape, jobs, present), rel=1e-6)
        stretched += sum(end > 1.01 * job.run_s for end, job in zip(fair, jobs, strict=True))
    assert stretched  # else nothing was compared


def test_a_step_too_short_for_the_clock_ends() -> None:
    """At 1e6 s the clock does not count a microsecond's billionth, which is what rounding may leave of a flow."""
    jobs = [Job(f"job{n}", 1e6, 8, 1.0 + n / 7, 1e-9, "pairwise_alltoall") for n in range(2)]
    result = simulate(jobs, Scenario(SHAPE, "scattered", "ecmp", fidelity="fair", rounds=3))
    assert [outcome.state for outcome in result.outcomes] == ["ended", "ended"]


def added_s(jobs: list[Job], placement: str, fidelity: FidelityName) -> float:
    """The mean time that contention adds to a job."""
    scenario = Scenario(Shape(16, 32, 4, 8), placement, "ecmp", fidelity=fidelity)  # type: ignore[arg-type]
    outcomes = simulate(jobs, scenario).outcomes
    return float(np.mean([(outcome.running_s or 0.0) - outcome.job.run_s for outcome in outcomes]))


def test_all_fidelities_agree_for_packed_jobs() -> None:
    """docs/cluster.md has the numbers of a longer trace."""
    jobs = generate(TraceShape(500, 100.0, correlation=0.3), 1)
    fair = added_s(jobs, "packed", "fair")
    assert fair > 0
    assert added_s(jobs, "packed", "average") == pytest.approx(fair, rel=0.1)
    assert added_s(jobs, "packed", "steps") == pytest.approx(fair, rel=0.1)


def test_fair_lies_between_the_others_for_scattered_jobs() -> None:
    """`steps` leaves unused what flows that have ended no longer need; `average` forgets that a step waits for all."""
    jobs = generate(TraceShape(300, 100.0, correlation=0.3), 1)
    assert added_s(jobs, "scattered", "average") < added_s(jobs, "scattered", "fair")
    assert added_s(jobs, "scattered", "fair") < added_s(jobs, "scattered", "steps")
