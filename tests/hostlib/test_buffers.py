# SPDX-License-Identifier: Apache-2.0
"""Buffers that can be sent and received into, and their lifetime while the engine may access them."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hostlib import Device, Request, TransportError, wait_any

from .conftest import DEADLINE_S, A, B, Pair, join

ROOT = Path(__file__).parents[2]


def test_buffers_of_all_kinds(pair: Pair) -> None:
    message = bytes(range(256)) * 64
    with mmap.mmap(-1, len(message)) as mapped:
        mapped[:] = message
        for source in (message, bytearray(message), memoryview(message), np.frombuffer(message, np.uint32), mapped):
            with mmap.mmap(-1, len(message)) as target:
                for into in (bytearray(len(message)), np.zeros((128, 16), np.float64), target):
                    receiving = pair.back.recv(into)
                    assert pair.to.send(source).wait(DEADLINE_S) == len(message)
                    assert receiving.wait(DEADLINE_S) == len(message)
                    assert bytes(into) == message


def test_slices_of_arrays_are_sent_and_received_in_place(pair: Pair) -> None:
    source = np.arange(1000, dtype=np.int64)
    target = np.full(1000, -1, np.int64)
    receiving = pair.back.recv(target[100:300])
    pair.to.send(source[500:700]).wait(DEADLINE_S)
    assert receiving.wait(DEADLINE_S) == 200 * 8
    assert np.array_equal(target[100:300], source[500:700])
    assert (target[:100] == -1).all()
    assert (target[300:] == -1).all()


@pytest.mark.parametrize("size", [0, 1, 40, 4096, 4097, 100_003])
def test_sizes_that_are_not_a_multiple_of_the_packet_size(pair: Pair, size: int) -> None:
    message = np.random.default_rng(size).bytes(size)
    assert pair.exchange(message) == message


def test_buffers_that_are_not_contiguous_or_not_writable_are_refused(pair: Pair) -> None:
    grid = np.zeros((8, 8))
    for transfer in (pair.to.send, pair.to.recv):
        with pytest.raises(ValueError, match="not C-contiguous"):
            transfer(grid[:, ::2])
        with pytest.raises(ValueError, match="not C-contiguous"):
            transfer(grid.T[1:3])
        with pytest.raises(BufferError, match="not C-contiguous"):
            transfer(memoryview(bytearray(10))[::2])
        with pytest.raises(TypeError, match="a bytes-like object is required"):
            transfer("text")
        with pytest.raises(TypeError):
            transfer(None)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pair.to.recv(frozen)
    with pytest.raises(BufferError, match="not writable"):
        pair.to.recv(b"constant")
    with pytest.raises(BufferError, match="not writable"):
        pair.one.register(b"constant")
    assert pair.exchange(b"still works") == b"still works"


@pytest.mark.parametrize("tag", [-1, 2**32])
def test_tags_are_32_bits(pair: Pair, tag: int) -> None:
    with pytest.raises(ValueError, match=r"^tag must be 0 to 4294967295$"):
        pair.to.send(b"x", tag)
    assert pair.exchange(b"x", 2**32 - 1) == b"x"


def test_a_buffer_cannot_shrink_while_it_is_in_use(pair: Pair) -> None:
    buffer = bytearray(1000)
    receiving = pair.back.recv(buffer)
    with pytest.raises(BufferError):
        buffer.clear()
    pair.to.send(b"done").wait(DEADLINE_S)
    receiving.wait(DEADLINE_S)
    buffer.clear()


def test_a_buffer_is_released_when_the_caller_learns_that_the_request_is_done(pair: Pair) -> None:
    for learn in (lambda request: request.wait(DEADLINE_S), lambda request: wait_any([request], DEADLINE_S), poll):
        buffer, message = bytearray(10), bytearray(10)
        receiving, sending = pair.back.recv(buffer), pair.to.send(message)
        learn(receiving)
        learn(sending)
        buffer.clear()
        message.clear()


def poll(request: Request) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not request.done:
        assert time.monotonic() < deadline


def test_dropping_requests_keeps_their_buffers_alive(pair: Pair) -> None:
    sizes = [50_000 + 100 * i for i in range(20)]
    arrays = [np.zeros(size, np.uint8) for size in sizes]
    alive = [weakref.ref(array) for array in arrays]
    for array in arrays:
        pair.back.recv(array)  # the request is dropped at once, the array soon after
    del arrays, array
    gc.collect()
    assert all(ref() is not None for ref in alive)
    for size in sizes:
        pair.to.send(np.full(size, 7, np.uint8))
    gc.collect()
    last = bytearray(1)
    receiving = pair.back.recv(last)
    pair.to.send(b"!").wait(DEADLINE_S)
    receiving.wait(DEADLINE_S)
    pair.back.recv(bytearray(1))
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_dropping_everything_with_messages_in_flight_is_safe(make_pair: Callable[..., Pair]) -> None:
    for _ in range(5):
        pair = make_pair()
        for tag in range(10):
            pair.back.recv(np.zeros(300_000, np.uint8), tag)
            pair.to.send(np.ones(300_000, np.uint8), tag)
        del pair
        gc.collect()


def test_a_region_can_be_used_for_many_transfers(pair: Pair) -> None:
    memory = np.zeros(8 * 1000, np.uint8)
    region = pair.two.register(memory)
    source = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
    outgoing = pair.one.register(source)
    assert region.length == memory.size
    requests = [pair.back.recv(region.slice(1000 * i, 1000), i) for i in range(8)]
    requests += [pair.to.send(outgoing.slice(1000 * i, 1000), i) for i in range(8)]
    assert [request.wait(DEADLINE_S) for request in requests] == [1000] * 16
    assert np.array_equal(memory, source)
    part = region.slice(100, 200).slice(50, 100)
    receiving = pair.back.recv(part)
    pair.to.send(b"\xff" * 100).wait(DEADLINE_S)
    receiving.wait(DEADLINE_S)
    assert (memory[150:250] == 255).all()
    assert np.array_equal(memory[:150], source[:150])
    region.close()
    region.close()
    outgoing.close()


def test_wrong_uses_of_regions_are_refused(pair: Pair) -> None:
    buffer = bytearray(100)
    region = pair.two.register(buffer)
    for offset, length in ((0, 101), (100, 1), (101, 0)):
        with pytest.raises(IndexError, match=r"^the slice is outside the memory region$"):
            region.slice(offset, length)
    with pytest.raises(ValueError, match=r"^the memory region belongs to another device$"):
        pair.to.recv(region)
    receiving = pair.back.recv(region)
    with pytest.raises(BufferError, match=r"^requests on this memory region are pending"):
        region.close()
    pair.to.send(b"x" * 100).wait(DEADLINE_S)
    receiving.wait(DEADLINE_S)
    region.close()
    assert buffer == b"x" * 100
    buffer.clear()  # no longer held
    with pytest.raises(ValueError, match=r"^the memory region is closed$"):
        pair.back.recv(region)


def test_a_region_may_outlive_its_device() -> None:
    buffer = bytearray(10)
    device = Device(A)
    region = device.register(buffer)
    device.close()
    region.close()
    buffer.clear()


def test_a_message_longer_than_its_receive_fails_both_and_no_other(pair: Pair) -> None:
    small = bytearray(b"\x55" * 10)
    receiving = pair.back.recv(small)
    sending = pair.to.send(bytes(11))
    message = "^a message of 11 bytes met a receive of 10: receive at least as much as is sent$"
    for request in (sending, receiving):
        with pytest.raises(TransportError, match=message):
            request.wait(DEADLINE_S)
        assert request.done
    assert small == b"\x55" * 10
    assert pair.exchange(b"next") == b"next"


def test_wait_and_wait_any(pair: Pair) -> None:
    buffers = [bytearray(1) for _ in range(3)]
    requests = [pair.back.recv(buffer, tag) for tag, buffer in enumerate(buffers)]
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match=r"^the receive did not finish within timeout_s; it continues$"):
            requests[0].wait(timeout)
        with pytest.raises(TimeoutError, match=r"^no request finished within timeout_s$"):
            wait_any(requests, timeout)
    with pytest.raises(TimeoutError, match=r"^the send did not finish within timeout_s; it continues$"):
        pair.to.send(b"x", 99).wait(0)
    assert not any(request.done for request in requests)
    pair.to.send(b"1", 1)
    assert wait_any(requests, DEADLINE_S) == 1
    assert wait_any(requests) == 1
    pair.to.send(b"0", 0)
    requests[0].wait(float("inf"))
    assert wait_any(requests) == 0  # the first of several
    with pytest.raises(ValueError, match=r"^requests must not be empty$"):
        wait_any([])
    with pytest.raises(TypeError):
        wait_any([None])  # type: ignore[list-item]
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match=r"^timeout_s must not be negative$"):
            requests[2].wait(timeout)


def test_a_program_may_end_with_open_devices_and_messages_in_flight() -> None:
    program = f"""
from hostlib import Device
one, two = Device({A!r}), Device({B!r})
listener = two.listen()
to = one.connect(listener.handle)
back = listener.accept(10)
kept = [back.recv(bytearray(1 << 20)), to.send(bytes(1 << 20)), to.recv(bytearray(5), 7), one.register(bytearray(9))]
print("done")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_two_devices_of_one_process_exchange_a_message() -> None:
    with Device(A) as one, Device(B) as two:
        assert join(one, two).exchange(b"ping") == b"ping"
