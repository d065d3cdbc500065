# SPDX-License-Identifier: Apache-2.0
"""Collectives on rails: every byte arrives once, sums are correct, and traffic changes rails only within a domain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from testbed.conflict import Conflict
from testbed.run.collective_executor import RankRun
from testbed.workloads import Transfer
from testbed.workloads.grid import GridWorkload
from tests.testbed.kinds import KINDS
from tests.testbed.run.test_collective_executor import run_all
from tests.testbed.workloads.test_schedules import simulate

GRID = sorted(kind for kind in KINDS if issubclass(KINDS[kind], GridWorkload))
COLLECTIVES = [kind for kind in GRID if kind != "rail_alltoall"]
FORWARD = ["hb_first", "rail_first"]


def make(kind: str, x: int, **changes: Any) -> GridWorkload:
    made = KINDS[kind].model_validate({"kind": kind, "bytes": 8 * 1000, "gpus_per_domain": x, **changes})
    assert isinstance(made, GridWorkload)
    return made


def between_domains(transfers: tuple[Transfer, ...], x: int) -> list[Transfer]:
    return [transfer for transfer in transfers if transfer.src // x != transfer.dst // x]


def assert_right(workload: GridWorkload, ranks: int, seed: int) -> None:
    transfers = workload.schedule(ranks, seed)
    assert [t.step for t in transfers] == sorted(t.step for t in transfers)
    for transfer in transfers:
        assert transfer.src != transfer.dst
        assert transfer.count > 0
    for rank, output in enumerate(simulate(workload, ranks, seed)):
        assert output.tobytes() == workload.expected(rank, ranks, seed).tobytes()


@pytest.mark.parametrize("kind", COLLECTIVES)
@given(
    x=st.integers(1, 5),
    y=st.integers(1, 5),
    extra=st.integers(0, 40),
    slices=st.integers(1, 7),
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from(["int64", "float32"]),
)
def test_a_collective_is_correct_and_stays_on_its_rail(
    kind: str, x: int, y: int, extra: int, slices: int, seed: int, dtype: str
) -> None:
    assume(x * y > 1)
    size = {"int64": 8, "float32": 4}[dtype]
    workload = make(kind, x, bytes=(x * y + extra) * size, slices=slices, dtype=dtype)
    assert_right(workload, x * y, seed)
    for transfer in between_domains(workload.schedule(x * y, seed), x):
        assert transfer.src % x == transfer.dst % x


@given(
    x=st.integers(1, 4),
    y=st.integers(1, 4),
    extra=st.integers(0, 60),
    slices=st.integers(1, 7),
    seed=st.integers(0, 2**20),
    forward=st.sampled_from(FORWARD),
    aggregate=st.booleans(),
    data=st.data(),
)
def test_every_block_arrives_and_none_changes_rails_between_domains(
    x: int, y: int, extra: int, slices: int, seed: int, forward: str, aggregate: bool, data: st.DataObject
) -> None:
    assume(x * y > 1)
    failed = data.draw(st.lists(st.integers(1, x), max_size=x - 1, unique=True))
    workload = make(
        "rail_alltoall",
        x,
        bytes=(x * y + extra) * 8,
        slices=slices,
        forward=forward,
        aggregate=aggregate,
        failed_rails=failed,
    )
    workload.check_ranks(x * y)
    assert_right(workload, x * y, seed)
    transfers = workload.schedule(x * y, seed)
    across = between_domains(transfers, x)
    for transfer in across:
        assert transfer.src % x == transfer.dst % x
        assert transfer.src % x + 1 not in failed
    # A block between domains crosses once.
    block = workload.elements // (x * y)
    assert sum(transfer.count for transfer in across) == x * y * x * (y - 1) * block
    # No transfer overwrites what another one has brought.
    landed = Counter[tuple[int, int]]()
    for transfer in transfers:
        for element in range(transfer.target, transfer.target + transfer.count):
            landed[transfer.dst, element] += 1
    assert max(landed.values(), default=1) == 1


@given(x=st.integers(1, 5), y=st.integers(1, 5), slices=st.integers(1, 5))
def test_direct_sends_every_block_straight_to_its_destination(x: int, y: int, slices: int) -> None:
    assume(x * y > 1)
    workload = make("rail_alltoall", x, forward="direct", slices=slices)
    assert_right(workload, x * y, 1)
    sent = Counter[tuple[int, int]]()
    for transfer in workload.schedule(x * y, 1):
        sent[transfer.src, transfer.dst] += transfer.count
    block = workload.elements // (x * y)
    assert sent == {(src, dst): block for src in range(x * y) for dst in range(x * y) if src != dst}


@pytest.mark.parametrize("forward", FORWARD)
@given(x=st.integers(1, 5), y=st.integers(2, 5))
def test_the_bytes_of_both_steps_match_equation_3(forward: str, x: int, y: int) -> None:
    workload = make("rail_alltoall", x, bytes=8 * x * y * 10, forward=forward)
    rail, domain = Counter[int](), Counter[int]()
    for transfer in workload.schedule(x * y, 0):
        kind = domain if transfer.src // x == transfer.dst // x else rail
        kind[transfer.src] += transfer.count
        kind[~transfer.dst] += transfer.count  # count both ends
    assert set(rail.values()) == {x * (y - 1) * 10}
    assert set(domain.values()) == ({y * (x - 1) * 10} if x > 1 else set())


@pytest.mark.parametrize("forward", FORWARD)
def test_messages_that_share_a_relay_travel_together(forward: str) -> None:
    """The second of the two steps sends one message per pair instead of one per block."""
    for aggregate, messages in ((True, 1), (False, 4)):
        workload = make("rail_alltoall", 4, forward=forward, aggregate=aggregate, slices=1)
        second = workload.phase_starts(16)[0]
        pairs = Counter((t.src, t.dst) for t in workload.schedule(16, 0) if t.step >= second)
        assert set(pairs.values()) == {messages}
        assert len(pairs) == 16 * 3


def test_live_rails_share_the_traffic_of_a_failed_rail() -> None:
    workload = make("rail_alltoall", 4, bytes=8 * 16 * 10, failed_rails=[2])
    sent, taken = Counter[int](), Counter[int]()
    for transfer in between_domains(workload.schedule(16, 0), 4):
        sent[transfer.src] += transfer.count
        taken[transfer.dst] += transfer.count
    for loads in (sent, taken):
        assert set(loads) == {rank for rank in range(16) if rank % 4 != 1}
        assert set(loads.values()) == {(12 + 12 // 3) * 10}  # its own twelve blocks, and a third of those of rail 2


@pytest.mark.parametrize("kind", GRID)
@pytest.mark.parametrize("separate", [True, False])
def test_every_rank_ends_with_the_expected_data_over_connections(kind: str, separate: bool) -> None:
    workload = make(kind, 2, slices=3, separate_phases=separate)
    buffers, _ = run_all(workload, 6, seed=7)
    for rank, own in enumerate(buffers):
        assert own.output[workload.result(rank, 6)].tobytes() == workload.expected(rank, 6, 7).tobytes()


def test_a_rank_starts_a_phase_after_it_has_completed_the_previous_one() -> None:
    workload = make("rail_alltoall", 2, slices=2)
    (second,) = workload.phase_starts(4)
    runs = {
        separate: RankRun(
            0, workload.schedule(4, 0), workload.buffers(0, 4, 0), phase_starts=(second,) if separate else ()
        )
        for separate in (True, False)
    }
    first = [t for t in runs[True]._tasks if t.transfer.step < second]
    (gate,) = runs[True]._gates
    assert gate.waits_for == len(first)
    assert gate.unlocks == [t for t in runs[True]._tasks if t.outgoing and t.transfer.step >= second]
    assert gate.unlocks
    assert not runs[False]._gates


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({"gpus_per_domain": 3}, 16, "16 ranks do not fill domains of 3 GPUs; take a divisor of 16"),
        ({"failed_rails": [5]}, 16, r"there is no rail 5, only 1\.\.4"),
        ({"failed_rails": [1, 2, 3, 4]}, 16, "every rail has failed, so no path joins two domains"),
        ({"failed_rails": [1], "forward": "direct"}, 16, "cannot avoid a rail"),
        ({"bytes": 64}, 16, "64 bytes are less than one element for each of 16 ranks"),
    ],
)
def test_impossible_settings_give_one_sentence(changes: dict[str, Any], ranks: int, expected: str) -> None:
    with pytest.raises(Conflict, match=expected):
        make("rail_alltoall", 4).model_copy(update=changes).check_ranks(ranks)
