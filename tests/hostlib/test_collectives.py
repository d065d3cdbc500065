# SPDX-License-Identifier: Apache-2.0
"""Every collective, operator and element type against numpy, with bytes around the results that must not change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache, reduce
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from hostlib import TransportError
from hostlib.collectives import DataType, Group, ReduceOp

from .group_scene import DEADLINE_S, World, make_groups, world

Array = npt.NDArray[Any]

GUARD = 64
"""Bytes before and after every buffer."""
SIZES = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 13, 3001)
"""Elements: none, one, fewer than one per piece, and several KiB: short for all but the widest types."""
LONG_COUNTS = (30_011, 400_009)
"""Elements of 4 bytes: medium and long messages."""

TYPES: tuple[DataType, ...] = get_args(DataType)
OPS: tuple[ReduceOp, ...] = get_args(ReduceOp)


def storage(dtype: DataType) -> np.dtype[Any]:
    """What numpy keeps elements as: it has no bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def encode(values: Array, dtype: DataType) -> Array:
    """Elements of small integers, which every type represents."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def defined(dtype: DataType, op: ReduceOp) -> bool:
    if op in ("band", "bor", "bxor"):
        return "float" not in dtype
    return not (op == "avg" and dtype == "bool")


@lru_cache(2 * max(SIZES))  # every rank asks for those of all
def values_of(rank: int, count: int, dtype: DataType, op: ReduceOp) -> Array:
    """Integers whose sums and products every type holds."""
    generator = np.random.default_rng([rank, count, len(op)])
    if dtype == "bool":
        return generator.integers(0, 2, count)
    if op == "product":
        return generator.choice(np.array([1, 1, 2]), count)
    return generator.integers(0, 13, count)


@lru_cache(2)
def reduced(size: int, count: int, dtype: DataType, op: ReduceOp) -> Array:
    """The reduction of the small integers of all ranks, computed by numpy."""
    values = [values_of(rank, count, dtype, op) for rank in range(size)]
    if dtype == "bool":
        op = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(op, op)  # type: ignore[assignment]
    functions: dict[str, Any] = {
        "sum": np.add,
        "avg": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    total: Array = reduce(functions[op], values)
    if op != "avg":
        return encode(total, dtype)
    if "float" not in dtype:
        return (total // len(values)).astype(dtype)
    if dtype != "bfloat16":
        quotient: Array = total.astype(dtype) / np.array(len(values), dtype)
        return quotient
    exact = (total.astype(np.float32) / np.float32(len(values))).view(np.uint32)
    return ((exact + np.uint32(0x7FFF) + (exact >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


class Guarded:
    """An array within guard bytes."""

    def __init__(self, count: int, dtype: np.dtype[Any], content: Array | None = None) -> None:
        self.bytes = np.full(count * dtype.itemsize + 2 * GUARD, 0xA5, np.uint8)
        self.array: Array = self.bytes[GUARD : GUARD + count * dtype.itemsize].view(dtype)
        if content is not None:
            self.array[:] = content

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data + GUARD

    def check(self, expected: Array) -> None:
        assert self.array.tobytes() == expected.tobytes()
        assert (self.bytes[:GUARD] == 0xA5).all()
        assert (self.bytes[len(self.bytes) - GUARD :] == 0xA5).all()


@pytest.fixture(scope="module", params=SIZES)
def ranks(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(request.param) as made:
        yield made


def cases() -> Iterator[tuple[DataType, ReduceOp, int]]:
    for dtype in TYPES:
        for op in OPS:
            if defined(dtype, op):
                yield from ((dtype, op, count) for count in COUNTS)
    for dtype in ("float32", "float16", "int8"):
        yield from ((dtype, "sum", count) for count in LONG_COUNTS)
    yield "bfloat16", "avg", LONG_COUNTS[-1]


@pytest.mark.parametrize("in_place", [False, True])
def test_all_reduce(ranks: World, in_place: bool) -> None:
    def main(group: Group) -> None:
        for dtype, op, count in cases():
            own = encode(values_of(group.rank, count, dtype, op), dtype)
            source = Guarded(count, own.dtype, own)
            target = source if in_place else Guarded(count, own.dtype)
            group.all_reduce(source.address, target.address, count, dtype, op, awaited=in_place).wait(DEADLINE_S)
            target.check(reduced(group.size, count, dtype, op))
            if not in_place:
                source.check(own)

    ranks.run(main)


def test_reduce(ranks: World) -> None:
    def main(group: Group) -> None:
        for number, (dtype, op, count) in enumerate(cases()):
            root = number % group.size
            own = encode(values_of(group.rank, count, dtype, op), dtype)
            source = Guarded(count, own.dtype, own)
            target = Guarded(count, own.dtype)
            address = target.address if group.rank == root else 0
            group.reduce(source.address, address, count, dtype, op, root=root).wait(DEADLINE_S)
            if group.rank == root:
                target.check(reduced(group.size, count, dtype, op))
            source.check(own)

    ranks.run(main)


def test_reduce_scatter(ranks: World) -> None:
    def main(group: Group) -> None:
        for number, (dtype, op, most) in enumerate(cases()):
            # Blocks of different sizes, some of them empty, in every second case.
            count = min(most, 400_000 // group.size)
            counts = [count] * group.size if number % 2 else [max(0, count - 7 * rank) for rank in range(group.size)]
            starts = np.concatenate(([0], np.cumsum(counts)))
            whole = int(starts[-1])
            own = encode(values_of(group.rank, whole, dtype, op), dtype)
            source = Guarded(len(own), own.dtype, own)
            target = Guarded(counts[group.rank], own.dtype)
            given = counts if number % 2 == 0 else count
            group.reduce_scatter(source.address, target.address, given, dtype, op).wait(DEADLINE_S)
            result = reduced(group.size, whole, dtype, op)
            target.check(result[starts[group.rank] : starts[group.rank + 1]])
            source.check(own)

    ranks.run(main)


BLOCK_BYTES = (0, 1, 63, 8192, 8193, 70_001, 1_300_003)


def pattern(source: int, target: int, nbytes: int) -> Array:
    """Bytes that differ by sender and receiver."""
    return (np.arange(nbytes) * 7 + source * 31 + target * 101).astype(np.uint8)


def test_broadcast(ranks: World) -> None:
    def main(group: Group) -> None:
        for number, nbytes in enumerate(BLOCK_BYTES):
            root = number % group.size
            content = pattern(root, 0, nbytes)
            buffer = Guarded(nbytes, np.dtype(np.uint8), content if group.rank == root else None)
            group.broadcast(buffer.address, nbytes, root=root).wait(DEADLINE_S)
            buffer.check(content)

    ranks.run(main)


@pytest.mark.parametrize("shape", ["one address", "in place", "addresses", "uneven"])
def test_all_gather(ranks: World, shape: str) -> None:
    def main(group: Group) -> None:
        for nbytes in BLOCK_BYTES:
            sizes = [nbytes + 5 * rank if shape == "uneven" else nbytes for rank in range(group.size)]
            starts = [sum(sizes[:rank]) for rank in range(group.size)]
            wanted = [pattern(rank, 0, size) for rank, size in enumerate(sizes)]
            source = Guarded(sizes[group.rank], np.dtype(np.uint8), wanted[group.rank])
            if shape == "addresses":
                blocks = [Guarded(size, np.dtype(np.uint8)) for size in sizes]
                group.all_gather(source.address, [block.address for block in blocks], nbytes).wait(DEADLINE_S)
                for block, content in zip(blocks, wanted, strict=True):
                    block.check(content)
                continue
            target = Guarded(sum(sizes), np.dtype(np.uint8))
            address = source.address
            if shape == "in place":
                address = target.address + starts[group.rank]
                target.array[starts[group.rank] :][: sizes[group.rank]] = wanted[group.rank]
            given = sizes if shape == "uneven" else nbytes
            group.all_gather(address, target.address, given).wait(DEADLINE_S)
            target.check(np.concatenate(wanted))

    ranks.run(main)


@pytest.mark.parametrize("shape", ["equal", "uneven", "addresses"])
def test_all_to_all(ranks: World, shape: str) -> None:
    def size_of(source: int, target: int, nbytes: int) -> int:
        return nbytes if shape != "uneven" else (nbytes * (source + 1) + 3 * target) % (2 * nbytes + 3)

    def main(group: Group) -> None:
        me = group.rank
        for nbytes in BLOCK_BYTES:
            sent = [pattern(me, rank, size_of(me, rank, nbytes)) for rank in range(group.size)]
            wanted = [pattern(rank, me, size_of(rank, me, nbytes)) for rank in range(group.size)]
            source = Guarded(sum(map(len, sent)), np.dtype(np.uint8), np.concatenate(sent))
            if shape == "addresses":
                blocks = [Guarded(len(content), np.dtype(np.uint8)) for content in wanted]
                group.all_to_all(source.address, [block.address for block in blocks], nbytes).wait(DEADLINE_S)
                for block, content in zip(blocks, wanted, strict=True):
                    block.check(content)
                continue
            target = Guarded(sum(map(len, wanted)), np.dtype(np.uint8))
            if shape == "equal":
                group.all_to_all(source.address, target.address, nbytes).wait(DEADLINE_S)
            else:
                group.all_to_all(source.address, target.address, [len(s) for s in sent], [len(w) for w in wanted]).wait(
                    DEADLINE_S
                )
            target.check(np.concatenate(wanted))

    ranks.run(main)


def test_gather_and_scatter(ranks: World) -> None:
    def main(group: Group) -> None:
        for number, nbytes in enumerate(BLOCK_BYTES):
            root = number % group.size
            contents = [pattern(rank, 0, nbytes) for rank in range(group.size)]
            whole = np.concatenate(contents)
            own = Guarded(nbytes, np.dtype(np.uint8), contents[group.rank])
            target = Guarded(len(whole), np.dtype(np.uint8))
            is_root = group.rank == root
            group.gather(own.address, target.address if is_root else None, nbytes, root=root).wait(DEADLINE_S)
            if is_root:
                target.check(whole)
            back = Guarded(nbytes, np.dtype(np.uint8))
            group.scatter(target.address if is_root else None, back.address, nbytes, root=root).wait(DEADLINE_S)
            back.check(contents[group.rank])

    ranks.run(main)


def test_a_barrier_waits_for_every_rank(ranks: World) -> None:
    arrived = [0] * ranks.size

    def main(group: Group) -> None:
        for number in range(1, 20):
            arrived[group.rank] = number
            group.barrier().wait(DEADLINE_S)
            assert min(arrived) >= number

    ranks.run(main)


def test_many_operations_under_way_at_once(ranks: World) -> None:
    def main(group: Group) -> None:
        buffers = [np.full(100 * n + 1, group.rank + n, np.int64) for n in range(40)]
        operations = [
            group.all_reduce(buffer.ctypes.data, buffer.ctypes.data, len(buffer), "int64") for buffer in buffers
        ]
        for n in reversed(range(40)):
            operations[n].wait(DEADLINE_S)
            assert (buffers[n] == sum(rank + n for rank in range(group.size))).all()

    ranks.run(main)


def test_take_finished_returns_every_operation_once(ranks: World) -> None:
    def main(group: Group) -> None:
        buffer = np.zeros(1000, np.float32)
        issued: dict[int, int] = {}

        def issue() -> None:
            for n in range(50):
                operation = group.all_reduce(
                    buffer.ctypes.data, buffer.ctypes.data, n * 20, "float32", notify=n % 2 == 1
                )
                if n % 2 == 1:
                    issued[operation.id] = n

        thread = threading.Thread(target=issue)
        thread.start()
        taken: list[int] = []
        while len(taken) < 25:
            finished = group.take_finished(DEADLINE_S)
            assert finished
            taken += [operation.id for operation in finished]
        thread.join()
        assert taken == list(issued)
        assert group.take_finished(0) == []

    ranks.run(main)


def test_sends_and_receives_in_any_order(ranks: World) -> None:
    """Every rank sends to every other before it receives, with two tags, short and long messages."""

    def main(group: Group) -> None:
        others = [rank for rank in range(group.size) if rank != group.rank]
        sends, receives = [], []
        for nbytes in (0, 5, 9000, 300_000):
            for tag in (0, 2**31 - 1):
                for peer in others:
                    data = pattern(group.rank, peer + tag % 5, nbytes)
                    sends.append((group.send(data.ctypes.data, nbytes, peer, tag=tag), data))
        for nbytes in (0, 5, 9000, 300_000):
            for tag in (2**31 - 1, 0):
                for peer in others:
                    buffer = Guarded(nbytes, np.dtype(np.uint8))
                    receives.append((group.recv(buffer.address, nbytes, peer, tag=tag), buffer, peer, tag))
        for operation, buffer, peer, tag in receives:
            operation.wait(DEADLINE_S)
            assert operation.source == peer
            buffer.check(pattern(peer, group.rank + tag % 5, len(buffer.array)))
        for sent, _data in sends:
            sent.wait(DEADLINE_S)

    ranks.run(main)


def test_a_receive_from_any_rank_says_who_sent(ranks: World) -> None:
    def main(group: Group) -> None:
        if group.rank != 0:
            data = pattern(group.rank, 0, 20_000)
            group.send(data.ctypes.data, len(data), 0, tag=3).wait(DEADLINE_S)
            return
        sources = []
        for _ in range(group.size - 1):
            buffer = Guarded(20_000, np.dtype(np.uint8))
            operation = group.recv(buffer.address, 20_000, tag=3)
            operation.wait(DEADLINE_S)
            assert operation.source is not None
            buffer.check(pattern(operation.source, 0, 20_000))
            sources.append(operation.source)
        assert sorted(sources) == list(range(1, group.size))

    ranks.run(main)


def test_several_groups_over_one_device() -> None:
    with world(4) as first:
        second = make_groups(first.devices, first._pool)
        third = make_groups(first.devices[1:], first._pool)

        def main(group: Group) -> None:
            others = [second[group.rank]] + ([third[group.rank - 1]] if group.rank > 0 else [])
            buffers = [np.full(50_000, float(group.rank)) for _ in range(1 + len(others))]
            operations = [
                member.all_reduce(b.ctypes.data, b.ctypes.data, len(b), "float64")
                for member, b in zip([group, *others], buffers, strict=True)
            ]
            for operation, buffer in zip(operations, buffers, strict=True):
                operation.wait(DEADLINE_S)
                assert (buffer == 6.0).all()
            for other in others:
                other.close()

        first.run(main)


@pytest.mark.parametrize("size", SIZES)
def test_equal_results_to_the_last_bit_on_all_ranks(size: int) -> None:
    with world(size) as made:

        def main(group: Group) -> list[bytes]:
            out = []
            for op in ("sum", "min", "max"):
                for count in (1000, 20_000, 100_000):
                    data = np.random.default_rng(group.rank).standard_normal(count).astype(np.float32)
                    data[::7] = -0.0 if group.rank % 2 else 0.0
                    data[::11] = np.nan
                    group.all_reduce(data.ctypes.data, data.ctypes.data, count, "float32", op).wait(DEADLINE_S)
                    out.append(data.tobytes())
            return out

        results = made.run(main)
        assert all(result == results[0] for result in results)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param(("all_reduce", 100, "float32", "sum"), ("all_reduce", 101, "float32", "sum"), id="size"),
        pytest.param(("all_reduce", 500_000, "float32", "sum"), ("all_reduce", 9, "float32", "sum"), id="algorithm"),
        pytest.param(("all_reduce", 500_000, "int8", "sum"), ("all_reduce", 499_999, "int8", "sum"), id="long size"),
        pytest.param(("all_reduce", 100, "float32", "sum"), ("all_reduce", 100, "int32", "sum"), id="type"),
        pytest.param(("all_reduce", 500_000, "int8", "min"), ("all_reduce", 500_000, "int8", "max"), id="operator"),
        pytest.param(("all_reduce", 100, "float32", "sum"), ("broadcast", 400, "", ""), id="kind"),
    ],
)
def test_a_difference_among_ranks_is_an_error_on_both(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    with world(2) as made:

        def main(group: Group) -> str:
            kind, count, dtype, op = (one, two)[group.rank]
            buffer = Guarded(4 * count, np.dtype(np.uint8))
            if kind == "broadcast":
                operation = group.broadcast(buffer.address, count, root=0)
            else:
                operation = group.all_reduce(buffer.address, buffer.address, count, dtype, op)
            with pytest.raises(TransportError):
                operation.wait(DEADLINE_S)
            assert (buffer.bytes[:GUARD] == 0xA5).all()
            assert (buffer.bytes[len(buffer.bytes) - GUARD :] == 0xA5).all()
            assert operation.error is not None
            assert operation.error == f"{kind} failed: {group.error}"
            return operation.error

        errors = made.run(main)
        assert any("every rank" in error or "on every rank" in error for error in errors)


def test_a_message_of_another_size_than_its_receive_is_an_error() -> None:
    for sent, received in ((100, 99), (99, 100), (50_000, 49_999), (49_999, 50_000)):
        with world(2) as made:

            def main(group: Group, sent: int = sent, received: int = received) -> None:
                buffer = Guarded(max(sent, received), np.dtype(np.uint8))
                if group.rank == 0:
                    operation = group.send(buffer.address, sent, 1)
                    try:
                        operation.wait(DEADLINE_S)  # a shorter message has arrived when the receiver sees its size
                    except TransportError:
                        assert group.error is not None
                else:
                    with pytest.raises(TransportError, match="bytes"):
                        group.recv(buffer.address, received, 0).wait(DEADLINE_S)

            made.run(main)


def test_arguments_that_no_group_can_execute() -> None:
    with world(2) as made:
        group = made.groups[0]
        with pytest.raises(ValueError, match="dtype 'complex64' is not supported"):
            group.all_reduce(0, 0, 0, "complex64")
        with pytest.raises(ValueError, match="op 'xor' is not supported"):
            group.all_reduce(0, 0, 0, "int8", "xor")
        with pytest.raises(ValueError, match="band is not defined for float32"):
            group.all_reduce(0, 0, 0, "float32", "band")
        with pytest.raises(ValueError, match="avg is not defined for bool"):
            group.reduce(0, 0, 0, "bool", "avg", root=0)
        with pytest.raises(ValueError, match="root must be a rank, 0 to 1, not 2"):
            group.broadcast(0, 0, root=2)
        with pytest.raises(ValueError, match="peer must be another rank"):
            group.send(0, 0, 0)
        with pytest.raises(ValueError, match="peer must be a rank"):
            group.recv(0, 0, -1)
        with pytest.raises(ValueError, match="tag must be 0 to 2147483647"):
            group.send(0, 0, 1, tag=2**31)
        with pytest.raises(ValueError, match="3 sizes for 2 ranks"):
            group.all_gather(0, 0, [1, 2, 3])
        with pytest.raises(ValueError, match="1 addresses for 2 ranks"):
            group.all_gather(0, [0], 1)
        with pytest.raises(ValueError, match="must not be negative"):
            group.broadcast(0, -1, root=0)
        with pytest.raises(ValueError, match="sends 1 bytes to itself and expects 2"):
            group.all_to_all(0, 0, [1, 1], [2, 2])
        with pytest.raises(ValueError, match="the root must give its blocks"):
            group.gather(0, None, 1, root=0)
        with pytest.raises(ValueError, match="rank 2 of a group of 2"):
            Group(made.devices[0], 2, 2, lambda handle: [handle])
        with pytest.raises(ValueError, match="the handles of all 2 ranks, not of 1"):
            Group(made.devices[0], 0, 2, lambda handle: [handle])
        with pytest.raises(ValueError, match="the handle of rank 1 is none"):
            Group(made.devices[0], 0, 2, lambda handle: [handle, bytes(128)])
        assert group.error is None
