# SPDX-License-Identifier: Apache-2.0
"""Training and phases, packet by packet: closed forms of jobs that meet or do not, and what the fluid has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.analysis.observations import RunRecord
from testbed.analysis.results import ideal_of
from testbed.errors import InputError
from testbed.progress import Steps
from testbed.simulate import fluid, packet
from testbed.spec import Experiment, Spec, check
from tests.testbed.experiments import first_of
from tests.testbed.simulate.small import ACK_BYTES, HEADER_BYTES

RATE_BPS = 1_000_000_000
PACKET_S = 8 * (4096 + HEADER_BYTES) / RATE_BPS
ACKS = 1 + ACK_BYTES / (4096 + HEADER_BYTES)
"""In a ring of two the way of data is the way of acknowledgements: a link carries one for each packet."""


def made(models: list[dict[str, Any]], iterations: int = 2, **changes: Any) -> Experiment:
    spec = {
        "name": "small",
        "fabric": "packet",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 8, "hosts_per_leaf": 8, "host_rate": "1 Gbit/s"}},
        "workload": {"kind": "training", "models": models, "iterations": iterations},
        "placement": {"rule": "packed", "ranks": sum(ranks_of(model) for model in models)},
        "policies": [{"name": "pinned", "policy": "pinned"}],
        "path_mtu": 4096,
        "packet": {"link_delay_s": 0},
        "fluid": {"link_delay_s": 0},
        **changes,
    }
    return check(Spec.model_validate(spec))


def ranks_of(model: dict[str, Any]) -> int:
    return int(model["tensor"] * model["pipeline"] * model["data"])


def ring(copies: int = 2, packets: int = 200, **changes: Any) -> dict[str, Any]:
    """A model without stages; a copy sends another one `packets` packets per step."""
    part_bytes = copies * packets * 4096
    return {"model": "bloom", "tensor": 1, "pipeline": 1, "data": copies, "part_bytes": part_bytes, **changes}


def runs_of(experiment: Experiment, model: Any = packet) -> list[RunRecord]:
    with Steps(None) as steps:
        runs: list[RunRecord] = model.observe(experiment, steps).runs
    return runs


def step_s(packets: int) -> float:
    """So many packets, and the last of them three links more."""
    return (packets + 3) * PACKET_S


NARROW = {
    "topology": {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 2, "host_rate": "1 Gbit/s"}},
    "placement": {"hosts": ["h1", "h3", "h2", "h4"]},
    "policies": [{"name": "ecmp", "policy": "ecmp"}],
}
"""Two jobs of two hosts each, across the same uplinks."""


@pytest.mark.parametrize("alone", [False, True])
def test_jobs_with_overlapping_iterations_share_the_uplink(alone: bool) -> None:
    policies = [{"name": "ecmp", "policy": "ecmp", "alone": alone}]
    experiment = made([ring(compute_s=0.01)] * 2, 3, **NARROW | {"policies": policies})
    sending_s = 2 * step_s(200 if alone else 2 * 200)
    for job in runs_of(experiment)[0].jobs:
        assert 3 * (0.01 + sending_s) <= job.completion_s <= 3 * (0.01 + 1.001 * ACKS * sending_s)


def test_jobs_that_compute_while_the_other_sends_do_not_meet() -> None:
    """With s for the sending of an iteration, one sends at 3 to 4 s, 7 to 8, 11 to 12; the other at 4.1 to 5.1, .."""
    sending_s = 2 * step_s(200)
    computing = [part * ACKS * sending_s for part in (3.0, 4.1)]
    experiment = made([ring(compute_s=seconds) for seconds in computing], 3, **NARROW)
    for job, compute_s in zip(runs_of(experiment)[0].jobs, computing, strict=True):
        assert 3 * (compute_s + sending_s) <= job.completion_s <= 3 * (compute_s + 1.001 * ACKS * sending_s)


def test_a_pipeline_fills_and_drains() -> None:
    """Three stages, four microbatches, one after the other over each link, there and back; nothing meets anything."""
    stages = {"model": "gpt3", "tensor": 1, "pipeline": 3, "data": 1, "microbatches": 4, "activation_bytes": 50 * 4096}
    experiment = made([{**stages, "compute_s": 0.03, "part_bytes": 8}], 1, placement={"hosts": ["h1", "h9", "h2"]})
    # The first stage's last microbatch leaves after all four, and has one stage more to go.
    least_s = 0.03 + 2 * (step_s(4 * 50) + step_s(50))
    assert least_s <= runs_of(experiment)[0].completion_s <= 0.03 + 1.03 * (least_s - 0.03)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(("policy", "m", "within"), [("pinned", 1, 0.03), ("controller", 1, 0.03), ("ecmp", 8, 0.05)])
def test_the_fluid_model_agrees_without_full_queues(policy: str, m: int, within: float, zero: int) -> None:
    """To 3 % of the time of sending. With 8 lanes the last of 200 packets takes there as long as 8, here as 4: lanes
    have windows for twice their part of the line rate."""
    jobs = [
        ring(copies=4, zero=zero, compute_s=0.02),
        {**ring(packets=100, zero=zero, compute_s=0.01), "pipeline": 2, "microbatches": 3, "activation_bytes": 409600},
    ]
    experiment = made(jobs, policies=[{"name": "it", "policy": policy, "m": m}])
    [run], [flowing] = runs_of(experiment), runs_of(experiment, fluid)
    assert run.completion_s > ideal_of(experiment)
    for one, other, model in zip(run.jobs, flowing.jobs, jobs, strict=True):
        computed_s = 2 * model["compute_s"]
        assert one.completion_s - computed_s == pytest.approx(other.completion_s - computed_s, rel=within)
    assert [(entry.rank, entry.lane.port) for entry in run.lanes] == [
        (entry.rank, entry.lane.port) for entry in flowing.lanes
    ]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), policy=st.sampled_from(["ecmp", "pinned", "spraying", "letflow"]), seed=st.integers(1, 99))
def test_everything_is_sent_once_no_ideal_is_beaten_and_a_seed_repeats_it(
    data: st.DataObject, policy: str, seed: int
) -> None:
    jobs = []
    for _ in range(data.draw(st.integers(1, 2))):
        split = {name: data.draw(st.integers(1, 2), label=name) for name in ("tensor", "pipeline", "data")}
        if split["pipeline"] == split["data"] == 1:
            split["data"] = 2
        zero, compute_s = data.draw(st.sampled_from([0, 3])), data.draw(st.sampled_from([0.0, 0.001, 0.1]))
        sizes = {"part_bytes": 8 * data.draw(st.integers(2, 20_000)), "activation_bytes": 5000, "microbatches": 2}
        jobs.append({"model": "bloom", "zero": zero, "compute_s": compute_s, **split, **sizes})
    experiment = made(jobs, policies=[{"name": "it", "policy": policy, "m": 2}], seeds=[seed])
    [run], [again] = runs_of(experiment), runs_of(experiment)
    assert run == again
    assert run.completion_s >= ideal_of(experiment) * (1 - 1e-9)
    sent = sum(8 * transfer.count for transfer in first_of(experiment).transfers)
    assert sum(entry.lane.tx_bytes for entry in run.lanes) == sum(flow.bytes for flow in run.flows) == sent
    assert all(load.dropped == 0 for load in run.links)


def test_ring_phases_take_the_transfer_time_of_their_links() -> None:
    """With phases, first within leaves, then across them, as in the fluid model; without phases both at once."""
    rings = {"kind": "hierarchical_allreduce", "bytes": 4_096_000, "gpus_per_domain": 4, "slices": 1}
    changes = {
        "topology": {"leaf_spine": {"leaves": 2, "spines": 4, "hosts_per_leaf": 4, "host_rate": "1 Gbit/s"}},
        "placement": {"rule": "packed"},
    }
    experiment = made([], workload=rings, **changes)
    ideal_s = (2 * 3 / 4 + 2 / 8) * 8 * 4_096_000 / RATE_BPS
    assert ideal_of(experiment) == pytest.approx(ideal_s)
    [run] = runs_of(experiment)
    assert ideal_s < run.completion_s < 1.1 * ideal_s
    assert run.completion_s == pytest.approx(runs_of(experiment, fluid)[0].completion_s, rel=0.03)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (ring(packets=1 << 26, compute_s=0.0), "packet: the size of a message is out of range"),
        (ring(compute_s=2e6), "packet: a time is negative or longer than a million seconds"),
        (ring(compute_s=6e5), "packet: a time is negative or longer than a million seconds"),  # of two iterations
    ],
)
def test_values_beyond_the_simulation_give_one_sentence(model: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        runs_of(made([model]))


# NEED
