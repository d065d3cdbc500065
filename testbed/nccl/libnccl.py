# SPDX-License-Identifier: Apache-2.0
"""The calls of NCCL that ranks need, by ctypes. Every result is checked; errors carry NCCL's text."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import TestbedError

OLDEST = 22100
"""2.21.0 in the notation of ncclGetVersion: the first release that loads a plugin by its path."""

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
_FLOAT32, _SUM = 7, 0  # ncclFloat32, ncclSum
_IN_PROGRESS = 7  # ncclInProgress


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_out_int = ctypes.POINTER(ctypes.c_int)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_out_int,),
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_pointer), _int, _UniqueId, _int),
    "ncclCommDestroy": (_pointer,),
    "ncclCommGetAsyncError": (_pointer, _out_int),
    "ncclAllReduce": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "ncclAllGather": (_pointer, _pointer, _size, _int, _pointer, _pointer),
    "ncclReduceScatter": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "ncclSend": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclRecv": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


class NcclError(TestbedError):
    """A failed call, with its name, the cause and NCCL's last error."""


class Transfer(NamedTuple):
    """One message of a group: `elements` at `address`, to or from `peer`."""

    address: int
    elements: int
    peer: int


class Nccl:
    """A loaded `libnccl`."""

    def __init__(self, library: Path) -> None:
        """Raises NcclError where the library cannot be loaded or lacks a call."""
        try:
            self._library = ctypes.CDLL(str(library))
            self._calls = {name: getattr(self._library, name) for name in _ARGUMENTS}
            self._error_text = self._library.ncclGetErrorString
            self._last_error = self._library.ncclGetLastError
        except (OSError, AttributeError) as error:
            raise NcclError(f"{library} cannot be used: {error}") from error
        for name, arguments in _ARGUMENTS.items():
            self._calls[name].argtypes = arguments
            self._calls[name].restype = _int
        self._error_text.argtypes = (_int,)
        self._last_error.argtypes = (_pointer,)
        self._error_text.restype = self._last_error.restype = ctypes.c_char_p

    @property
    def is_stub(self) -> bool:
        """Whether this is the stub of the tests."""
        return hasattr(self._library, "paraletGpuStub")

    def version(self) -> int:
        """NCCL's version number: 23203 is 2.32.3."""
        version = _int()
        self.call("ncclGetVersion", ctypes.byref(version))
        return version.value

    def unique_id(self) -> bytes:
        """A new communicator's identifier. Its creator must join as rank 0."""
        unique = _UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> "Communicator":
        """Join a communicator; returns when all ranks have joined."""
        address = _pointer()
        self.call("ncclCommInitRank", ctypes.byref(address), ranks, _UniqueId.from_buffer_copy(unique_id), rank)
        return Communicator(self, address.value or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of NCCL. Raises NcclError."""
        self.check(name, self._calls[name](*arguments))

    def check(self, name: str, result: int) -> None:
        """Raises NcclError unless `result` of function `name` is success."""
        if result in (0, _IN_PROGRESS):
            return
        text = (self._error_text(result) or b"").decode(errors="replace")
        last = " ".join((self._last_error(None) or b"").decode(errors="replace").split())
        raise NcclError(f"{name} failed: {text} (NCCL result {result}){f': {last}' if last else ''}")


class Communicator:
    """A rank of a communicator. Operations on float32 are enqueued on a stream and run asynchronously."""

    def __init__(self, nccl: Nccl, address: int) -> None:
        self._nccl = nccl
        self._address = address

    def all_reduce(self, send: int, recv: int, elements: int, stream: int) -> None:
        """Sum `elements` over all ranks."""
        self._nccl.call("ncclAllReduce", send, recv, elements, _FLOAT32, _SUM, self._address, stream)

    def all_gather(self, send: int, recv: int, share: int, stream: int) -> None:
        """Collect `share` elements from each rank."""
        self._nccl.call("ncclAllGather", send, recv, share, _FLOAT32, self._address, stream)

    def reduce_scatter(self, send: int, recv: int, share: int, stream: int) -> None:
        """Sum over all ranks and keep this rank's `share` elements."""
        self._nccl.call("ncclReduceScatter", send, recv, share, _FLOAT32, _SUM, self._address, stream)

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer], stream: int) -> None:
        """Send and receive all of these at the same time."""
        self._nccl.call("ncclGroupStart")
        for each in sends:
            self._nccl.call("ncclSend", each.address, each.elements, _FLOAT32, each.peer, self._address, stream)
        for each in receives:
            self._nccl.call("ncclRecv", each.address, each.elements, _FLOAT32, each.peer, self._address, stream)
        self._nccl.call("ncclGroupEnd")

    def check(self) -> None:
        """Raises NcclError when NCCL's threads report an asynchronous error."""
        result = _int()
        self._nccl.call("ncclCommGetAsyncError", self._address, ctypes.byref(result))
        self._nccl.check("an operation", result.value)

    def destroy(self) -> None:
        """Leave the communicator and close its connections."""
        self._nccl.call("ncclCommDestroy", self._address)
