# SPDX-License-Identifier: Apache-2.0
"""What waits for what: carried out in that order alone, every schedule gives the right result."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.fluid.order import waits
from testbed.workloads import Workload
from testbed.workloads.halving_doubling import HalvingDoublingAllreduce
from testbed.workloads.nccl import NcclRingAllreduce, NcclTreeAllreduce
from testbed.workloads.pairwise_alltoall import PairwiseAlltoall
from testbed.workloads.parameter_server import ParameterServer
from testbed.workloads.permutation import Permutation
from testbed.workloads.pipeline import Pipeline
from testbed.workloads.ring_allreduce import RingAllreduce


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "workload",
    [
        RingAllreduce(bytes=4096),
        NcclRingAllreduce(bytes=4096, slices=3),
        NcclTreeAllreduce(bytes=4096),
        PairwiseAlltoall(bytes=4096),
        Permutation(bytes=4096),
        HalvingDoublingAllreduce(bytes=4096),
        Pipeline(bytes=4096),
        ParameterServer(bytes=4096, servers=2),
    ],
    ids=lambda workload: workload.kind,
)
def test_any_order_that_waits_enough_gives_the_right_result(workload: Workload, ranks: int, seed: int) -> None:
    """Transfers happen one by one, drawn at random among those whose waits are over."""
    transfers = workload.schedule(ranks, seed)
    memory = [workload.buffers(rank, ranks, seed) for rank in range(ranks)]
    awaited = [0] * len(transfers)
    followers: list[list[int]] = [[] for _ in transfers]
    for earlier, later in waits(workload, transfers):
        awaited[later] += 1
        followers[earlier].append(later)
    rng = np.random.default_rng(seed)
    free = [place for place, count in enumerate(awaited) if not count]
    done = 0
    while free:
        place = free.pop(int(rng.integers(len(free))))
        transfer = transfers[place]
        sent = memory[transfer.src].input[transfer.source : transfer.source + transfer.count]
        target = memory[transfer.dst].output[transfer.target : transfer.target + transfer.count]
        target[:] = target + sent if transfer.combine else sent
        done += 1
        for later in followers[place]:
            awaited[later] -= 1
            if not awaited[later]:
                free.append(later)
    assert done == len(transfers)
    for rank in range(ranks):
        assert np.array_equal(memory[rank].output, workload.expected(rank, ranks, seed))


def test_no_more_sends_are_under_way_than_the_workload_allows() -> None:
    workload = PairwiseAlltoall(bytes=4096, slices=2)
    transfers = workload.schedule(4, 1)
    own = [place for place, transfer in enumerate(transfers) if transfer.src == 0]
    found = set(waits(workload, transfers))
    assert {(before, after) for before, after in zip(own, own[2:], strict=False)} <= found
    assert len(found) == len(transfers) - 4 * 2
