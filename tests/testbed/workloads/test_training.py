# SPDX-License-Identifier: Apache-2.0
"""Training jobs: bytes by formula, sums in every copy, consecutive phases, and runs on the fluid fabric."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.analysis.results import ideal_of
from testbed.conflict import Conflict
from testbed.progress import Steps
from testbed.simulate import fluid
from testbed.spec import Experiment, Spec, check
from testbed.training.phased import phased
from testbed.workloads.training import OneTraining, Training
from testbed.workloads.training_models import BLOOM, GPT3, LLAMA2, Model, Parallelism, traffic
from tests.testbed.workloads.test_schedules import simulate


def training(*models: dict[str, Any], iterations: int = 1, slices: int = 1) -> Training:
    return Training.model_validate({"models": list(models), "iterations": iterations, "slices": slices})


def small(**changes: Any) -> dict[str, Any]:
    return {"model": "bloom", "tensor": 2, "pipeline": 1, "data": 3, "part_bytes": 720, **changes}


def made(*models: dict[str, Any], iterations: int = 1, **changes: Any) -> Experiment:
    spec = {
        "name": "small",
        "fabric": "fluid",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 8, "hosts_per_leaf": 8, "host_rate": "10 Gbit/s"}},
        "workload": {"kind": "training", "models": list(models), "iterations": iterations},
        "placement": {
            "rule": "packed",
            "ranks": training(*models).job_sizes and sum(training(*models).job_sizes or []),
        },
        "policies": [{"name": "optimal", "policy": "controller"}],
        **changes,
    }
    return check(Spec.model_validate(spec))


def completion_s(experiment: Experiment) -> float:
    with Steps(None) as steps:
        return fluid.observe(experiment, steps).runs[0].completion_s


@pytest.mark.parametrize(("model", "billions"), [(BLOOM, 176), (GPT3, 175), (LLAMA2, 70)], ids=lambda value: str(value))
def test_shapes_give_the_models_numbers_of_parameters(model: Model, billions: int) -> None:
    """A GPT layer has 12 h^2; LLaMA's has fewer in attention and more in the MLP, about the same in all."""
    assert 12 * model.layers * model.hidden**2 == pytest.approx(billions * 1e9, rel=0.1)
    assert model.parameters == billions * 1e9


def test_bytes_match_the_formulas() -> None:
    sent = traffic(GPT3, Parallelism(data=8, microbatches=4, microbatch=2))
    activations = 2 * 2048 * 12288 * 2
    assert sent.data == pytest.approx(2 * 7 / 8 * 4 * 175e9 / 64)
    assert sent.pipeline == 2 * 4 * activations / 8
    # 8 b s h (t - 1) / t elements in each layer of a stage (Narayanan et al., section 3.2), for each microbatch.
    assert sent.tensor == pytest.approx(4 * 96 / 8 * 8 * 7 / 8 * activations)
    assert traffic(GPT3, Parallelism(8, zero=3)).data == pytest.approx(1.5 * sent.data)


@given(
    tensor=st.integers(1, 2),
    groups=st.integers(1, 3),
    expert=st.integers(1, 3),
    pipeline=st.integers(1, 3),
    interleave=st.integers(1, 2),
    zero=st.integers(0, 3),
    iterations=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_copies_end_with_sums(
    tensor: int, groups: int, expert: int, pipeline: int, interleave: int, zero: int, iterations: int, seed: int
) -> None:
    data = groups * expert
    assume(data > 1 or pipeline > 1)
    job = small(tensor=tensor, data=data, pipeline=pipeline, zero=zero, microbatches=6, activation_bytes=96)
    job |= {"interleave": interleave if pipeline > 1 else 1, "compute_s": 0.0}
    if expert > 1:
        job |= {"expert": expert, "routed_bytes": 48, "expert_bytes": 240, "recomputed": bool(seed % 2)}
    iteration = training(job, iterations=iterations).of_job(0)
    ranks = tensor * data * pipeline
    iteration.check_ranks(ranks)
    for rank, output in enumerate(simulate(iteration, ranks, seed)):
        assert np.array_equal(output, iteration.expected(rank, ranks, seed))


@given(
    data=st.integers(1, 4),
    expert=st.integers(1, 2),
    pipeline=st.integers(1, 3),
    interleave=st.integers(1, 2),
    zero=st.integers(0, 3),
    slices=st.integers(1, 3),
)
def test_ranks_send_what_the_task_graph_says(
    data: int, expert: int, pipeline: int, interleave: int, zero: int, slices: int
) -> None:
    assume(data * expert > 1 or pipeline > 1)
    job = small(data=data * expert, pipeline=pipeline, zero=zero, microbatches=6, activation_bytes=96, part_bytes=808)
    job |= {"interleave": interleave if pipeline > 1 else 1, "compute_s": 0.3}
    if expert > 1:
        job |= {"expert": expert, "routed_bytes": 48, "expert_bytes": 248}
    iteration = training(job, slices=slices).of_job(0)
    assert isinstance(iteration, OneTraining)
    sent, received = np.zeros(iteration.phased.gpus), np.zeros(iteration.phased.gpus)
    transfers = iteration.schedule(iteration.phased.gpus, 0)
    for transfer in transfers:
        sent[transfer.src] += transfer.count * iteration.item_bytes
        received[transfer.dst] += transfer.count * iteration.item_bytes
    graph = phased(iteration.phased).graph
    assert sent.sum() == pytest.approx(graph.sent_bytes().sum())
    # Pieces of a ring differ by one element at most.
    assert np.abs(sent - graph.sent_bytes()).max() <= 2 * 3 * iteration.item_bytes
    assert np.abs(received - graph.received_bytes()).max() <= 2 * 3 * iteration.item_bytes
    assert sum(iteration.pauses(0).values()) == pytest.approx(graph.computed_s()[0])
    hops = {(src, dst) for task in graph.tasks for src, dst, _ in task.messages()}
    assert hops == {(transfer.src, transfer.dst) for transfer in transfers}


@pytest.mark.parametrize(("zero", "rounds"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_bytes_of_a_rank_match_the_stage_of_zero(zero: int, rounds: int) -> None:
    iteration = training(small(zero=zero, part_bytes=None), iterations=2).of_job(0)
    sent = Counter[int]()
    for transfer in iteration.schedule(6, 0):
        sent[transfer.src] += transfer.count * iteration.item_bytes
    split = small_model()
    expected = 2 * traffic(split, Parallelism(3, zero)).data
    assert expected == pytest.approx(2 * rounds * 2 / 3 * split.part_bytes)
    assert set(sent) == set(range(6))
    assert all(count == pytest.approx(expected, rel=1e-6) for count in sent.values())


def test_inner_stages_forward_all_microbatches_both_ways() -> None:
    iteration = training(small(data=1, pipeline=3, microbatches=5), iterations=1).of_job(0)
    sent = Counter[int]()
    for transfer in iteration.schedule(6, 0):
        assert abs(transfer.src - transfer.dst) == 2  # the tensor parallel neighbour is the next rank
        sent[transfer.src] += transfer.count * iteration.item_bytes
    share = 5 * 2048 * 14336 * 2 // 2
    assert [sent[rank] for rank in range(6)] == [share, share, 2 * share, 2 * share, share, share]


EXPERTS = {"data": 6, "expert": 3, "routed_bytes": 4800, "expert_bytes": 2400, "tensor": 2, "part_bytes": 720}


@pytest.mark.parametrize(("recomputed", "passes"), [(False, 2), (True, 3)])
def test_experts_exchange_tokens_in_their_group_and_gradients_with_those_that_hold_the_same(
    recomputed: bool, passes: int
) -> None:
    iteration = training(small(**EXPERTS, recomputed=recomputed)).of_job(0)
    sent = Counter[tuple[int, int]]()
    for transfer in iteration.schedule(12, 0):
        sent[transfer.src, transfer.dst] += transfer.count * iteration.item_bytes
    shared, owned = 2 * 5 / 6 * 720, 2 * 1 / 2 * 2400
    for copy in range(6):
        rank, first = 2 * copy, copy // 3 * 3
        expected = Counter({2 * other: passes * 4800 for other in range(first, first + 3) if other != copy})
        expected[2 * ((copy + 1) % 6)] += shared
        expected[2 * ((copy + 3) % 6)] += owned
        assert {dst: count for (src, dst), count in sent.items() if src == rank} == expected


def test_chunks_send_a_microbatch_past_every_stage_as_often_as_there_are_chunks() -> None:
    iteration = training(
        small(data=1, pipeline=3, microbatches=6, interleave=2, activation_bytes=80, compute_s=0)
    ).of_job(0)
    sent = Counter[tuple[int, int]]()
    for transfer in iteration.schedule(6, 0):
        sent[transfer.src, transfer.dst] += transfer.count * iteration.item_bytes
    # From stage to stage 6 microbatches in each of 2 chunks, from the last stage to the first only between the chunks.
    ways = {(src, src + 2): 12 * 80 for src in range(4)} | {(src, src % 2): 6 * 80 for src in (4, 5)}
    assert sent == ways | {(dst, src): count for (src, dst), count in ways.items()}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"expert": 2}, "2 copies that share experts do not divide 3 copies"),
        ({"expert": 3}, "bloom has no experts: say with routed_bytes how much these exchange"),
        ({"routed_bytes": 8}, "only copies that share experts have this; leave it out, or give expert"),
        ({"interleave": 2}, "interleaving needs 2 stages or more and a multiple of 1 microbatches, not 8"),
    ],
)
def test_experts_and_chunks_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        training(small(**changes))


def computing_s(**changes: Any) -> float:
    """Forward and backward time of an iteration of GPT-3 with two copies."""
    iteration = training({"model": "gpt3", "data": 2, **changes}).of_job(0)
    return sum(iteration.pauses(0).values())


def test_computing_depends_on_the_split_the_batch_and_the_gpu() -> None:
    whole = computing_s(tensor=8, pipeline=8)
    assert whole == pytest.approx(2.93, abs=0.005)
    assert computing_s(tensor=8, pipeline=2) == pytest.approx(6.98, abs=0.005)
    assert computing_s(tensor=4, pipeline=8) > 1.5 * whole
    assert computing_s(tensor=8, pipeline=8, gpu="h100") < whole / 1.8
    stages = 15 / 8  # eight microbatches go through eight stages
    assert computing_s(tensor=8, pipeline=8, microbatches=64) == pytest.approx(whole * 71 / 8 / stages, rel=0.05)
    assert 3 * whole < computing_s(tensor=8, pipeline=8, microbatch=4) < 4 * whole  # larger products reach more
    assert computing_s(tensor=8, pipeline=8, zero=3) == pytest.approx(whole)


def test_a_given_computing_time_stays() -> None:
    iteration = training({"model": "gpt3", "data": 2, "tensor": 8, "pipeline": 2, "compute_s": 0.3}).of_job(0)
    assert list(iteration.pauses(0).values()) == pytest.approx([0.1, 0.2])


def test_a_split_without_a_computing_time_is_refused() -> None:
    uneven = {"model": "llama2-70b", "data": 2, "tensor": 3, "pipeline": 1}
    with pytest.raises(ValueError, match="64 heads do not divide among 3 GPUs; take another split, or give compute_s"):
        training(uneven)
    training({**uneven, "compute_s": 1.0})


def test_an_iteration_takes_the_sum_of_computing_and_sending() -> None:
    job = small(compute_s=0.3, part_bytes=3_000_000)
    experiment = made(job, iterations=4)
    sending_s = 2 * 2 / 3 * 8 * 3e6 / 10e9
    assert ideal_of(experiment) == pytest.approx(4 * (0.3 + sending_s))
    iteration = experiment.spec.workload.of_job(0)
    assert isinstance(iteration, OneTraining)
    assert phased(iteration.phased).graph.longest_chain_s(10e9) == pytest.approx(0.3 + sending_s)
    # Packets have headers, and the last of each message waits for switches.
    assert 4 * (0.3 + sending_s) < completion_s(experiment) < 4 * (0.3 + 1.1 * sending_s)


def test_every_policy_runs_models_of_different_sizes() -> None:
    policies = [
        {"name": "ecmp", "policy": "ecmp"},
        {"name": "paralet", "policy": "ecmp", "m": 4},
        {"name": "qp", "policy": "qp_scaling", "m": 4},
        {"name": "pinned", "policy": "pinned"},
    ]
    jobs = [
        small(compute_s=0.01, part_bytes=720_000),
        small(
            model="gpt3",
            data=2,
            pipeline=2,
            tensor=1,
            zero=3,
            microbatches=2,
            part_bytes=720_000,
            activation_bytes=80_000,
            compute_s=0.02,
        ),
    ]
    experiment = made(*jobs, policies=policies, iterations=2)
    assert [job.size for job in experiment.jobs] == [6, 4]
    with Steps(None) as steps:
        runs = fluid.observe(experiment, steps).runs
    for run in runs:
        assert run.completion_s >= ideal_of(experiment) * (1 - 1e-9)
        assert [job.ranks for job in run.jobs] == [6, 4]


def test_ring_phases_take_the_transfer_time_of_their_links() -> None:
    """First 2 (x - 1) / x of the input within leaves, then 2 (y - 1) / (x y) of it across them."""
    spec = {
        "name": "grid",
        "fabric": "fluid",
        "topology": {"leaf_spine": {"leaves": 2, "spines": 4, "hosts_per_leaf": 4, "host_rate": "1 Gbit/s"}},
        "workload": {"kind": "hierarchical_allreduce", "bytes": 8_000_000, "gpus_per_domain": 4, "slices": 1},
        "placement": {"rule": "packed"},
        "policies": [{"name": "pinned", "policy": "pinned"}],
    }
    experiment = check(Spec.model_validate(spec))
    ideal_s = (2 * 3 / 4 + 2 / 8) * 8 * 8e6 / 1e9
    assert ideal_of(experiment) == pytest.approx(ideal_s)
    assert ideal_s < completion_s(experiment) < 1.1 * ideal_s


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"jobs": 2}, "workload training has the jobs in its models"),
        ({"placement": {"rule": "packed", "ranks": 8}}, "must be 2 or more and add up to the 8 ranks placed"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Conflict, match=sentence):
        made(small(), **changes)


def test_a_model_that_sends_nothing_is_refused() -> None:
    with pytest.raises(Conflict, match="one copy without a pipeline sends nothing"):
        made(small(data=1))


def small_model() -> Model:
    return training(small(part_bytes=None)).models[0].split
