# SPDX-License-Identifier: Apache-2.0
"""Dependencies of transfers: any execution that respects them gives the right result."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.simulate.dependencies import dependencies_of, waits
from testbed.spec import Spec, check
from testbed.workloads import VerifiedWorkload
from testbed.workloads.halving_doubling import HalvingDoublingAllreduce
from testbed.workloads.nccl import NcclRingAllreduce, NcclTreeAllreduce
from testbed.workloads.pairwise_alltoall import PairwiseAlltoall
from testbed.workloads.parameter_server import ParameterServer
from testbed.workloads.permutation import Permutation
from testbed.workloads.pipeline import Pipeline
from testbed.workloads.ring_allreduce import RingAllreduce
from tests.testbed.experiments import first_of


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
def test_any_order_that_respects_waits_gives_the_right_result(
    workload: VerifiedWorkload, ranks: int, seed: int
) -> None:
    """Transfers run one by one, drawn at random from those whose waits are over."""
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


def test_sends_in_flight_are_limited_by_the_workload() -> None:
    workload = PairwiseAlltoall(bytes=4096, slices=2)
    transfers = workload.schedule(4, 1)
    own = [place for place, transfer in enumerate(transfers) if transfer.src == 0]
    found = set(waits(workload, transfers))
    assert {(before, after) for before, after in zip(own, own[2:], strict=False)} <= found
    assert len(found) == len(transfers) - 4 * 2


@pytest.mark.parametrize("zero", [0, 3])
def test_a_phase_begins_after_earlier_phases_and_computation(zero: int) -> None:
    """If sending took no time, a transfer would begin when all computation before it is done."""
    models = [
        {"model": "bloom", "tensor": 2, "pipeline": 2, "data": 2, "compute_s": 3.0},
        {"model": "gpt3", "tensor": 1, "pipeline": 1, "data": 3, "compute_s": 5.0},
    ]
    small = [{**model, "zero": zero, "part_bytes": 96, "activation_bytes": 8, "microbatches": 2} for model in models]
    experiment = check(
        Spec.model_validate(
            {
                "name": "small",
                "fabric": "fluid",
                "topology": {"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 6, "host_rate": "1 Gbit/s"}},
                "workload": {"kind": "training", "models": small, "iterations": 2},
                "placement": {"rule": "packed", "ranks": 11},
                "policies": [{"name": "ecmp", "policy": "ecmp"}],
            }
        )
    )
    transfers = first_of(experiment).transfers
    dependencies = dependencies_of(experiment, experiment.jobs, transfers)
    pause_s = np.concatenate([np.zeros(len(transfers)), dependencies.pause_s])
    followers: list[list[int]] = [[] for _ in pause_s]
    awaited = np.bincount(dependencies.later, minlength=pause_s.size)
    for earlier, later in zip(dependencies.earlier.tolist(), dependencies.later.tolist(), strict=True):
        followers[earlier].append(later)
    over_s = np.zeros(pause_s.size)
    free = np.flatnonzero(awaited == 0).tolist()
    for place in free:  # grows
        over_s[place] += pause_s[place]
        for later in followers[place]:
            over_s[later] = max(over_s[later], over_s[place])
            awaited[later] -= 1
            if not awaited[later]:
                free.append(later)
    assert sorted(free) == list(range(pause_s.size))
    for number, job in enumerate(experiment.jobs):
        pauses = experiment.spec.workload.of_job(number).pauses(job.size)
        for place, transfer in enumerate(transfers):
            if transfer.src in job.ranks:
                assert over_s[place] == pytest.approx(sum(s for start, s in pauses.items() if start <= transfer.step))


def test_workloads_without_phases_have_no_gates() -> None:
    topology = {"leaf_spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 2, "host_rate": "1 Gbit/s"}}
    spec = {"workload": {"kind": "ring_allreduce", "bytes": 4096}, "policies": [{"name": "ecmp", "policy": "ecmp"}]}
    placed = {"name": "small", "fabric": "fluid", "topology": topology, "placement": {"rule": "packed"}}
    experiment = check(Spec.model_validate(placed | spec))
    transfers = first_of(experiment).transfers
    dependencies = dependencies_of(experiment, experiment.jobs, transfers)
    assert dependencies.pause_s.size == 0
    found = zip(dependencies.earlier.tolist(), dependencies.later.tolist(), strict=True)
    assert list(found) == waits(experiment.spec.workload, transfers)
