# SPDX-License-Identifier: Apache-2.0
"""Task graphs on the ideal switch: bounds that hold for every graph, and the closed form."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.simulate.task_graphs import run_ideal
from testbed.training.closed_form import estimate, stage_of
from testbed.training.clusters import DGX_A100, DGX_H100
from testbed.training.communication import sent_over_fabric
from testbed.training.ideal import run
from testbed.training.korthikanti import MEASURED, Measured
from testbed.training.schedule import Exchange, Work, iteration, passes, work_of
from testbed.training.strategies import Strategy
from testbed.training.tasks import TaskGraph, in_turn
from testbed.training.transformer import GPT_22B, GPT_175B, LLAMA_3_405B, Transformer
from tests.testbed.training.graphs import graphs

RATE_BPS = 8e9
"""One byte takes a nanosecond."""


@given(graphs())
def test_no_run_is_shorter_than_its_longest_chain_or_any_device_or_link(graph: TaskGraph) -> None:
    seconds = run(graph, RATE_BPS).seconds
    slack = 1 - 1e-9
    assert seconds >= slack * graph.longest_chain_s(RATE_BPS)
    assert seconds >= slack * 8 * graph.sent_bytes().max() / RATE_BPS
    assert seconds >= slack * 8 * graph.received_bytes().max() / RATE_BPS
    assert seconds >= slack * graph.computed_s().max()


@given(graphs())
def test_a_run_keeps_order_and_never_uses_a_resource_twice(graph: TaskGraph) -> None:
    found = run(graph, RATE_BPS)
    for number, waits in enumerate(graph.after):
        assert all(found.ends_s[earlier] <= found.starts_s[number] for earlier in waits)
    for users in (lambda task: task.engines, lambda task: task.senders, lambda task: task.receivers):
        for device in range(graph.devices):
            spans = sorted(
                (found.starts_s[number], found.ends_s[number])
                for number, task in enumerate(graph.tasks)
                if device in users(task)
            )
            assert all(before[1] <= after[0] for before, after in pairwise(spans))


@given(graphs())
def test_a_run_is_no_longer_than_all_tasks_one_after_the_other(graph: TaskGraph) -> None:
    one_by_one = sum(task.seconds(RATE_BPS) for task in graph.tasks)
    assert run(graph, RATE_BPS).seconds <= one_by_one * (1 + 1e-9)


def schedules(*, interleaved: bool) -> st.SearchStrategy[Strategy]:
    """Pipelines of up to 5 stages."""

    def of(stages: int, groups: int, rest: int, chunks: int) -> Strategy:
        batches = groups * stages if interleaved else groups * stages + rest % stages
        return Strategy(
            pipeline=stages,
            microbatches=max(1, batches),
            interleave=chunks if interleaved else 1,
            overlap_transfers=True,
        )

    return st.builds(of, st.integers(2, 5), st.integers(1, 4), st.integers(0, 4), st.integers(2, 4))


@given(schedules(interleaved=False) | schedules(interleaved=True), st.integers(0, 10))
def test_transfers_behind_computing_cost_what_the_closed_form_says(strategy: Strategy, tenths: int) -> None:
    """1F1B and interleaved 1F1B with a backward pass of twice the forward pass and transfers up to one forward pass."""
    graph = iteration(strategy, Work(1.0, 2.0, 1, activations=Exchange(bytes=tenths * 1e8)))
    stages, batches, chunks = strategy.pipeline, strategy.microbatches, strategy.interleave
    rounds, rest = divmod(batches - 1, stages)
    exposed = stages * chunks - 1 if chunks > 1 else (stages - 1) * (1 + rounds) + max(0, rest - 1)
    wanted = 3 * (batches * chunks + stages - 1) + 2 * exposed * tenths / 10
    assert run(graph, RATE_BPS).seconds == pytest.approx(wanted)


def _both_s(model: Transformer, strategy: Strategy) -> tuple[float, float]:
    """An iteration on the ideal switch, and in closed form."""
    fabric = DGX_A100.fabric
    graph = iteration(strategy, work_of(model, strategy, DGX_A100))
    simulated = run(graph, fabric.rate_bps * fabric.efficiency)
    return simulated.seconds, estimate(model, strategy, DGX_A100).iteration_s


BASE = Strategy(tensor=8, data=3, microbatches=6, recomputation="selective", sequence=True)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_copies_without_a_pipeline_take_as_long_as_the_closed_form(zero: Literal[0, 1, 2], overlap: bool) -> None:
    simulated, closed = _both_s(GPT_22B, replace(BASE, zero=zero, overlap_gradients=overlap))
    assert simulated == pytest.approx(closed, rel=1e-9)


@given(graphs(), st.integers(1, 3))
def test_a_device_begins_a_round_when_it_has_ended_the_one_before(graph: TaskGraph, times: int) -> None:
    rounds = in_turn(graph, times)
    found = run(rounds, RATE_BPS)
    assert found.seconds >= (1 - 1e-9) * graph.longest_chain_s(RATE_BPS)
    if times == 1:
        assert rounds == graph
    count = len(graph.tasks)
    for device in range(graph.devices):
        acting = [number for number, task in enumerate(graph.tasks) if device in (*task.engines, *task.senders)]
        own = [number for number, task in enumerate(graph.tasks) if device in (*task.engines, *task.devices)]
        for first in range(count, times * count, count):
            begin = min((found.starts_s[first + number] for number in acting), default=np.inf)
            assert all(found.ends_s[first - count + number] <= begin for number in own)


def test_iterations_of_copies_take_as_many_times_as_long() -> None:
    graph = iteration(BASE, work_of(GPT_22B, BASE, DGX_A100))
    rate_bps = DGX_A100.fabric.rate_bps * DGX_A100.fabric.efficiency
    assert run(in_turn(graph, 3), rate_bps).seconds == pytest.approx(3 * run(graph, rate_bps).seconds)


SPARSE = Transformer("sparse", 4, 2048, 16, experts=8, chosen=2)


@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_tokens_of_experts_take_as_long_as_the_closed_form(
    tensor: int, recomputation: Literal["none", "selective", "full"]
) -> None:
    cluster = replace(DGX_A100, domain_gpus=2)
    strategy = Strategy(
        tensor=tensor, data=8, expert=8, microbatches=3, recomputation=recomputation, overlap_gradients=False
    )
    graph = iteration(strategy, work_of(SPARSE, strategy, cluster))
    sent = sum(task.bytes for task in graph.tasks if task.name == "tokens")
    assert sent == pytest.approx(sent_over_fabric(SPARSE, strategy, cluster).tokens) != 0
    simulated = run(graph, cluster.fabric.rate_bps * cluster.fabric.efficiency).seconds
    assert simulated == pytest.approx(estimate(SPARSE, strategy, cluster).iteration_s, rel=1e-9)


def test_experts_in_fp8_take_as_long_as_the_closed_form() -> None:
    """The layers of GPT 175B, of which experts take more than all of a pass in FP8 if they are counted in BF16."""
    model, cluster = replace(GPT_175B, layers=4, experts=16, chosen=4), replace(DGX_H100, domain_gpus=8)
    strategy = Strategy(tensor=8, data=16, expert=16, flash=True, fp8=True, overlap_gradients=False)
    graph = iteration(strategy, work_of(model, strategy, cluster))
    simulated = run(graph, cluster.fabric.rate_bps * cluster.fabric.efficiency).seconds
    assert simulated == pytest.approx(estimate(model, strategy, cluster).iteration_s, rel=1e-9)


@pytest.mark.parametrize("expert", [1, 2, 8])
def test_gradients_of_experts_are_bytes_that_copies_send(expert: int) -> None:
    model, cluster = Transformer("sparse", 4, 2048, 16, experts=8), replace(DGX_A100, domain_gpus=2)
    strategy = Strategy(data=8, expert=expert)
    graph = iteration(strategy, work_of(model, strategy, cluster))
    counted = sent_over_fabric(model, strategy, cluster)
    assert (counted.owned > 0) == (expert < 8)
    sent = sum(task.bytes for task in graph.tasks if task.name == "gradients")
    assert sent == pytest.approx(counted.shared + counted.owned)
    rate_bps = cluster.fabric.rate_bps * cluster.fabric.efficiency
    simulated, closed = run(graph, rate_bps).seconds, estimate(model, strategy, cluster)
    assert run_ideal(graph, rate_bps).max() == pytest.approx(closed.iteration_s, rel=0.003)
    # On list scheduling, a layer's gradients may hold up the tokens of the layers below it, each way.
    waited = 2 * (model.layers - 1) * stage_of(model, strategy, cluster).gradient_s if counted.tokens else 0.0
    assert closed.iteration_s * (1 - 1e-9) <= simulated <= closed.iteration_s * (1 + 1e-9) + waited


@pytest.mark.parametrize("overlap", [False, True])
def test_gathers_of_zero_3_take_as_long_as_the_closed_form(overlap: bool) -> None:
    simulated, closed = _both_s(GPT_22B, replace(BASE, zero=3, overlap_gradients=overlap))
    assert simulated == pytest.approx(closed, rel=0.005)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("stages", [2, 4])
def test_copies_of_a_pipeline_take_as_long_as_the_closed_form(
    stages: int, zero: Literal[0, 1, 2], overlap: bool
) -> None:
    """On list scheduling, each transfer may wait for the gradients of a layer that already occupy its NIC: those of the
    drain, or where every microbatch has its exchange, all of the longest path."""
    strategy = replace(BASE, pipeline=stages, zero=zero, overlap_gradients=overlap, overlap_transfers=overlap)
    simulated, closed = _both_s(GPT_22B, strategy)
    stage, transfers_s = stage_of(GPT_22B, strategy, DGX_A100), estimate(GPT_22B, strategy, DGX_A100).transfer_s
    transfers = transfers_s / stage.transfer_s if zero == 2 else stages - 1
    waited = transfers * stage.gradient_s if overlap else 0.0
    assert 0.988 * closed < simulated < 1.001 * closed + waited


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 6), (3, 5), (4, 6), (6, 12)])
def test_where_tasks_share_nics_transfers_do_not_wait_for_gradients(
    stages: int, microbatches: int, zero: Literal[0, 1, 2]
) -> None:
    strategy = replace(BASE, pipeline=stages, microbatches=microbatches, zero=zero, overlap_transfers=True)
    graph = iteration(strategy, work_of(GPT_22B, strategy, DGX_A100))
    ends_s = run_ideal(graph, DGX_A100.fabric.rate_bps * DGX_A100.fabric.efficiency)
    assert ends_s.max() == pytest.approx(estimate(GPT_22B, strategy, DGX_A100).iteration_s, rel=0.003)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("layers", "chunks"), [(14, 4), (14, 2), (14, 1), (15, 2), (15, 1)])
def test_pipelines_whose_ends_lack_a_layer_take_no_longer_than_the_closed_form(
    layers: int, chunks: int, overlap: bool
) -> None:
    """Layers of Llama 3 405B. With four chunks, the first and the last one are only the embedding and the output."""
    model = replace(LLAMA_3_405B, layers=layers)
    strategy = Strategy(8, 4, 1, 8, interleave=chunks, sequence=True, overlap_transfers=overlap)
    simulated, closed = _both_s(model, strategy)
    assert 0.95 * closed < simulated < 1.001 * closed


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_the_126_layers_of_llama_3_take_as_long_as_the_closed_form(chunks: int) -> None:
    simulated, closed = _both_s(LLAMA_3_405B, Strategy(8, 16, 1, 16, interleave=chunks, sequence=True))
    assert simulated == pytest.approx(closed, rel=0.003)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("layers", [14, 15, 16])
def test_copies_exchange_only_the_layers_that_a_stage_has(
    layers: int, zero: Literal[0, 1, 2, 3], overlap: bool
) -> None:
    strategy = replace(BASE, pipeline=4, data=2, microbatches=4, interleave=4, zero=zero, overlap_gradients=overlap)
    graph = iteration(strategy, work_of(replace(GPT_22B, layers=layers), strategy, DGX_A100))
    collectives = [task.name for task in graph.tasks if task.kind not in (None, "send") and task.bytes]
    assert collectives.count("gradients") == layers * (4 if zero > 1 else 1)
    tables = 2 if zero else 0
    assert collectives.count("parameters") == (layers * (8 if zero == 3 else 1) + tables if zero else 0)


@pytest.mark.parametrize(
    "measured", MEASURED[:4], ids=lambda measured: f"{measured.model.name}-{measured.strategy.recomputation}"
)
def test_measured_configurations_take_as_long_as_the_closed_form(measured: Measured) -> None:
    """The larger two are within 0.6 % and take seconds each to simulate."""
    simulated, closed = _both_s(measured.model, measured.strategy)
    assert simulated == pytest.approx(closed, rel=0.002)


def test_a_stage_alternates_after_its_warm_up() -> None:
    """Figure 4 of Narayanan et al.: four stages, eight microbatches, two chunks."""
    plain = [(step.backward, step.microbatch) for step in passes(Strategy(pipeline=4, microbatches=8), 3)]
    assert plain == [(back, batch) for batch in range(8) for back in (False, True)]
    chunked = passes(Strategy(pipeline=4, microbatches=8, interleave=2), 0)
    assert [step.backward for step in chunked].index(True) == 6 + 4 + 1
    assert [(step.chunk, step.microbatch) for step in chunked[:9]] == [
        *((0, batch) for batch in range(4)),
        *((1, batch) for batch in range(4)),
        (0, 4),
    ]
    first_back = next(step for step in chunked if step.backward)
    assert (first_back.chunk, first_back.microbatch) == (1, 0)


def test_tasks_that_wait_for_each_other_are_refused() -> None:
    graph = TaskGraph(1)
    first, second = graph.compute(0, 1.0, name="one"), graph.compute(0, 1.0, name="two")
    graph.wait(first, second)
    graph.wait(second, first)
    with pytest.raises(ValueError, match=r"task 0 \(one\) waits for itself"):
        run(graph, RATE_BPS)


def test_a_task_that_does_not_fit_its_graph_is_refused() -> None:
    graph = TaskGraph(2)
    with pytest.raises(ValueError, match="has 2 devices"):
        graph.compute(2, 1.0)
    with pytest.raises(ValueError, match="cannot send to itself"):
        graph.send(1, 1, 8)
    with pytest.raises(ValueError, match="has not been added yet"):
        graph.compute(0, 1.0, after=[0])
    with pytest.raises(ValueError, match="0 or more"):
        graph.compute(0, -1.0)
    with pytest.raises(ValueError, match="a rate is above 0"):
        run(graph, 0)


def test_zero_3_in_a_pipeline_is_left_to_the_task_graph() -> None:
    strategy = replace(BASE, pipeline=2, zero=3)
    with pytest.raises(ValueError, match="simulate the task graph"):
        estimate(GPT_22B, strategy, DGX_A100)
    graph = iteration(strategy, work_of(GPT_22B, strategy, DGX_A100))
    assert run(graph, 180e9).seconds > estimate(GPT_22B, replace(strategy, zero=2), DGX_A100).iteration_s
