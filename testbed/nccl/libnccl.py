# SPDX-License-Identifier: Apache-2.0
"""The calls of NCCL that ranks need, by ctypes. Every result is checked; errors carry NCCL's text."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import PeerLostError, TestbedError

OLDEST = 22100
"""2.21.0 in the notation of ncclGetVersion: the first release that loads a plugin by its path."""

NO_COLOUR = -1
"""NCCL_SPLIT_NOCOLOR: the rank is in none of the new communicators."""

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
_REMOTE_ERROR = 6  # ncclRemoteError
_IN_PROGRESS = 7  # ncclInProgress
_SHRINK_ABORT = 1  # NCCL_SHRINK_ABORT


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_out, _out_int = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
_buffers = (_pointer, _pointer, _size, _int)

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_out_int,),
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclCommInitRank": (_out, _int, _UniqueId, _int),
    "ncclCommFinalize": (_pointer,),
    "ncclCommDestroy": (_pointer,),
    "ncclCommAbort": (_pointer,),
    "ncclCommSplit": (_pointer, _int, _int, _out, _pointer),
    "ncclCommCount": (_pointer, _out_int),
    "ncclCommUserRank": (_pointer, _out_int),
    "ncclCommGetAsyncError": (_pointer, _out_int),
    "ncclAllReduce": (*_buffers, _int, _pointer, _pointer),
    "ncclAllGather": (*_buffers, _pointer, _pointer),
    "ncclReduceScatter": (*_buffers, _int, _pointer, _pointer),
    "ncclBroadcast": (*_buffers, _int, _pointer, _pointer),
    "ncclReduce": (*_buffers, _int, _int, _pointer, _pointer),
    "ncclSend": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclRecv": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}

_SINCE: dict[str, tuple[Any, ...]] = {
    "ncclCommShrink": (_pointer, _out_int, _int, _out, _pointer, _int),  # NCCL 2.27
    "ncclCommRevoke": (_pointer, _int),  # NCCL 2.28
}
"""Calls that not every release has."""


class NcclError(TestbedError):
    """A failed call, with its name, the cause and NCCL's last error."""


class NcclRemoteError(NcclError, PeerLostError):
    """A call that failed with ncclRemoteError: a peer is gone, or the network to it."""


class Transfer(NamedTuple):
    """One message of a group: `elements` at `address`, to or from `peer`."""

    address: int
    elements: int
    peer: int


def version_text(version: int) -> str:
    """The version as text: `2.32.3` for NCCL's code 23203."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


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
        self._calls |= {name: getattr(self._library, name) for name in _SINCE if hasattr(self._library, name)}
        for name, call in self._calls.items():
            call.argtypes = (_ARGUMENTS | _SINCE)[name]
            call.restype = _int
        self._error_text.argtypes = (_int,)
        self._last_error.argtypes = (_pointer,)
        self._error_text.restype = self._last_error.restype = ctypes.c_char_p

    def version(self) -> int:
        """NCCL's version number: 23203 is 2.32.3."""
        version = _int()
        self.call("ncclGetVersion", ctypes.byref(version))
        return version.value

    def has(self, name: str) -> bool:
        """Whether this release has a function."""
        return name in self._calls

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

    @contextmanager
    def group(self) -> Iterator[None]:
        """Operations inside are started together."""
        self.call("ncclGroupStart")
        yield
        self.call("ncclGroupEnd")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of NCCL. Raises NcclError."""
        if name not in self._calls:
            raise NcclError(f"NCCL {version_text(self.version())} has no {name}")
        self.check(name, self._calls[name](*arguments))

    def check(self, name: str, result: int) -> None:
        """Raises NcclError unless `result` of function `name` is success."""
        if result in (0, _IN_PROGRESS):
            return
        text = (self._error_text(result) or b"").decode(errors="replace")
        last = " ".join((self._last_error(None) or b"").decode(errors="replace").split())
        kind = NcclRemoteError if result == _REMOTE_ERROR else NcclError
        raise kind(f"{name} failed: {text} (NCCL result {result}){f': {last}' if last else ''}")


class Communicator:
    """A rank of a communicator. Operations are enqueued on a stream and run asynchronously.

    `element` and `redop` are numbers of ncclDataType_t and ncclRedOp_t; `send` and `recv` are addresses.
    """

    def __init__(self, nccl: Nccl, address: int) -> None:
        self._nccl = nccl
        self._address = address

    def size(self) -> int:
        """The number of ranks."""
        return self._number("ncclCommCount")

    def rank(self) -> int:
        """This process's rank."""
        return self._number("ncclCommUserRank")

    def all_reduce(self, send: int, recv: int, count: int, element: int, redop: int, stream: int) -> None:
        """Reduce `count` elements over all ranks."""
        self._nccl.call("ncclAllReduce", send, recv, count, element, redop, self._address, stream)

    def all_gather(self, send: int, recv: int, share: int, element: int, stream: int) -> None:
        """Collect `share` elements from each rank."""
        self._nccl.call("ncclAllGather", send, recv, share, element, self._address, stream)

    def reduce_scatter(self, send: int, recv: int, share: int, element: int, redop: int, stream: int) -> None:
        """Reduce over all ranks and keep this rank's `share` elements."""
        self._nccl.call("ncclReduceScatter", send, recv, share, element, redop, self._address, stream)

    def broadcast(self, send: int, recv: int, count: int, element: int, root: int, stream: int) -> None:
        """Copy `count` elements of the root to all ranks."""
        self._nccl.call("ncclBroadcast", send, recv, count, element, root, self._address, stream)

    def reduce(self, send: int, recv: int, count: int, element: int, redop: int, root: int, stream: int) -> None:
        """Reduce `count` elements over all ranks; only the root gets the result."""
        self._nccl.call("ncclReduce", send, recv, count, element, redop, root, self._address, stream)

    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], element: int, stream: int) -> None:
        """Send and receive all of these at the same time."""
        with self._nccl.group():
            for each in sends:
                self._nccl.call("ncclSend", each.address, each.elements, element, each.peer, self._address, stream)
            for each in receives:
                self._nccl.call("ncclRecv", each.address, each.elements, element, each.peer, self._address, stream)

    def split(self, colour: int, key: int) -> "Communicator | None":
        """The new communicator of the ranks that give the same colour, in order of `key`; None for NO_COLOUR."""
        address = _pointer()
        self._nccl.call("ncclCommSplit", self._address, colour, key, ctypes.byref(address), None)
        return Communicator(self._nccl, address.value) if address.value else None

    def shrink(self, excluded: Sequence[int], *, after_error: bool) -> "Communicator":
        """A new communicator without the ranks `excluded`, which must not call this.

        `after_error` first ends what is in flight.
        """
        address, ranks = _pointer(), (_int * len(excluded))(*excluded)
        flags = _SHRINK_ABORT if after_error else 0
        self._nccl.call("ncclCommShrink", self._address, ranks, len(excluded), ctypes.byref(address), None, flags)
        return Communicator(self._nccl, address.value or 0)

    def revoke(self) -> None:
        """Stop all operations in flight. The communicator can then be split, shrunk or destroyed."""
        self._nccl.call("ncclCommRevoke", self._address, 0)

    def check(self) -> None:
        """Raises NcclError when NCCL's threads report an asynchronous error."""
        result = _int()
        self._nccl.call("ncclCommGetAsyncError", self._address, ctypes.byref(result))
        self._nccl.check("an operation", result.value)

    def finalize(self) -> None:
        """Flush all operations. `destroy` must follow."""
        self._nccl.call("ncclCommFinalize", self._address)

    def destroy(self) -> None:
        """Leave the communicator and close its connections."""
        self._nccl.call("ncclCommDestroy", self._address)

    def abort(self) -> None:
        """End all operations in flight and free the communicator, without waiting for other ranks."""
        self._nccl.call("ncclCommAbort", self._address)

    def _number(self, name: str) -> int:
        value = _int()
        self._nccl.call(name, self._address, ctypes.byref(value))
        return value.value
