# SPDX-License-Identifier: Apache-2.0
"""Operations of backend paralet among three ranks, and what PyTorch builds on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.paralet_torch.world import Ranks

SCENARIOS = [
    "all_reduce_of_booleans",
    "average",
    "scaled_sum",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_of_different_sizes",
    "reduce_scatter",
    "all_to_all",
    "gather_and_scatter",
    "coalesced",
    "not_contiguous",
    "empty_and_scalar",
    "large",
    "sparse",
    "ring_of_sends",
    "tags",
    "asynchronous",
    "completes_without_waiting",
    "sub_groups",
    "group_of_another_backend",
    "device_mesh_and_dtensor",
    "full_state_dict",
    "functional_collectives",
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(three_ranks: Ranks, scenario: str) -> None:
    three_ranks.run(scenario)


def test_a_default_group_of_two_devices(tmp_path: Path) -> None:
    with Ranks(2, tmp_path, backend="cpu:paralet,cuda:nccl") as ranks:
        ranks.run("all_reduce", "SUM")
        ranks.run("tensors_on_cuda_without_nccl")
        ranks.run("all_reduce", "SUM")


@pytest.mark.parametrize("operation", ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_all_reduce(three_ranks: Ranks, operation: str) -> None:
    three_ranks.run("all_reduce", operation)


def test_checkpoint(three_ranks: Ranks, tmp_path: Path) -> None:
    three_ranks.run("checkpoint", str(tmp_path))


def test_a_group_has_a_backend_of_the_cpu(three_ranks: Ranks) -> None:
    for said in three_ranks.run("backend_of_the_cpu"):
        assert "does not support shrinking operations" in said


def test_a_monitored_barrier_names_the_rank_that_does_not_come(three_ranks: Ranks) -> None:
    said = three_ranks.run("monitored_barrier")
    assert said[0] == "Rank 1 failed to pass monitoredBarrier in 200 ms"
    for rank in (1, 2):
        assert said[rank].startswith(f"Rank {rank} successfully reached monitoredBarrier, but received errors while")


def test_objects(three_ranks: Ranks) -> None:
    expected = [[{"rank": rank, "text": "x" * rank} for rank in range(3)], ["from 1", [1, 2]]]
    assert three_ranks.run("objects") == [expected] * 3


def test_a_receive_from_any_rank_says_which(three_ranks: Ranks) -> None:
    assert sorted(three_ranks.run("receives_from_any")[0]) == [1, 2]


def test_a_wait_with_a_limit_ends_and_the_operation_goes_on(three_ranks: Ranks) -> None:
    said = three_ranks.run("wait_with_a_limit")
    assert "recv" in said[0]
    assert "timed out" in said[0]


def test_wrong_arguments_are_refused_with_a_sentence(three_ranks: Ranks) -> None:
    for said in three_ranks.run("refusals"):
        assert said == [
            "allreduce needs a list of one tensor, not of 2",
            "floating-point tensors have no reduction BAND",
            "all_gather_single needs an output of 3 times the input's 1 elements; it has 4",
            "allgather needs one tensor for each of 3 ranks, not 4",
            "reduce_scatter_single needs an input of 3 times the output's 2 elements; it has 3",
            "all_to_all_single: the output's 4 rows do not divide equally among 3 ranks",
            "scatter: the output has 1 elements, and the input 2",
        ]


def test_a_callback_may_wait_for_other_futures(three_ranks: Ranks) -> None:
    three_ranks.run("nested_futures", 20)


def test_a_callback_waits_no_longer_than_the_limit_of_the_group(three_ranks: Ranks) -> None:
    said = three_ranks.run("callback_of_what_never_comes")[0]
    assert len(said) == 1
    assert "all_reduce did not finish within its timeout" in said[0]


@pytest.mark.parametrize("scenario", ["ddp", "ddp_with_power_sgd", "fsdp"])
def test_training_is_that_of_one_process(three_ranks: Ranks, scenario: str) -> None:
    losses = three_ranks.run(scenario)
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][-1] < losses[0][0]
