# SPDX-License-Identifier: Apache-2.0
"""Iterations in phases: what they send, in which order, and graphs of several jobs on the devices of one fabric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.training.ideal import run
from testbed.training.phased import PhasedModel, phased
from testbed.training.strategies import Zero
from testbed.training.tasks import Phase, TaskGraph

RATE_BPS = 8e9  # a byte per nanosecond


def model(**changes: float) -> PhasedModel:
    given = {"tensor": 1, "pipeline": 1, "data": 4, "forward_s": 1.0, "backward_s": 2.0, "gradient_bytes": 1e9}
    return PhasedModel(**(given | changes))  # type: ignore[arg-type]


def kinds(job: PhasedModel) -> list[str | None]:
    """What each phase sends."""
    graph = phased(job).graph
    return [graph.tasks[phase.begin + 1].kind for phase in graph.phases]


@pytest.mark.parametrize(
    ("zero", "expected", "rounds"),
    [
        (0, ["all_reduce"], 2),
        (1, ["reduce_scatter", "all_gather"], 2),
        (2, ["reduce_scatter", "all_gather"], 2),
        (3, ["all_gather", "all_gather", "reduce_scatter"], 3),
    ],
)
def test_the_stage_of_zero_says_what_copies_exchange(zero: Zero, expected: list[str], rounds: int) -> None:
    job = model(zero=zero)
    assert kinds(job) == expected
    graph = phased(job).graph
    assert graph.sent_bytes() == pytest.approx(rounds * 3 / 4 * 1e9)
    assert run(graph, RATE_BPS).seconds == pytest.approx(1.0 + 2.0 + rounds * 3 / 4)
    assert graph.longest_chain_s(RATE_BPS) == pytest.approx(run(graph, RATE_BPS).seconds)


def test_experts_exchange_tokens_after_each_pass_and_their_gradients_with_the_other_groups() -> None:
    job = model(expert=2, expert_bytes=4e8, routed_bytes=1e8, recomputed=True)
    assert kinds(job) == ["all_to_all", "all_to_all", "all_to_all", "all_reduce"]
    iteration = phased(job)
    rings = [
        (iteration.content[number].what, task.devices)
        for number, task in enumerate(iteration.graph.tasks)
        if task.kind == "all_reduce"
    ]
    assert rings == [
        ("gradients", (0, 1, 2, 3)),
        ("expert gradients", (0, 2)),
        ("expert gradients", (1, 3)),
    ]
    assert iteration.graph.sent_bytes() == pytest.approx(3 * 1e8 + 1.5e9 + 4e8)


def test_microbatches_pass_stages_behind_each_other() -> None:
    """Before the last of 5 microbatches reaches the fourth stage, it waits for 4 others at the first: 7 messages."""
    iteration = phased(model(pipeline=4, data=1, microbatches=5, activation_bytes=1e9))
    graph = iteration.graph
    assert [iteration.content[number].microbatch for number in iteration.content] == 2 * [
        *(0, 1, 0, 2, 1, 0, 3, 2, 1, 4, 3, 2, 4, 3, 4)
    ]
    assert graph.longest_chain_s(RATE_BPS) == pytest.approx(1.0 + 7.0 + 2.0 + 7.0)
    assert list(graph.sent_bytes()) == [5e9, 10e9, 10e9, 5e9]


@given(
    tensor=st.integers(1, 2),
    pipeline=st.integers(1, 3),
    groups=st.integers(1, 3),
    expert=st.integers(1, 2),
    zero=st.integers(0, 3),
    interleave=st.integers(1, 2),
)
def test_a_phase_sends_after_its_begin_and_before_its_end(
    tensor: int, pipeline: int, groups: int, expert: int, zero: Zero, interleave: int
) -> None:
    job = PhasedModel(
        tensor=tensor,
        pipeline=pipeline,
        data=groups * expert,
        forward_s=0.5,
        backward_s=1.0,
        gradient_bytes=96,
        zero=zero,
        microbatches=6,
        interleave=interleave if pipeline > 1 else 1,
        activation_bytes=16,
        expert=expert,
        expert_bytes=48 if groups > 1 else 0,
        routed_bytes=8 if expert > 1 else 0,
    )
    iteration = phased(job)
    graph = iteration.graph
    ends = run(graph, RATE_BPS)
    inside = set[int]()
    for phase in graph.phases:
        sending = range(phase.begin + 1, phase.end)
        inside |= {*sending}
        assert all(graph.tasks[number].kind is not None for number in sending)
        assert min(ends.starts_s[number] for number in sending) >= ends.ends_s[phase.begin]
        assert max(ends.ends_s[number] for number in sending) == ends.ends_s[phase.end]
    assert inside == {*iteration.content} == {number for number, task in enumerate(graph.tasks) if task.kind}
    assert graph.computed_s() == pytest.approx(1.5)
    assert ends.seconds >= graph.longest_chain_s(RATE_BPS) * (1 - 1e-9)


def test_jobs_are_put_together_on_devices_of_their_own() -> None:
    graph = TaskGraph(8)
    iteration = phased(model()).graph
    later = graph.join((), delay_s=5.0)
    assert graph.append(iteration, (1, 3, 5, 7)) == 1
    assert graph.append(iteration, (0, 2, 4, 6), [later], job=1) == 1 + len(iteration.tasks)
    assert graph.tasks[2].devices == (1, 3, 5, 7)
    assert graph.phases == [Phase(0, 1, 3), Phase(1, 4, 6)]
    ends = run(graph, RATE_BPS).ends_s
    assert (ends[3], ends[6]) == pytest.approx((4.5, 9.5))


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 1, 2, 8), (0, 1, 2, -1)])
def test_a_graph_fits_only_devices_that_are_there(devices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a graph of 4 devices cannot be added to one of 8"):
        TaskGraph(8).append(phased(model()).graph, devices)
