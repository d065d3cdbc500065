# SPDX-License-Identifier: Apache-2.0
"""Schedules over real connections, with one thread per rank and no fixed order between them."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from testbed.errors import TestbedError
from testbed.run.collective_executor import Connections, RankRun, Timings, TransferTimeout
from testbed.run.transfer_tasks import gates_of, tasks_of
from testbed.traces.htsim import read_connections
from testbed.training.tasks import TaskGraph
from testbed.workloads import Buffers, Transfer, VerifiedWorkload
from testbed.workloads.cluster_job import ClusterJob
from testbed.workloads.trace import Trace
from tests.testbed.kinds import KINDS
from tests.testbed.run.tcp_transport import TcpConnection, TcpTransport
from tests.testbed.workloads.test_schedules import DTYPES, FLAT


class Mesh:
    """A connection for every ordered pair of ranks."""

    def __init__(self, ranks: int) -> None:
        self.out: dict[tuple[int, int], TcpConnection] = {}
        self.into: dict[tuple[int, int], TcpConnection] = {}
        for src in range(ranks):
            for dst in range(ranks):
                if src != dst:
                    near, far = socket.socketpair()
                    self.out[src, dst], self.into[src, dst] = TcpConnection(near), TcpConnection(far)

    def of(self, rank: int) -> Connections:
        outgoing = {(dst, 0): connection for (src, dst), connection in self.out.items() if src == rank}
        return Connections(outgoing, {(src, 0): end for (src, dst), end in self.into.items() if dst == rank})


def run_all(workload: VerifiedWorkload, ranks: int, seed: int, **options: int) -> tuple[list[Buffers], list[Timings]]:
    buffers = [workload.buffers(rank, ranks, seed) for rank in range(ranks)]
    mesh = Mesh(ranks)
    transfers = workload.schedule(ranks, seed)
    runs = [
        RankRun(
            rank,
            transfers,
            buffers[rank],
            sends_in_flight=workload.sends_in_flight,
            phase_starts=workload.phase_starts(ranks),
            pauses=workload.pauses(ranks),
            order=workload.order_at(rank, ranks),
            **options,
        )
        for rank in range(ranks)
    ]
    with ThreadPoolExecutor(ranks) as pool:
        jobs = [pool.submit(run.run, mesh.of(rank), TcpTransport().wait_any, 20.0) for rank, run in enumerate(runs)]
        return buffers, [job.result() for job in jobs]


@pytest.mark.parametrize(("kind", "dtype"), [(kind, dtype) for kind in FLAT for dtype in DTYPES[kind]])
@pytest.mark.parametrize("ranks", [2, 5])
def test_every_rank_ends_with_the_expected_data(kind: str, dtype: str, ranks: int) -> None:
    workload = KINDS[kind].model_validate({"kind": kind, "bytes": 40_000, "slices": 3, "dtype": dtype})
    buffers, timings = run_all(workload, ranks, seed=7)
    for rank, own in enumerate(buffers):
        assert own.output.tobytes() == workload.expected(rank, ranks, 7).tobytes()
    assert all(list(t.step_finished_s) == sorted(t.step_finished_s) for t in timings)


def test_a_message_of_a_later_step_may_arrive_first() -> None:
    """A slice of a later step waits for fewer slices than one of an earlier step where the slices do not align."""
    near, far = socket.socketpair()
    out, into = TcpConnection(near), TcpConnection(far)
    sent = [out.send(np.full(2, tag), tag) for tag in (1, 0)]
    first, second = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    assert into.recv(first, 0).wait(100.0) == into.recv(second, 1).wait(100.0) == 16
    assert [first[0], second[0]] == [0, 1]
    assert [request.wait(100.0) for request in sent] == [16, 16]


def test_a_trace_sends_after_what_it_waits_for() -> None:
    matrix = """Nodes 3
    Connections 3
    Triggers 1
    0->1 id 1 start 0 size 80000 recv_done_trigger 1
    1->2 id 2 trigger 1 size 24
    2->0 id 3 start 0 size 801
    trigger id 1 oneshot
    """
    trace = Trace.model_validate({"format": "htsim", "file": "three.cm"}).holding(read_connections(matrix))
    trace.check_real()
    relayed = next(transfer for transfer in trace.schedule(3, 0) if transfer.src == 1)
    tasks = tasks_of(1, trace.schedule(3, 0), in_place=False)
    assert not gates_of(tasks, trace.order_at(1, 3), 3)
    (task,) = [task for task in tasks if task.outgoing]
    assert (task.transfer, task.waits_for) == (relayed, 1)
    buffers, timings = run_all(trace, 3, 0)
    for rank, own in enumerate(buffers):
        assert own.output.tobytes() == trace.expected(rank, 3, 0).tobytes()
    assert timings[1].last_arrival_s[0] <= timings[2].last_arrival_s[1]


def test_ranks_compute_as_a_task_graph_says() -> None:
    """Rank 0 computes while it sends, rank 1 begins with what has arrived, and both end with computing."""
    graph = TaskGraph(2)
    first = graph.compute(0, 0.2)
    sent = graph.send(0, 1, 800, [first])
    graph.compute(0, 0.2, [first])
    graph.compute(1, 0.2, [sent, graph.compute(1, 0.1)])
    trace = Trace.model_validate({"format": "htsim", "file": "two.cm"}).holding(graph)
    trace.check_real()
    begin = time.monotonic()
    buffers, timings = run_all(trace, 2, 0)
    assert buffers[1].output.tobytes() == trace.expected(1, 2, 0).tobytes()
    assert timings[1].last_arrival_s[0] - begin >= 0.2
    assert min(timing.finished_s for timing in timings) - begin >= 0.4


def test_one_receive_at_a_time_is_enough() -> None:
    workload = KINDS["ring_allreduce"].model_validate({"bytes": 8000, "slices": 4})
    buffers, _ = run_all(workload, 3, seed=1, receives_ahead=1)
    assert buffers[0].output.tobytes() == workload.expected(0, 3, 1).tobytes()


def test_a_slice_waits_for_that_slice_of_the_previous_step() -> None:
    """Rank 1 forwards each slice from rank 0 after it has arrived, and not before."""
    transfers = [Transfer(0, part, 0, 1, part, part, 1) for part in (0, 1)]
    transfers += [Transfer(1, part, 1, 2, part, part, 1) for part in (0, 1)]
    data = np.zeros(2, dtype=np.int64)
    relay = RankRun(1, transfers, Buffers(data, data))
    waits = {(task.transfer.step, task.transfer.part): task.waits_for for task in relay._tasks}
    assert waits == {(0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 1}


TRAINED = {"model": "bloom", "tensor": 1, "pipeline": 2, "data": 2, "part_bytes": 8000, "activation_bytes": 800}


@pytest.mark.parametrize("zero", [0, 3])
def test_ranks_compute_before_they_send(zero: int) -> None:
    """No copy is faster than the forward and the backward pass, and the sums are those without computing."""
    model = {**TRAINED, "microbatches": 2, "compute_s": 0.3, "zero": zero}
    training = KINDS["training"].model_validate({"models": [model], "iterations": 2}).of_job(0)
    begin = time.monotonic()
    buffers, timings = run_all(training, 4, seed=3)
    for rank, own in enumerate(buffers):
        assert np.array_equal(own.output[training.result(rank, 4)], training.expected(rank, 4, 3))
    assert min(timing.finished_s for timing in timings) - begin >= 2 * 0.3


def test_timeout_includes_computing_time() -> None:
    training = KINDS["training"].model_validate({"models": [{**TRAINED, "compute_s": 60.0}]}).of_job(0)
    run = RankRun(0, training.schedule(4, 0), training.buffers(0, 4, 0), pauses=training.pauses(4))
    with pytest.raises(TransferTimeout, match=r"rank 0 still (computed|waited for slice 0 .*) after 0\.1 s"):
        run.run(Mesh(4).of(0), TcpTransport().wait_any, 0.1)


def test_timeout_error_names_the_missing_transfer() -> None:
    workload = KINDS["ring_allreduce"].model_validate({"bytes": 800, "slices": 1})
    run = RankRun(0, workload.schedule(2, 0), workload.buffers(0, 2, 0))
    with pytest.raises(TransferTimeout, match=r"rank 0 still waited for slice 0 of step 0 from rank 1 after 0\.2 s"):
        run.run(Mesh(2).of(0), TcpTransport().wait_any, 0.2)


def test_a_short_message_is_an_error() -> None:
    class Short:
        def wait(self, timeout_s: float | None = None) -> int:
            return 3

    class Liar:
        def send(self, buffer: object, tag: int = 0) -> Short:
            return Short()

        recv = send

    workload = KINDS["permutation"].model_validate({"bytes": 800, "slices": 1})
    run = RankRun(0, workload.schedule(2, 0), workload.buffers(0, 2, 0))
    with pytest.raises(TestbedError, match="got 3 bytes"):
        run.run(Connections({(1, 0): Liar()}, {(1, 0): Liar()}), lambda requests, timeout_s: 0, 1.0)


def test_a_rank_that_only_computes_is_done_when_it_has_computed() -> None:
    job = ClusterJob(bytes=8, rounds=3, compute_s=0.01, shares=[1.0], destinations=[[0]])
    _, (timings,) = run_all(job, 1, 0, receives_ahead=1)
    begin = time.monotonic()
    run = RankRun(0, (), job.buffers(0, 1, 0), pauses=job.pauses(1))
    assert run.run(Connections({}, {}), TcpTransport().wait_any, 20.0, begin).finished_s >= begin + 0.03
    assert timings.step_finished_s == ()
