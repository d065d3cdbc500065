# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtime's interface on the CPU: order in streams, events, memory and errors, as CUDA documents them."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.nccl.cpu_device import native
from testbed.nccl.cuda import Cuda

SUCCESS, INVALID_VALUE, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED = 0, 1, 400, 600, 801
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
NON_BLOCKING = 1
UNREGISTERED, HOST, DEVICE = 0, 1, 2

WAIT_S = 30.0

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def built() -> Path:
    """The library, or a skipped test."""
    try:
        return native.runtime()
    except InputError as error:
        pytest.skip(str(error))


class Attributes(ctypes.Structure):
    """cudaPointerAttributes."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("device_pointer", ctypes.c_void_p),
        ("host_pointer", ctypes.c_void_p),
    )


class Runtime:
    """The library by ctypes, with what the tests need of it."""

    def __init__(self) -> None:
        self.calls: Any = ctypes.CDLL(str(built()))
        self.calls.cudaGetErrorString.restype = ctypes.c_char_p
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.calls, name)

    def stream(self, flags: int = 0) -> ctypes.c_void_p:
        """A new stream."""
        handle = ctypes.c_void_p()
        assert self.cudaStreamCreateWithFlags(ctypes.byref(handle), flags) == SUCCESS
        return handle

    def event(self) -> ctypes.c_void_p:
        """A new event."""
        handle = ctypes.c_void_p()
        assert self.cudaEventCreate(ctypes.byref(handle)) == SUCCESS
        return handle

    def memory(self, size: int) -> ctypes.c_void_p:
        """Memory of the device."""
        address = ctypes.c_void_p()
        assert self.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == SUCCESS
        return address

    def call_later(self, stream: ctypes.c_void_p | None, function: Callable[[], object]) -> None:
        """Queue a function."""
        kept = HostFunction(lambda _: (function(), None)[1])
        self._kept.append(kept)  # it runs after this returns
        assert self.cudaLaunchHostFunc(stream, kept, None) == SUCCESS

    def hold(self, stream: ctypes.c_void_p | None) -> threading.Event:
        """Keep a stream busy until the event is set."""
        gate = threading.Event()
        self.call_later(stream, lambda: gate.wait(WAIT_S))
        return gate


@pytest.fixture
def cuda() -> Iterator[Runtime]:
    """The runtime; all work is done at the end."""
    runtime = Runtime()
    yield runtime
    assert runtime.cudaDeviceSynchronize() == SUCCESS
    runtime.cudaGetLastError()


def test_a_stream_keeps_order_and_the_caller_does_not_wait(cuda: Runtime) -> None:
    stream, seen = cuda.stream(), []
    gate = cuda.hold(stream)
    for number in range(5):
        cuda.call_later(stream, lambda number=number: seen.append(number))
    assert cuda.cudaStreamQuery(stream) == NOT_READY
    assert seen == []
    gate.set()
    assert cuda.cudaStreamSynchronize(stream) == SUCCESS
    assert seen == [0, 1, 2, 3, 4]
    assert cuda.cudaStreamQuery(stream) == SUCCESS
    assert cuda.cudaStreamDestroy(stream) == SUCCESS


def test_streams_run_beside_each_other(cuda: Runtime) -> None:
    held, free = cuda.stream(NON_BLOCKING), cuda.stream(NON_BLOCKING)
    gate = cuda.hold(held)
    cuda.call_later(free, gate.set)  # would never run behind the other stream
    assert cuda.cudaStreamSynchronize(held) == SUCCESS


def test_an_event_happens_when_its_stream_gets_there(cuda: Runtime) -> None:
    first, second, event = cuda.stream(), cuda.stream(), cuda.event()
    seen: list[str] = []
    gate = cuda.hold(first)
    cuda.call_later(first, lambda: seen.append("first"))
    assert cuda.cudaEventRecord(event, first) == SUCCESS
    assert cuda.cudaStreamWaitEvent(second, event, 0) == SUCCESS
    cuda.call_later(second, lambda: seen.append("second"))
    assert cuda.cudaEventQuery(event) == NOT_READY
    gate.set()
    assert cuda.cudaStreamSynchronize(second) == SUCCESS
    assert seen == ["first", "second"]
    assert cuda.cudaEventQuery(event) == SUCCESS


def test_a_wait_is_for_the_record_before_it(cuda: Runtime) -> None:
    busy, waiting, event = cuda.stream(NON_BLOCKING), cuda.stream(NON_BLOCKING), cuda.event()
    assert cuda.cudaEventRecord(event, busy) == SUCCESS
    assert cuda.cudaStreamWaitEvent(waiting, event, 0) == SUCCESS
    gate = cuda.hold(busy)
    assert cuda.cudaEventRecord(event, busy) == SUCCESS  # does not concern the wait
    assert cuda.cudaStreamSynchronize(waiting) == SUCCESS
    assert cuda.cudaEventQuery(event) == NOT_READY
    gate.set()


def test_an_event_that_was_never_recorded_has_happened(cuda: Runtime) -> None:
    event = cuda.event()
    assert cuda.cudaEventQuery(event) == SUCCESS
    assert cuda.cudaEventSynchronize(event) == SUCCESS
    milliseconds = ctypes.c_float()
    assert cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), event, event) == INVALID_HANDLE


def test_elapsed_time_is_known_after_both_events(cuda: Runtime) -> None:
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    milliseconds = ctypes.c_float(-1)
    cuda.cudaEventRecord(start, stream)
    gate = cuda.hold(stream)
    cuda.cudaEventRecord(end, stream)
    assert cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), start, end) == NOT_READY
    gate.set()
    assert cuda.cudaEventSynchronize(end) == SUCCESS
    assert cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), start, end) == SUCCESS
    assert milliseconds.value >= 0


@pytest.mark.parametrize("flags", [0, NON_BLOCKING])
def test_the_default_stream_waits_for_blocking_streams_only(cuda: Runtime, flags: int) -> None:
    stream, default_ran = cuda.stream(flags), threading.Event()
    gate = cuda.hold(stream)
    cuda.call_later(None, default_ran.set)
    if flags == NON_BLOCKING:
        assert default_ran.wait(WAIT_S)
    else:
        # Behind the held stream; what shows it is that a later, independent stream is done and this is not.
        other = cuda.stream(NON_BLOCKING)
        cuda.call_later(other, lambda: None)
        assert cuda.cudaStreamSynchronize(other) == SUCCESS
        assert not default_ran.is_set()
    gate.set()
    assert cuda.cudaDeviceSynchronize() == SUCCESS
    assert default_ran.is_set()


def test_a_blocking_stream_waits_for_the_default_stream(cuda: Runtime) -> None:
    stream, seen = cuda.stream(), []
    gate = cuda.hold(None)
    cuda.call_later(stream, lambda: seen.append("stream"))
    cuda.call_later(stream, lambda: seen.append("again"))
    assert cuda.cudaStreamQuery(stream) == NOT_READY
    gate.set()
    assert cuda.cudaStreamSynchronize(stream) == SUCCESS
    assert seen == ["stream", "again"]


def test_a_destroyed_stream_still_does_its_work(cuda: Runtime) -> None:
    stream, ran = cuda.stream(), threading.Event()
    gate = cuda.hold(stream)
    cuda.call_later(stream, ran.set)
    assert cuda.cudaStreamDestroy(stream) == SUCCESS
    assert cuda.cudaStreamQuery(stream) == INVALID_HANDLE
    gate.set()
    assert cuda.cudaDeviceSynchronize() == SUCCESS
    assert ran.is_set()


def test_memory_of_the_caller_is_copied_before_the_call_returns(cuda: Runtime) -> None:
    stream, target = cuda.stream(), cuda.memory(4)
    source = ctypes.create_string_buffer(b"four", 4)
    gate = cuda.hold(stream)
    assert cuda.cudaMemcpyAsync(target, source, ctypes.c_size_t(4), HOST_TO_DEVICE, stream) == SUCCESS
    source.raw = b"late"
    gate.set()
    got = ctypes.create_string_buffer(4)
    assert cuda.cudaMemcpy(got, target, ctypes.c_size_t(4), DEVICE_TO_HOST) == SUCCESS
    assert got.raw == b"four"
    assert cuda.cudaFree(target) == SUCCESS


def test_freeing_memory_waits_for_the_device(cuda: Runtime) -> None:
    stream, memory, freed = cuda.stream(NON_BLOCKING), cuda.memory(16), threading.Event()
    gate = cuda.hold(stream)

    def free() -> None:
        assert cuda.cudaFree(memory) == SUCCESS
        freed.set()

    thread = threading.Thread(target=free)
    thread.start()
    other = cuda.stream(NON_BLOCKING)
    cuda.call_later(other, lambda: None)
    assert cuda.cudaStreamSynchronize(other) == SUCCESS
    assert not freed.is_set()
    gate.set()
    thread.join(WAIT_S)
    assert freed.is_set()


def test_an_address_is_known_by_its_kind(cuda: Runtime) -> None:
    def kind_of(address: int | None) -> int:
        attributes = Attributes()
        assert cuda.cudaPointerGetAttributes(ctypes.byref(attributes), ctypes.c_void_p(address)) == SUCCESS
        return attributes.type

    on_device = cuda.memory(100)
    pinned = ctypes.c_void_p()
    assert cuda.cudaHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(100), 0) == SUCCESS
    own = ctypes.create_string_buffer(100)
    assert on_device.value is not None
    assert pinned.value is not None
    assert kind_of(on_device.value + 99) == DEVICE
    assert kind_of(pinned.value) == HOST
    assert kind_of(ctypes.addressof(own)) == UNREGISTERED
    assert cuda.cudaHostRegister(own, ctypes.c_size_t(100), 0) == SUCCESS
    assert kind_of(ctypes.addressof(own)) == HOST
    assert cuda.cudaHostUnregister(own) == SUCCESS
    assert cuda.cudaFreeHost(pinned) == SUCCESS
    assert cuda.cudaFree(pinned) == INVALID_VALUE
    assert cuda.cudaFree(on_device) == SUCCESS
    assert cuda.cudaFree(None) == SUCCESS


def test_an_error_is_kept_until_it_is_asked_for(cuda: Runtime) -> None:
    cuda.cudaGetLastError()
    assert cuda.cudaStreamQuery(ctypes.c_void_p(0x1234560)) == INVALID_HANDLE
    assert cuda.cudaPeekAtLastError() == INVALID_HANDLE
    assert cuda.cudaGetLastError() == INVALID_HANDLE
    assert cuda.cudaGetLastError() == SUCCESS
    assert cuda.cudaGetErrorString(INVALID_HANDLE) == b"invalid resource handle"


def test_the_class_that_drives_a_gpu_drives_it_too() -> None:
    cuda = Cuda(built())
    assert cuda.device_names() == ["paralet CPU device"]
    assert cuda.versions()[0] >= 12000
    cuda.set_device(0)
    stream, start, end, memory = cuda.stream(), cuda.event(), cuda.event(), cuda.malloc(1000)
    cuda.write(memory, bytes(range(250)) * 4)
    cuda.record(start, stream)
    cuda.fill(memory + 10, 0xA5, 5, stream)
    cuda.record(end, stream)
    assert cuda.read(memory, 20) == bytes(range(10)) + b"\xa5" * 5 + bytes(range(15, 20))
    assert cuda.is_idle(stream)
    assert cuda.elapsed_s(start, end) >= 0
    for event in (start, end):
        cuda.destroy_event(event)
    cuda.free(memory)
    cuda.destroy_stream(stream)
