# SPDX-License-Identifier: Apache-2.0
"""Jobs of a simulated cluster as transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import PATTERNS, Pattern, steps_of
from testbed.plan.demands import bytes_by_pair
from testbed.workloads.cluster_job import ClusterJob
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


def test_steps_have_their_shares_and_ranks_compute_before_each_round() -> None:
    workload = job("halving_doubling", 4, 900, 3).model_copy(update={"compute_s": 0.5})
    assert _pairs(workload, 4)[0, 1] == 8 * 300
    assert _pairs(workload, 4)[0, 2] == 8 * 600
    assert workload.pauses(4) == {0: 0.5, 2: 0.5, 4: 0.5}
    assert workload.phase_starts(4) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("changes", [{"shares": [0.5, 0.5]}, {"destinations": [[1, 1]]}])
def test_steps_that_are_no_permutations_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"shares for|receives from exactly one"):
        ClusterJob.model_validate({"bytes": 80, "shares": [1.0], "destinations": [[1, 0]], **changes})
