# SPDX-License-Identifier: Apache-2.0
"""Every workload's schedule, executed in plain memory, gives the expected data of the workload."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.allocation.demands import bytes_by_pair
from testbed.conflict import Conflict
from testbed.workloads import Buffers, Elements, Transfer, VerifiedWorkload
from testbed.workloads.base import cut
from testbed.workloads.grid import GridWorkload
from testbed.workloads.nccl import STEPS
from testbed.workloads.task_graph import TaskGraphWorkload
from testbed.workloads.torch_training import TorchTraining
from testbed.workloads.training import Training
from tests.sdn import patterns
from tests.testbed.kinds import KINDS


def simulate(workload: VerifiedWorkload, ranks: int, seed: int) -> list[Elements]:
    """The reference semantics: in every step all sources are read before any target is written."""
    buffers: list[Buffers] = [workload.buffers(rank, ranks, seed) for rank in range(ranks)]
    for _, step in groupby(workload.schedule(ranks, seed), key=lambda transfer: transfer.step):
        moving: list[tuple[Transfer, Elements]] = [
            (t, buffers[t.src].input[t.source : t.source + t.count].copy()) for t in step
        ]
        for transfer, data in moving:
            place = buffers[transfer.dst].output[transfer.target : transfer.target + transfer.count]
            place[:] = place + data if transfer.combine else data
    return [own.output[workload.result(rank, ranks)] for rank, own in enumerate(buffers)]


FLAT = sorted(kind for kind in KINDS if not issubclass(KINDS[kind], GridWorkload | TaskGraphWorkload | Training))
"""Workloads for any number of ranks with data of their own. Other files test the others."""
DTYPES = {kind: get_args(KINDS[kind].model_fields["dtype"].annotation) for kind in KINDS}


@pytest.mark.parametrize(("kind", "dtype"), [(kind, dtype) for kind in FLAT for dtype in DTYPES[kind]])
@given(
    ranks=st.integers(2, 9),
    extra=st.integers(0, 40),
    slices=st.integers(1, 7),
    seed=st.integers(0, 2**20),
)
def test_schedule_gives_the_expected_result(
    kind: str, dtype: str, ranks: int, extra: int, slices: int, seed: int
) -> None:
    size = np.dtype(dtype).itemsize
    workload = KINDS[kind].model_validate(
        {"kind": kind, "bytes": (ranks + extra) * size, "slices": slices, "dtype": dtype}
    )
    for rank, output in enumerate(simulate(workload, ranks, seed)):
        assert output.tobytes() == workload.expected(rank, ranks, seed).tobytes()


@pytest.mark.parametrize(("collective", "each"), [("tree", None), ("alltoall", 5)])
def test_a_snapshot_moves_the_input_over_every_connection(collective: str, each: int | None) -> None:
    workload = KINDS["snapshot"].model_validate({"bytes": 8 * 25, "slices": 2, "collective": collective})
    for rank, output in enumerate(simulate(workload, 6, seed=3)):
        expected = workload.expected(rank, 6, seed=3)
        assert output.tobytes() == expected.tobytes()
        assert each is None or expected.size == each * 25


@pytest.mark.parametrize(("parallel", "times"), [("ddp", 2), ("fsdp", 3)])
def test_a_training_script_moves_its_gradients_around_a_ring_in_every_step(
    parallel: Literal["ddp", "fsdp"], times: int
) -> None:
    workload = TorchTraining(bytes=4 * 5 * 24, script="a.py", parallel=parallel, steps=7)
    transfers = workload.schedule(5, seed=1)
    assert [transfer.step for transfer in transfers] == sorted(transfer.step for transfer in transfers)
    assert {transfer.step for transfer in transfers} == set(range(7 * times * 4))
    pairs = bytes_by_pair(transfers, workload.item_bytes)
    assert pairs == {(rank, (rank + 1) % 5): 7 * times * 4 * workload.bytes // 5 for rank in range(5)}


@pytest.mark.parametrize("kind", ["ring_allreduce", "nccl_ring_allreduce"])
@pytest.mark.parametrize("strides", [[3], [1, 5], [1, 3, 5, 7]])
@given(extra=st.integers(0, 40), slices=st.integers(1, 5))
def test_several_rings_share_an_all_reduce(kind: str, strides: list[int], extra: int, slices: int) -> None:
    workload = KINDS[kind].model_validate({"bytes": 8 * (32 + extra), "slices": slices, "strides": strides})
    for rank, output in enumerate(simulate(workload, 8, 0)):
        assert output.tobytes() == workload.expected(rank, 8, 0).tobytes()
    transfers = workload.schedule(8, 0)
    assert {(transfer.dst - transfer.src) % 8 for transfer in transfers} == set(strides)


def test_strides_of_rings_are_coprime_and_different() -> None:
    for strides, said in (([1, 2], "is not a ring of 8 ranks"), ([3, 3], "is there twice")):
        workload = KINDS["nccl_ring_allreduce"].model_validate({"bytes": 800, "strides": strides})
        with pytest.raises(Conflict, match=said):
            workload.check_ranks(8)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@given(ranks=st.integers(2, 9), share=st.integers(1, 9), slices=st.integers(1, 5))
def test_rings_of_nccl_give_the_result_of_their_collective(
    collective: str, ranks: int, share: int, slices: int
) -> None:
    settings = {"bytes": 4 * share * ranks, "slices": slices, "collective": collective}
    workload = KINDS["nccl"].model_validate(settings)
    for rank, output in enumerate(simulate(workload, ranks, 0)):
        assert output.tobytes() == workload.expected(rank, ranks, 0).tobytes()
    thrice = KINDS["nccl"].model_validate({**settings, "iterations": 3}).schedule(ranks, 0)
    assert len(thrice) == 3 * len(workload.schedule(ranks, 0))
    assert [each.step for each in thrice] == sorted(each.step for each in thrice)


@pytest.mark.parametrize("kind", FLAT)
@given(ranks=st.integers(2, 9), slices=st.integers(1, 5), seed=st.integers(0, 1000))
def test_schedule_is_well_formed(kind: str, ranks: int, slices: int, seed: int) -> None:
    workload = KINDS[kind].model_validate({"kind": kind, "bytes": 8 * 50, "slices": slices})
    transfers = workload.schedule(ranks, seed)
    assert [t.step for t in transfers] == sorted(t.step for t in transfers)
    assert all(t.src != t.dst and t.count > 0 for t in transfers)
    assert all(0 <= t.source <= t.source + t.count <= workload.elements for t in transfers)
    assert all(0 <= t.target <= t.target + t.count <= workload.elements for t in transfers)


def test_ring_moves_two_times_n_minus_one_over_n() -> None:
    workload = KINDS["ring_allreduce"].model_validate({"bytes": 8 * 1600, "slices": 3})
    sent = Counter[tuple[int, int]]()
    for transfer in workload.schedule(16, seed=0):
        sent[transfer.src, transfer.dst] += transfer.count
    assert set(sent) == {(rank, (rank + 1) % 16) for rank in range(16)}
    assert set(sent.values()) == {2 * 15 * 1600 // 16}


@given(ranks=st.integers(2, 9), elements=st.integers(9, 3000), slices=st.integers(1, 30))
def test_a_chunk_of_the_nccl_ring_fits_the_slots_of_a_connection(ranks: int, elements: int, slices: int) -> None:
    workload = KINDS["nccl_ring_allreduce"].model_validate({"bytes": 4 * elements, "slices": slices})
    messages = Counter((transfer.step, transfer.src) for transfer in workload.schedule(ranks, seed=0))
    assert max(messages.values()) <= min(slices, STEPS)


@given(ranks=st.integers(2, 24), slices=st.integers(1, 3))
def test_halving_and_doubling_sends_as_much_as_a_ring_and_twice_the_remainder(ranks: int, slices: int) -> None:
    elements = 720 * 32
    workload = KINDS["halving_doubling_allreduce"].model_validate({"bytes": 8 * elements, "slices": slices})
    schedule = workload.schedule(ranks, seed=0)
    levels = ranks.bit_length() - 1
    extra = ranks - 2**levels
    sent = Counter[int]()
    for transfer in schedule:
        sent[transfer.src] += transfer.count
    halved = 2 * elements * (2**levels - 1) // 2**levels
    for rank in range(ranks):
        assert sent[rank] == (elements if rank >= 2**levels else halved + elements * (rank < extra))
    assert {transfer.step for transfer in schedule} == set(range(2 * levels + 2 * (extra > 0)))


@pytest.mark.parametrize("ranks", [2, 5, 8, 11, 22])
def test_halving_and_doubling_folds_as_source_routing_needs_it(ranks: int) -> None:
    """The pairs of each step are those for which tests/sdn/isolation prove that no two flows share a link."""
    schedule = KINDS["halving_doubling_allreduce"].model_validate({"bytes": 8 * 64}).schedule(ranks, seed=0)
    steps: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for transfer in schedule:
        steps[transfer.step].add((transfer.src, transfer.dst))
    fold, *halving, unfold = (set(step) for step in patterns.halving_doubling(ranks))
    expected = [fold, *halving, *reversed(halving), unfold]
    assert [steps[step] for step in sorted(steps)] == [step for step in expected if step]


@given(ranks=st.integers(2, 9), microbatches=st.integers(1, 9))
def test_a_pipeline_moves_its_input_over_every_border_both_ways(ranks: int, microbatches: int) -> None:
    workload = KINDS["pipeline"].model_validate({"bytes": 8 * 100, "slices": 2, "microbatches": microbatches})
    moved = Counter[tuple[int, int]]()
    for transfer in workload.schedule(ranks, seed=0):
        moved[transfer.src, transfer.dst] += transfer.count
    assert moved == {(a, b): 100 for low in range(ranks - 1) for a, b in ((low, low + 1), (low + 1, low))}


@pytest.mark.parametrize(("phase", "ways"), [("incast", 1), ("broadcast", 1), ("both", 2)])
@given(ranks=st.integers(2, 9), servers=st.integers(1, 9), seed=st.integers(0, 1000))
def test_servers_receive_and_send_a_shard_per_worker(
    phase: str, ways: int, ranks: int, servers: int, seed: int
) -> None:
    workload = KINDS["parameter_server"].model_validate(
        {"bytes": 8 * 2520, "slices": 2, "servers": servers, "phase": phase}
    )
    if servers > ranks:
        with pytest.raises(Conflict, match=f"{ranks} ranks cannot be {servers} servers"):
            workload.check_ranks(ranks)
        return
    transfers = workload.schedule(ranks, seed)
    assert sum(transfer.count for transfer in transfers) == ways * (ranks - 1) * 2520
    busiest = Counter((transfer.step, transfer.dst if transfer.combine else transfer.src) for transfer in transfers)
    assert {rank for _, rank in busiest} == set(range(servers))
    for rank, output in enumerate(simulate(workload, ranks, seed)):
        assert output.tobytes() == workload.expected(rank, ranks, seed).tobytes()


def test_alltoall_steps_are_permutations() -> None:
    workload = KINDS["pairwise_alltoall"].model_validate({"bytes": 8 * 70, "slices": 2})
    for _, step in groupby(workload.schedule(7, seed=0), key=lambda transfer: transfer.step):
        pairs = {(transfer.src, transfer.dst) for transfer in step}
        assert len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == len(pairs) == 7


def test_data_depends_on_rank_and_seed_only() -> None:
    workload = KINDS["ring_allreduce"].model_validate({"bytes": 800})
    assert np.array_equal(workload.data(1, 2), workload.data(1, 2))
    assert not np.array_equal(workload.data(1, 2), workload.data(2, 2))
    assert not np.array_equal(workload.data(1, 2), workload.data(1, 3))


@given(start=st.integers(0, 10), length=st.integers(0, 50), parts=st.integers(1, 60))
def test_cut_covers_everything_once(start: int, length: int, parts: int) -> None:
    pieces = list(cut(start, start + length, parts))
    covered = [element for _, first, count in pieces for element in range(first, first + count)]
    assert covered == list(range(start, start + length))
    assert max((count for *_, count in pieces), default=0) - min((count for *_, count in pieces), default=0) <= 1
