# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test do together. Every function runs on all ranks, in a process group of backend paralet."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import reduce as fold
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint_
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import paralet_torch
from paralet_torch.promise import Promise

Tensor = torch.Tensor

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
OTHERS = [torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]

_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
_BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _here() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def _data(rank: int, dtype: torch.dtype, count: int = 13) -> Tensor:
    """Small integers, so that every sum and product is exact in every type."""
    numbers = (torch.arange(count) + 2 * rank) % 4 + 1
    return numbers.to(torch.uint8).view(torch.uint8).to(dtype) if dtype != torch.float8_e4m3fn else numbers.to(dtype)


def _same(got: Tensor, expected: Tensor, what: str = "") -> None:
    assert got.dtype == expected.dtype, (what, got.dtype)
    if got.dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64):
        got, expected = got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    assert torch.equal(got, expected), f"{what}: got {got}, expected {expected}"


# -- collectives -------------------------------------------------------------------------------------------------


def all_reduce(operation: str) -> None:
    """Every element type that has the operation, and AVG of floats."""
    rank, size = _here()
    op = getattr(dist.ReduceOp, operation)
    table = _ARITHMETIC | _BITWISE
    dtypes = INTEGERS if operation in _BITWISE else [*FLOATS, *INTEGERS, *(COMPLEX if operation == "SUM" else [])]
    for dtype in dtypes:
        tensor = _data(rank, dtype)
        dist.all_reduce(tensor, op)
        expected = fold(table[operation], [_data(other, dtype) for other in range(size)])
        _same(tensor, expected, f"{operation} {dtype}")


def all_reduce_of_booleans() -> None:
    rank, size = _here()
    rows = [torch.tensor([True, False, other == 0]) for other in range(size)]
    for op, expected in (
        (dist.ReduceOp.SUM, [True, False, True]),
        (dist.ReduceOp.MAX, [True, False, True]),
        (dist.ReduceOp.PRODUCT, [True, False, False]),
        (dist.ReduceOp.MIN, [True, False, False]),
    ):
        tensor = rows[rank].clone()
        dist.all_reduce(tensor, op)
        _same(tensor, torch.tensor(expected), str(op))


def average() -> None:
    rank, size = _here()
    for dtype in FLOATS:
        tensor = torch.full((7,), float(rank * size), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        _same(tensor, torch.full((7,), float(sum(range(size))), dtype=dtype), str(dtype))


def scaled_sum() -> None:
    rank, size = _here()
    tensor = torch.full((5,), float(rank + 1))
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    _same(tensor, torch.full((5,), 0.5 * sum(range(1, size + 1))))


def broadcast() -> None:
    rank, size = _here()
    for root in range(size):
        for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *OTHERS]:
            tensor = _data(rank, dtype)
            dist.broadcast(tensor, root)
            _same(tensor, _data(root, dtype), f"{dtype} from {root}")


def reduce() -> None:
    rank, size = _here()
    for root in range(size):
        tensor = _data(rank, torch.float32)
        dist.reduce(tensor, root)
        expected = (
            sum(_data(other, torch.float32) for other in range(size)) if rank == root else _data(rank, torch.float32)
        )
        assert isinstance(expected, Tensor)
        _same(tensor, expected, f"to {root}")


def all_gather() -> None:
    rank, size = _here()
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX, *OTHERS]:
        outputs = [torch.empty(13, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, _data(rank, dtype))
        for other, output in enumerate(outputs):
            _same(output, _data(other, dtype), f"{dtype} of {other}")
    whole = torch.empty(13 * size)
    dist.all_gather_into_tensor(whole, _data(rank, torch.float32))
    _same(whole, torch.cat([_data(other, torch.float32) for other in range(size)]))


def all_gather_of_different_sizes() -> None:
    rank, size = _here()
    outputs = [torch.empty(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for other, output in enumerate(outputs):
        _same(output, torch.full((other + 1,), float(other)))


def reduce_scatter() -> None:
    rank, size = _here()
    inputs = [_data(rank + block, torch.float32) for block in range(size)]
    expected = fold(torch.add, [_data(other + rank, torch.float32) for other in range(size)])
    output = torch.empty(13)
    dist.reduce_scatter(output, inputs)
    _same(output, expected, "list")
    dist.reduce_scatter_tensor(output.zero_(), torch.cat(inputs))
    _same(output, expected, "tensor")


def all_to_all() -> None:
    rank, size = _here()
    inputs = [torch.full((other + 1,), 10 * rank + other) for other in range(size)]
    outputs = [torch.empty(rank + 1, dtype=torch.int64) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    for other, output in enumerate(outputs):
        _same(output, torch.full((rank + 1,), 10 * other + rank))
    rows = torch.arange(2 * size * 3).reshape(2 * size, 3) + 100 * rank
    got = torch.empty_like(rows)
    dist.all_to_all_single(got, rows)
    _same(got, torch.cat([rows[2 * rank : 2 * rank + 2] - 100 * rank + 100 * other for other in range(size)]))
    uneven = torch.empty((rank + 1) * size, dtype=torch.int64)
    dist.all_to_all_single(uneven, torch.cat(inputs), [rank + 1] * size, [other + 1 for other in range(size)])
    _same(uneven, torch.cat(outputs))


def gather_and_scatter() -> None:
    rank, size = _here()
    for root in range(size):
        gathered = [torch.empty(4) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((4,), float(rank)), gathered, dst=root)
        for other, tensor in enumerate(gathered or []):
            _same(tensor, torch.full((4,), float(other)))
        output = torch.empty(4)
        parts = [torch.full((4,), float(10 * root + other)) for other in range(size)] if rank == root else None
        dist.scatter(output, parts, src=root)
        _same(output, torch.full((4,), float(10 * root + rank)))


def objects() -> list[Any]:
    rank, size = _here()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    shared = ["from 1", [1, 2]] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, 1)
    return [gathered, shared]


def coalesced() -> None:
    """The forms for several tensors, with names of torch 2.13 and older."""
    rank, size = _here()
    tensors = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank + 1))]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    _same(tensors[0], torch.full((3,), float(sum(range(size)))))
    _same(tensors[1], torch.full((2, 2), float(sum(range(size)) + size)))

    inputs = [torch.full((2,), float(rank)), torch.full((3,), float(-rank))]
    outputs = [torch.empty(2 * size), torch.empty(3 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    manager.wait()
    _same(outputs[0], torch.arange(size).repeat_interleave(2).float())
    _same(outputs[1], -torch.arange(size).repeat_interleave(3).float())

    parts = [torch.empty(2), torch.empty(1)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(len(part) * size))
    _same(parts[0], torch.full((2,), float(size)))
    _same(parts[1], torch.full((1,), float(size)))

    group: Any = dist.group.WORLD
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    group.allgather_coalesced(lists, inputs).wait()
    _same(lists[size - 1][1], torch.full((3,), float(1 - size)))

    total = torch.full((4,), float(rank))
    group._start_coalescing(torch.device("cpu"))
    group.allreduce([total])
    group.broadcast(inputs[0], root=1)
    assert group._end_coalescing(torch.device("cpu")).wait()
    _same(total, torch.full((4,), float(sum(range(size)))))
    _same(inputs[0], torch.ones(2))


def not_contiguous() -> None:
    """Transposed, strided and expanded tensors, conjugates, slices of a larger tensor, leaves that need gradients."""
    rank, size = _here()
    whole = torch.zeros(6, 8)
    column = whole[:, 3]
    column.fill_(float(rank + 1))
    dist.all_reduce(column)
    assert whole[:, 3].sum() == 6 * sum(range(1, size + 1))
    assert whole.sum() == whole[:, 3].sum()

    transposed = torch.arange(6.0).reshape(2, 3).t() if rank == 0 else torch.zeros(3, 2).t().contiguous().t()
    dist.broadcast(transposed, 0)
    _same(transposed.contiguous(), torch.arange(6.0).reshape(2, 3).t().contiguous())

    outputs = [torch.empty(4, 2).t() for _ in range(size)]
    dist.all_gather(outputs, torch.full((4, 2), float(rank)).t())
    for other, output in enumerate(outputs):
        assert torch.all(output == other)

    expanded = torch.tensor([float(rank)]).expand(5)
    result = torch.empty(5)
    dist.reduce_scatter_tensor(result, expanded.repeat(size))
    _same(result, torch.full((5,), float(sum(range(size)))))

    conjugate = torch.complex(torch.ones(3), torch.full((3,), float(rank))).conj()
    gathered = [torch.empty(3, dtype=torch.complex64) for _ in range(size)]
    group: Any = dist.group.WORLD
    group.allgather([gathered], [conjugate]).wait()
    for other, tensor in enumerate(gathered):
        _same(tensor, torch.complex(torch.ones(3), torch.full((3,), float(-other))))

    leaf = torch.full((3,), float(rank), requires_grad=True)
    dist.broadcast(leaf, 1)
    _same(leaf.detach(), torch.ones(3))

    images = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(images)
    assert torch.all(images == sum(range(size)))


def empty_and_scalar() -> None:
    rank, size = _here()
    dist.all_reduce(torch.empty(0))
    dist.broadcast(torch.empty(0, 3), 0)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    _same(scalar, torch.tensor(float(sum(range(size)))))
    gathered = [torch.empty(0) for _ in range(size)]
    dist.all_gather(gathered, torch.empty(0))


def large() -> None:
    """Sizes around those at which algorithms and messages change."""
    rank, size = _here()
    for count in (1, size, 255, 4097, 65_536, 1_000_003):
        tensor = torch.arange(count, dtype=torch.float64) * (rank + 1)
        dist.all_reduce(tensor)
        _same(tensor, torch.arange(count, dtype=torch.float64) * sum(range(1, size + 1)), str(count))


def sparse() -> None:
    rank, size = _here()
    tensor = torch.sparse_coo_tensor([[0, rank]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(tensor)
    expected = torch.zeros(size + 1)
    for other in range(size):
        expected[0] += 1
        expected[other] += 2
    _same(tensor.to_dense(), expected)


# -- point to point ----------------------------------------------------------------------------------------------


def ring_of_sends() -> None:
    rank, size = _here()
    received = torch.empty(1000)
    operations = [
        dist.P2POp(dist.isend, torch.full((1000,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    _same(received, torch.full((1000,), float((rank - 1) % size)))


def receives_from_any() -> list[int]:
    """Rank 0 takes what comes; the others send, rank 2 after rank 1."""
    rank, size = _here()
    sources = []
    if rank == 0:
        for _ in range(size - 1):
            tensor = torch.empty(3)
            source = dist.recv(tensor)
            assert source is not None
            _same(tensor, torch.full((3,), float(source)))
            sources.append(source)
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    return sources


def tags() -> None:
    """Receives match sends by their tags, in another order than they were sent."""
    rank, _ = _here()
    if rank == 0:
        works = [dist.isend(torch.full((2,), float(tag)), 1, tag=tag) for tag in (1, 2, 3)]
    elif rank == 1:
        tensors = {tag: torch.empty(2) for tag in (3, 1, 2)}
        works = [dist.irecv(tensor, 0, tag=tag) for tag, tensor in tensors.items()]
    else:
        return
    for work in works:
        assert work is not None
        work.wait()
    if rank == 1:
        for tag, tensor in tensors.items():
            _same(tensor, torch.full((2,), float(tag)))


# -- works -------------------------------------------------------------------------------------------------------


def asynchronous() -> None:
    """Works end in the background, futures have the outputs, callbacks run, dropped works keep their memory."""
    rank, size = _here()
    total = float(sum(range(size)))
    tensors = [torch.full((1000,), float(rank)) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    called = threading.Event()
    chained = works[-1].get_future().then(lambda future: (called.set(), future.value()[0] + 1)[1])
    _same(chained.wait(), torch.full((1000,), total + 1))
    assert called.is_set()
    for work, tensor in zip(works, tensors, strict=True):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        _same(work.result()[0], torch.full((1000,), total))
        assert work.result()[0].data_ptr() == tensor.data_ptr()
        _same(work.get_future().wait()[0], tensor)
    for _ in range(50):
        dist.all_reduce(torch.ones(5000), async_op=True)  # nobody waits for it
    dist.barrier()


def completes_without_waiting() -> None:
    """A work whose caller only polls becomes complete, and its strided output has the result then."""
    rank, size = _here()
    whole = torch.zeros(100, 2)
    whole[:, 1] = float(rank)
    work = dist.all_reduce(whole[:, 1], async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    _same(whole[:, 1].contiguous(), torch.full((100,), float(sum(range(size)))))


def nested_futures(depth: int) -> None:
    """Each callback waits for the future of another all-reduce, whose callback does the same. All threads end again."""
    _, size = _here()
    before = threading.active_count()

    def reduce_in(levels: int) -> Any:
        work: Any = dist.all_reduce(torch.ones(100), async_op=True)
        future = work.get_future()
        return future.then(lambda _: reduce_in(levels - 1).wait()) if levels else future

    (total,) = reduce_in(depth).wait()
    _same(total, torch.full((100,), float(size)))
    works: list[Any] = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(8)]
    futures = [work.get_future() for work in works]
    last = futures[0].then(lambda _: [future.then(lambda f: f.value()[0]) for future in futures[1:]])
    for total in torch.futures.wait_all(last.wait()):
        _same(total, torch.full((3,), float(size)))
    while threading.active_count() > before + 8:
        time.sleep(0.001)


def callback_of_what_never_comes() -> list[str]:
    """A callback waits for an operation that the others never issue: its time limit ends both."""
    rank, size = _here()
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=1))
    work: Any = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    said = []
    if rank == 0:
        alone: Any = dist.all_reduce  # the others do not take part
        chained = work.get_future().then(lambda _: alone(torch.ones(2), group=group, async_op=True).get_future().wait())
        try:
            chained.wait()
        except RuntimeError as error:
            said.append(str(error))
    else:
        work.wait()
    dist.barrier()
    dist.destroy_process_group(group)
    return said


def wait_with_a_limit() -> str:
    """Rank 0 receives what rank 1 sends only later: the first wait ends with an error, the second succeeds."""
    rank, _ = _here()
    said = ""
    tensor = torch.full((4,), float(rank))
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 0:
        work = dist.irecv(tensor, 1)
        assert work is not None
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            said = str(error)
        store.set("rank 0 has given up", "")
        assert work.wait()
        _same(tensor, torch.ones(4))
    elif rank == 1:
        store.wait(["rank 0 has given up"])
        dist.send(tensor, 0)
    return said


# -- groups ------------------------------------------------------------------------------------------------------


def sub_groups() -> None:
    """Groups of some ranks, used at the same time from several threads, and destroyed."""
    rank, size = _here()
    pairs = [dist.new_group([first, (first + 1) % size]) for first in range(size)]
    everyone = dist.new_group(list(range(size)))
    for first, group in enumerate(pairs):
        members = [first, (first + 1) % size]
        if rank in members:
            tensor = torch.full((10,), float(rank))
            dist.all_reduce(tensor, group=group)
            _same(tensor, torch.full((10,), float(sum(members))))
            tensor = torch.full((10,), float(rank))
            dist.broadcast(tensor, members[1], group=group)
            _same(tensor, torch.full((10,), float(members[1])))
    failures: list[BaseException] = []

    def use(group: Any) -> None:
        try:
            for _ in range(10):
                tensor = torch.ones(1000)
                dist.all_reduce(tensor, group=group)
                _same(tensor, torch.full((1000,), float(size)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(group,)) for group in (everyone, dist.group.WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    dist.destroy_process_group(everyone)
    with pytest.raises(RuntimeError, match="destroyed"):
        everyone.allreduce([torch.ones(1)])
    single = dist.new_group([0])
    if rank == 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=single)
        dist.barrier(single)
        _same(tensor, torch.ones(3))


def group_of_another_backend() -> None:
    """A composite group passes CPU tensors to paralet and names what it has no backend for."""
    rank, size = _here()
    group = dist.new_group(list(range(size)), backend="cpu:paralet,cuda:nccl")
    assert isinstance(group, paralet_torch.ParaletProcessGroup)
    tensor = torch.full((4,), float(rank))
    dist.all_reduce(tensor, group=group)
    _same(tensor, torch.full((4,), float(sum(range(size)))))
    with pytest.raises(ValueError, match="no backend for tensors on meta"):
        dist.all_reduce(torch.ones(1, device="meta"), group=group)


def tensors_on_cuda_without_nccl() -> None:
    """The default group names NCCL for them, and this PyTorch may lack it. A fake tensor needs no GPU."""
    assert isinstance(dist.group.WORLD, paralet_torch.ParaletProcessGroup)
    if dist.is_nccl_available():
        return
    with FakeTensorMode():
        tensor = torch.ones(3, device="cuda")
    with pytest.raises(ValueError, match=r"^this PyTorch has no NCCL for tensors on cuda: install a build"):
        dist.all_reduce(tensor)


def refusals() -> list[str]:
    """The sentence for each kind of wrong arguments. No rank sends anything, so the group still works afterwards."""
    rank, size = _here()
    group: Any = dist.group.WORLD
    said = []
    attempts: list[Callable[[], Any]] = [
        lambda: group.allreduce([torch.ones(1), torch.ones(1)]),
        lambda: group.allreduce(torch.ones(2, dtype=torch.float32), dist.ReduceOp.BAND),
        lambda: group.all_gather_single(torch.ones(size + 1), torch.ones(1)),
        lambda: group.allgather([[torch.ones(1)] * (size + 1)], [torch.ones(1)]),
        lambda: group.reduce_scatter_single(torch.ones(2), torch.ones(size)),
        lambda: group.all_to_all_single(torch.ones(size + 1), torch.ones(size), [], []),
        lambda: group.scatter([torch.ones(1)], [[torch.ones(2)] * size], _root(c10d.ScatterOptions(), rank)),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("accepted")
    dist.barrier()
    return said


def _root(options: Any, rank: int) -> Any:
    options.rootRank = rank
    return options


# -- what is built on process groups -----------------------------------------------------------------------------


def _model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))


def _train(model: torch.nn.Module, rank: int, size: int) -> list[float]:
    """Losses of five steps. Every rank has its share of one batch."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(4 * size, 8, generator=generator)
    targets = torch.randn(4 * size, 5, generator=generator)
    mine = slice(4 * rank, 4 * rank + 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if size > 1:
            dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(total.item())
    return losses


def _alone() -> tuple[torch.nn.Module, list[float]]:
    """The same training in one process, on the whole batch."""
    _, size = _here()
    model = _model()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(4 * size, 8, generator=generator)
    targets = torch.randn(4 * size, 5, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def _close(got: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-6)


def ddp() -> list[float]:
    """Losses and parameters are those of one process; parameters are the same on all ranks to the last bit."""
    rank, size = _here()
    model, losses = _alone()
    parallel = DistributedDataParallel(_model(), bucket_cap_mb=0.0005)  # several buckets
    got = _train(parallel, rank, size)
    _close(got, losses)
    for ours, theirs in zip(parallel.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        outputs = [torch.empty_like(ours) for _ in range(size)]
        dist.all_gather(outputs, ours.detach())
        for output in outputs:
            _same(output, ours.detach())
    return got


def ddp_with_power_sgd() -> list[float]:
    """Gradients go through a communication hook of torch whose callbacks wait for further all-reduces."""
    rank, size = _here()
    model = DistributedDataParallel(_model())  # one bucket: the order of all operations is the same on all ranks
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return _train(model, rank, size)


def fsdp() -> list[float]:
    """fully_shard over a device mesh: the same losses as one process."""
    rank, size = _here()
    mesh = init_device_mesh("cpu", (size,))
    model: Any = copy.deepcopy(_model())
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    got = _train(model, rank, size)
    _close(got, _alone()[1])
    return got


def device_mesh_and_dtensor() -> None:
    rank, size = _here()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    assert mesh.get_group("all").size() == size
    whole = torch.arange(float(size * 4)).reshape(size, 4)
    sharded = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    _same(sharded.to_local(), whole[rank : rank + 1])
    _same(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    _same(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    summed: Any = sharded.sum()
    assert isinstance(summed, DTensor)
    _same(summed.full_tensor(), whole.sum())


def checkpoint(folder: str) -> None:
    """A sharded model is saved beside the training, and loaded."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = fully_shard(_model(), mesh=mesh)
    saved = state_dict.get_model_state_dict(model)
    checkpoint_.async_save(saved, checkpoint_id=folder).result()
    other = fully_shard(torch.nn.Sequential(*(copy.deepcopy(layer) for layer in _model())), mesh=mesh)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    loaded = state_dict.get_model_state_dict(other)
    checkpoint_.load(loaded, checkpoint_id=folder)
    for name, tensor in loaded.items():
        _same(tensor.full_tensor(), dict(_model().named_parameters())[name].detach())


def full_state_dict() -> None:
    """Only rank 0 has the parameters of a sharded model, and then every rank has its shards."""
    rank, size = _here()
    model = fully_shard(_model(), mesh=init_device_mesh("cpu", (size,)))
    full = {name: 2 * tensor.detach() for name, tensor in _model().named_parameters()}
    how = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state_dict.set_model_state_dict(model, copy.deepcopy(full) if rank == 0 else {}, options=how)
    for name, parameter in model.named_parameters():
        _same(parameter.full_tensor().detach(), full[name])


def backend_of_the_cpu() -> str:
    """What torch asks of a group's backend. Returns why a group cannot be shrunk."""
    group: Any = dist.group.WORLD
    assert group._device_types == [torch.device("cpu")]
    assert c10d._device_capability(group) == ["cpu"]
    assert group._get_backend(torch.device("cpu")).name() == "paralet"
    with pytest.raises(TypeError) as refused:
        dist.shrink_group([dist.get_world_size() - 1])
    return str(refused.value)


def monitored_barrier() -> str:
    """Rank 1 comes too late to the second of three."""
    rank, _ = _here()
    group: Any = dist.group.WORLD
    said = ""
    group.monitored_barrier(timedelta(seconds=60))
    if rank == 1:
        dist.barrier()
    try:
        group.monitored_barrier(timedelta(seconds=0.2), wait_all_ranks=True)
    except RuntimeError as error:
        said = str(error)
    if rank != 1:
        dist.barrier()
    group.monitored_barrier(timedelta(seconds=60))
    return said


def functional_collectives() -> None:
    """torch's traceable forms, which call the group from C++."""
    rank, size = _here()
    group: Any = dist.group.WORLD
    _same(
        functional.all_reduce(torch.full((4,), float(rank)), "sum", group) + 0,
        torch.full((4,), float(sum(range(size)))),
    )
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    _same(gathered + 0, torch.arange(size).repeat_interleave(2).float())
    part = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group)
    _same(part + 0, torch.full((2,), float(size)))
    swapped = functional.all_to_all_single(torch.arange(float(size)) + 10 * rank, None, None, group)
    _same(swapped + 0, torch.tensor([10.0 * other + rank for other in range(size)]))


# -- fork --------------------------------------------------------------------------------------------------------


def fork() -> dict[str, str] | None:
    """Rank 0 forks while a receive of its is under way. Returns what the calls of its child raised or returned."""
    rank, _ = _here()
    store: Any = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["the child has ended"])
        dist.send(torch.ones(4), 0)
    heard = _with_a_child(store) if rank == 0 else None
    total = torch.ones(3)
    dist.all_reduce(total)
    _same(total, torch.full((3,), float(dist.get_world_size())))
    return heard


def _with_a_child(store: Any) -> dict[str, str]:
    received = torch.zeros(4)
    pending = dist.irecv(received, 1)
    assert pending is not None
    heard = _of_the_child(store, "the child has ended", lambda: _of_a_child(pending))
    assert pending.wait()
    _same(received, torch.ones(4))
    return heard


def _of_the_child(store: Any, key: str, calls: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Runs `calls` in a forked child, then sets the key. Returns what they returned, and the child's exit status."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(60)  # a call that hangs ends the process
        try:
            os.write(writing, json.dumps(calls()).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)  # the way of every program: objects end, exit handlers run
    os.close(writing)
    with os.fdopen(reading) as pipe:
        heard: dict[str, str] = json.loads(pipe.read() or "{}")
    heard["status"] = str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    store.set(key, "")
    return heard


def _of_a_child(pending: Any) -> dict[str, str]:
    group: Any = dist.group.WORLD
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(10)),
        "all_reduce async": lambda: dist.all_reduce(torch.ones(10), async_op=True),
        "sparse": lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (2,))),
        "all_gather": lambda: dist.all_gather([torch.zeros(2)] * dist.get_world_size(), torch.ones(2)),
        "broadcast": lambda: dist.broadcast(torch.zeros(2), 1),
        "recv": lambda: dist.recv(torch.zeros(2), 1),
        "send": lambda: dist.send(torch.zeros(2), 1),
        "barrier": dist.barrier,
        "object": lambda: dist.broadcast_object_list([None], 1),
        "wait": pending.wait,
        "is_completed": pending.is_completed,
        "is_success": pending.is_success,
        "exception": pending.exception,
        "result": pending.result,
        "get_future": pending.get_future,
    }
    heard = {}
    for name, call in calls.items():
        try:
            heard[name] = f"returned {call()!r}"
        except dist.DistBackendError as error:
            heard[name] = str(error).replace(repr(group), "the group")
    dist.destroy_process_group()
    dist.init_process_group("paralet", store=dist.HashStore(), rank=0, world_size=1)
    own = torch.ones(2)
    dist.all_reduce(own)
    heard["own"] = str(own.tolist())
    return heard


def fork_with_futures() -> dict[str, str] | None:
    """Rank 0 forks while others wait for futures of a receive. Returns what the futures of its child gave."""
    rank, _ = _here()
    store: Any = dist.distributed_c10d._get_default_store()
    ended: Any = dist.all_reduce(torch.ones(3), async_op=True)
    if rank == 1:
        store.wait(["the child with futures has ended"])
        dist.send(torch.ones(4), 0)
    heard = None
    if rank == 0:
        received = torch.zeros(4)
        pending: Any = dist.irecv(received, 1)
        future = pending.get_future()
        chained = future.then(lambda f: f.value()[0] + 1)
        of_ended = ended.get_future().then(lambda f: f.value()[0] + 1)
        of_ended.wait()
        waiting = threading.Thread(target=chained.wait)
        waiting.start()
        futures = {
            "future": future,
            "again": future,
            "chained": chained,
            "all": torch.futures.collect_all([future, chained]),
            "of an ended work": of_ended,
        }
        heard = _of_the_child(
            store,
            "the child with futures has ended",
            lambda: {name: _waited_for(future) for name, future in futures.items()},
        )
        assert pending.wait()
        waiting.join()
        _same(chained.wait(), torch.full((4,), 2.0))
    assert ended.wait()
    return heard


def _waited_for(future: Any) -> str:
    said = ["waits for ever"]

    def wait() -> None:
        try:
            said.append(f"returned {future.wait()!r}")
        except RuntimeError as error:
            first_line, _, _ = str(error).replace(repr(dist.group.WORLD), "the group").partition("\n")
            said.append(first_line)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(10)
    return said[-1]


def fork_beside_a_completion() -> int:
    """A thread completes a future while another one forks. Returns 0 when the child's wait() returns."""
    begun = threading.Event()

    def outcome() -> list[Tensor]:
        begun.set()
        time.sleep(0.1)
        return []

    promise = Promise(outcome)
    completing = threading.Thread(target=promise.complete)
    completing.start()
    begun.wait()
    if (pid := os.fork()) == 0:
        os._exit(_waited_for(promise.future) != "returned []")
    completing.join()
    assert not promise.pending
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def futures_are_let_go() -> None:
    """Neither a work nor its future lives on when it has ended."""
    work: Any = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future().then(lambda f: f.value()).wait()
    alive = weakref.ref(work)
    del work
    until = time.monotonic() + 60
    while alive() is not None and time.monotonic() < until:
        time.sleep(0.001)  # the thread that completed it lets it go
    assert alive() is None


# -- failures ----------------------------------------------------------------------------------------------------


def process() -> int:
    return os.getpid()


def reduce_until_it_fails() -> list[str]:
    """All-reduces without end. Returns the error, and that of an operation afterwards."""
    said = []
    try:
        while True:
            dist.all_reduce(torch.ones(100_000))
    except RuntimeError as error:
        said.append(str(error))
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        said.append(str(error))
    return said


_models: list[torch.nn.Module] = []


def train_once() -> None:
    """Make a model for `train_until_it_fails`."""
    _models.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300)))
    _models[-1](torch.ones(4, 300)).sum().backward()


def train_until_it_fails() -> str:
    """Gradients are summed by DistributedDataParallel's C++, which takes futures from the group."""
    try:
        while True:
            _models[-1](torch.ones(4, 300)).sum().backward()
    except RuntimeError as error:
        return str(error)


def futures_until_they_fail() -> str:
    """The same with futures."""
    group: Any = dist.group.WORLD
    try:
        while True:
            group.allreduce([torch.ones(100_000)]).get_future().wait()
    except RuntimeError as error:
        return str(error)
