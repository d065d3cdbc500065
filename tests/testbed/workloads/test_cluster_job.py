# SPDX-License-Identifier: Apache-2.0
"""Jobs of a simulated cluster as transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import PATTERNS, Pattern, steps_of
from testbed.allocation.demands import bytes_by_pair
from testbed.workloads.cluster_job import ClusterJob
from tests.testbed.kinds import KINDS
from tests.testbed.workloads.test_schedules import simulate


def job(pattern: Pattern, ranks: int, elements: int, rounds: int, slices: int = 2) -> ClusterJob:
    steps = steps_of(pattern, ranks, 2)
    return ClusterJob(
        bytes=8 * elements,
        slices=slices,
        rounds=rounds,
        shares=steps.shares.tolist(),
        destinations=steps.destinations.tolist(),
    )


@given(
    pattern=st.sampled_from(PATTERNS),
    ranks=st.integers(1, 9),
    elements=st.integers(1, 400),
    rounds=st.integers(1, 4),
    slices=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_every_rank_gets_each_piece_from_the_rank_that_sends_to_it(
    pattern: Pattern, ranks: int, elements: int, rounds: int, slices: int, seed: int
) -> None:
    workload = job(pattern, ranks, elements, rounds, slices)
    for rank, output in enumerate(simulate(workload, ranks, seed)):
        assert output.tobytes() == workload.expected(rank, ranks, seed).tobytes()
    sent = [sum(count for (src, _), count in _pairs(workload, ranks).items() if src == rank) for rank in range(ranks)]
    assert sent == [0 if ranks == 1 else workload.bytes] * ranks


def _pairs(workload: ClusterJob, ranks: int) -> dict[tuple[int, int], int]:
    return bytes_by_pair(workload.schedule(ranks, 1), workload.item_bytes)


COLLECTIVES: dict[Pattern, str] = {
    "ring": "ring_allreduce",
    "halving_doubling": "halving_doubling_allreduce",
    "pairwise_alltoall": "pairwise_alltoall",
}


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("pattern", COLLECTIVES)
def test_a_pattern_has_the_shares_of_the_collective_of_that_name(pattern: Pattern, ranks: int) -> None:
    """What a pair of ranks sends, as a part of what a rank sends. `hierarchical_ring` is no workload of its own."""
    steps = steps_of(pattern, ranks, 2)
    elements = 8 * ranks * (ranks - 1)  # divisible into the parts of every step
    collective = KINDS[COLLECTIVES[pattern]].model_validate({"bytes": 8 * elements})
    sent = bytes_by_pair(collective.schedule(ranks, 1), collective.item_bytes)
    whole = sum(count for (src, _), count in sent.items() if src == 0)
    expected = {
        (rank, to): pytest.approx(share)
        for share, row in zip(steps.shares.tolist(), steps.destinations.tolist(), strict=True)
        for rank, to in enumerate(row)
    }
    assert {pair: count / whole for pair, count in sent.items()} == expected


def test_steps_have_their_shares_and_ranks_compute_before_each_round() -> None:
    workload = job("halving_doubling", 4, 900, 3).model_copy(update={"compute_s": 0.5})
    assert _pairs(workload, 4)[0, 1] == 8 * 600
    assert _pairs(workload, 4)[0, 2] == 8 * 300
    assert workload.pauses(4) == {0: 0.5, 2: 0.5, 4: 0.5}
    assert workload.phase_starts(4) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("changes", [{"shares": [0.5, 0.5]}, {"destinations": [[1, 1]]}])
def test_steps_that_are_no_permutations_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shares for|receives from exactly one"):
        ClusterJob.model_validate({"bytes": 80, "shares": [1.0], "destinations": [[1, 0]], **changes})
