# SPDX-License-Identifier: Apache-2.0
"""What a rank notices about a result, with a device and a communicator in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import pytest

from testbed.nccl.collectives import COLLECTIVES, Operation
from testbed.nccl.cuda import Cuda
from testbed.nccl.elements import TYPES
from testbed.nccl.launch import Buffers, wait
from testbed.nccl.libnccl import Communicator, Nccl, NcclError
from testbed.nccl.rank import Rank

RANKS, RANK, ELEMENTS = 3, 1, 3 * 700


class Memory:
    """Memory of a device that is this process's."""

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def malloc(self, size: int) -> int:
        block = (ctypes.c_char * size)()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address: int) -> None:
        del self.blocks[address]

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size: int) -> bytearray:
        return bytearray(ctypes.string_at(address, size))


class Recorded:
    """A communicator that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, arguments))


def prepared(name: str, *, in_place: bool) -> tuple[Operation, Memory, Buffers]:
    operation = Operation(COLLECTIVES[name], TYPES["float16"], "sum", RANKS, ELEMENTS)
    memory = Memory()
    buffers = Buffers(cast(Cuda, memory))
    buffers.prepare(operation, RANK, in_place=in_place)
    buffers.reset()
    return operation, memory, buffers


CASES = [(name, False) for name in COLLECTIVES] + [(name, True) for name, kind in COLLECTIVES.items() if kind.placement]


@pytest.mark.parametrize(("name", "in_place"), CASES)
def test_the_right_result_is_accepted_and_nothing_else(name: str, in_place: bool) -> None:
    operation, memory, buffers = prepared(name, in_place=in_place)
    assert memory.read(buffers.send, len(operation.sent(RANK))) == operation.sent(RANK)
    result = operation.expected_in_place(RANK) if in_place else operation.expected(RANK)
    if name != "reduce":  # for which this rank's buffer stays as it is
        assert buffers.verdict().wrong > 0
    memory.write(buffers.recv, result)
    assert buffers.verdict().wrong == 0
    memory.write(buffers.recv + 10, bytes([result[10] ^ 0x40]))
    verdict = buffers.verdict()
    assert verdict.wrong == 1
    assert f"{operation} gave a wrong result: element 5 of {len(result) // 2:,} is " in verdict.sentence


@pytest.mark.parametrize(("name", "in_place"), CASES)
def test_a_byte_behind_the_buffer_is_noticed(name: str, in_place: bool) -> None:
    operation, memory, buffers = prepared(name, in_place=in_place)
    memory.write(buffers.recv, operation.expected_in_place(RANK) if in_place else operation.expected(RANK))
    end = max(memory.blocks) if in_place else buffers.recv
    size = operation.size if in_place else len(operation.expected(RANK))
    memory.write(end + size + 3, b"\0")
    verdict = buffers.verdict()
    assert verdict.wrong == 1
    assert verdict.sentence == f"{operation} wrote past the end of its result, 2 bytes after it"


def test_places_of_operations_in_place() -> None:
    width = TYPES["float16"].width
    for name, ours, theirs in (("all_reduce", 0, 0), ("all_gather", 700, 0), ("reduce_scatter", 0, 700)):
        _, memory, buffers = prepared(name, in_place=True)
        (base,) = memory.blocks
        assert (buffers.send - base, buffers.recv - base) == (ours * width, theirs * width)


def test_every_collective_is_one_call_with_the_counts_of_nccl() -> None:
    seen = {}
    for name in COLLECTIVES:
        _, _, buffers = prepared(name, in_place=False)
        communicator = Recorded()
        buffers.enqueue(cast(Communicator, communicator), 7)
        ((called, arguments),) = communicator.calls
        seen[name] = called, arguments[2:]
        assert arguments[-1] == 7
    half = TYPES["float16"].number
    assert seen["all_reduce"] == ("all_reduce", (ELEMENTS, half, 0, 7))
    assert seen["all_gather"] == ("all_gather", (700, half, 7))
    assert seen["reduce_scatter"] == ("reduce_scatter", (700, half, 0, 7))
    assert seen["broadcast"] == ("broadcast", (ELEMENTS, half, 0, 7))
    assert seen["reduce"] == ("reduce", (ELEMENTS, half, 0, 0, 7))
    assert (seen["all_to_all"][0], seen["send_recv"][0]) == ("exchange", "exchange")


def test_memory_is_given_back() -> None:
    _, memory, buffers = prepared("all_reduce", in_place=False)
    assert len(memory.blocks) == 2
    buffers.free()
    assert not memory.blocks


def test_a_run_begins_without_touching_its_data() -> None:
    """Ranks that share few processors would begin late: many bytes take longer than the time until the start."""

    class Device(Memory):
        written = 0

        def set_device(self, device: int) -> None:
            pass

        def stream(self) -> int:
            return 1

        def is_idle(self, stream: int) -> bool:
            return True

        def write(self, address: int, data: bytes) -> None:
            self.written += len(data)
            super().write(address, data)

    class Library:
        def join(self, unique_id: bytes, rank: int, ranks: int) -> Recorded:
            return communicator

    device, communicator = Device(), Recorded()
    rank = Rank(cast(Cuda, device), cast(Nccl, Library()), 0)
    rank.join("", RANK, RANKS)
    rank.prepare("all_reduce", 4 * ELEMENTS, "float32", "sum")
    before = device.written
    assert before > 4 * ELEMENTS
    assert rank.run_at(0.0, 2, timeout_s=1.0)["wrong"] == ELEMENTS  # the communicator moves nothing
    assert device.written == before
    assert [name for name, _ in communicator.calls if name == "all_reduce"] == ["all_reduce"] * 2


def test_an_asynchronous_error_ends_the_wait() -> None:
    """A network that fails leaves the stream waiting for ever."""

    class Stuck:
        def is_idle(self, stream: int) -> bool:
            return False

    class Failed:
        def check(self) -> None:
            raise NcclError("an operation failed: remote process exited")

    with pytest.raises(NcclError, match="remote process exited"):
        wait(cast(Cuda, Stuck()), [1], [cast(Communicator, Failed())])
