# SPDX-License-Identifier: Apache-2.0
"""The few calls of the CUDA runtime that are needed, by ctypes. Every status is checked."""

import ctypes
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError

_NOT_READY = 600  # cudaErrorNotReady
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_PROPERTIES_BYTES = 16_384  # more than cudaDeviceProp has in any release; its first 256 bytes are the name

_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_out = ctypes.POINTER(ctypes.c_void_p)
_out_int = ctypes.POINTER(ctypes.c_int)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cudaDriverGetVersion": (_out_int,),
    "cudaRuntimeGetVersion": (_out_int,),
    "cudaGetDeviceCount": (_out_int,),
    "cudaGetDeviceProperties": (_pointer, _int),
    "cudaSetDevice": (_int,),
    "cudaMalloc": (_out, _size),
    "cudaFree": (_pointer,),
    "cudaMemcpy": (_pointer, _pointer, _size, _int),
    "cudaMemsetAsync": (_pointer, _int, _size, _pointer),
    "cudaStreamCreate": (_out,),
    "cudaStreamQuery": (_pointer,),
    "cudaStreamDestroy": (_pointer,),
    "cudaEventCreate": (_out,),
    "cudaEventRecord": (_pointer, _pointer),
    "cudaEventElapsedTime": (ctypes.POINTER(ctypes.c_float), _pointer, _pointer),
    "cudaEventDestroy": (_pointer,),
}


class CudaError(TestbedError):
    """A call failed; the text names it and says why."""


class Cuda:
    """A loaded `libcudart`. Memory, streams and events are addresses, as in C; whoever makes them gives them back."""

    def __init__(self, library: Path) -> None:
        """Raises CudaError where the library cannot be loaded or lacks a call."""
        try:
            self._library = ctypes.CDLL(str(library))
            self._calls = {name: getattr(self._library, name) for name in _ARGUMENTS}
            self._error_text = self._library.cudaGetErrorString
        except (OSError, AttributeError) as error:
            raise CudaError(f"{library} cannot be used: {error}") from error
        for name, arguments in _ARGUMENTS.items():
            self._calls[name].argtypes = arguments
            self._calls[name].restype = _int
        self._error_text.argtypes = (_int,)
        self._error_text.restype = ctypes.c_char_p

    def versions(self) -> tuple[int, int]:
        """(what the driver can do, what this runtime is), as CUDA counts: 13000 is 13.0."""
        driver, runtime = _int(), _int()
        self._call("cudaDriverGetVersion", ctypes.byref(driver))
        self._call("cudaRuntimeGetVersion", ctypes.byref(runtime))
        return driver.value, runtime.value

    def device_names(self) -> list[str]:
        """Every GPU's name. Makes no context. Raises CudaError where there is no GPU or no driver."""
        count = _int()
        self._call("cudaGetDeviceCount", ctypes.byref(count))
        names = []
        for device in range(count.value):
            properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
            self._call("cudaGetDeviceProperties", properties, device)
            names.append(properties.value.decode(errors="replace"))
        return names

    def set_device(self, device: int) -> None:
        """All that follows, in this thread, is about this GPU."""
        self._call("cudaSetDevice", device)

    def malloc(self, size: int) -> int:
        """Allocate memory of the GPU, and return its address."""
        address = _pointer()
        self._call("cudaMalloc", ctypes.byref(address), size)
        return address.value or 0

    def free(self, address: int) -> None:
        """Release memory that `malloc` has returned."""
        self._call("cudaFree", address)

    def write(self, address: int, data: bytes) -> None:
        """Copy host to GPU."""
        self._call("cudaMemcpy", address, ctypes.c_char_p(data), len(data), _HOST_TO_DEVICE)

    def read(self, address: int, size: int) -> bytearray:
        """Copy GPU to host."""
        data = bytearray(size)
        if size:
            self._call("cudaMemcpy", (ctypes.c_char * size).from_buffer(data), address, size, _DEVICE_TO_HOST)
        return data

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """Set every byte, in the order of the stream."""
        self._call("cudaMemsetAsync", address, value, size, stream)

    def stream(self) -> int:
        """A new stream. What is in it waits for copies that were ordered before, and copies wait for what is in it."""
        address = _pointer()
        self._call("cudaStreamCreate", ctypes.byref(address))
        return address.value or 0

    def is_idle(self, stream: int) -> bool:
        """Everything that was put into the stream is done. Raises CudaError where it failed."""
        status = self._calls["cudaStreamQuery"](stream)
        if status == _NOT_READY:
            return False
        self._check("cudaStreamQuery", status)
        return True

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream. Work that is still in it is done first."""
        self._call("cudaStreamDestroy", stream)

    def event(self) -> int:
        """A new event."""
        address = _pointer()
        self._call("cudaEventCreate", ctypes.byref(address))
        return address.value or 0

    def record(self, event: int, stream: int) -> None:
        """The event happens when the stream gets there."""
        self._call("cudaEventRecord", event, stream)

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two events that have happened."""
        milliseconds = ctypes.c_float()
        self._call("cudaEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def destroy_event(self, event: int) -> None:
        """Destroy an event that `event` has returned."""
        self._call("cudaEventDestroy", event)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._calls[name](*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            text = (self._error_text(status) or b"").decode(errors="replace")
            raise CudaError(f"{name} failed: {text} (CUDA error {status})")
