# SPDX-License-Identifier: Apache-2.0
"""Sockets of hosts that native code reads: what hosts say all the time is answered there, and the rest comes here.

`sdn._native` answers pings, and the release of an elephant together with the announcement of the next one to the same
peer, whose path stays. One call reads all sockets that have something to read.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any, TypeAlias

from sdn._native import Done, Host, Kind, Sockets

_MOST = 128  # sockets that are read before the event loop does something else
_MOST_S = 0.001  # the same: a turn of other lines takes as long
_HIGH = 1 << 14  # bytes that may wait to be sent before a protocol is told; asyncio has 64 KiB

Begin: TypeAlias = Callable[[], tuple[float, bool, Done]]
"""Gives the time, whether hosts may be answered now, and where to note what was answered."""
End: TypeAlias = Callable[[float, Done], None]
"""Gets the time and what was answered."""


class HostSockets:
    """All these sockets. `begin` is called before they are read, and `end` afterwards, before protocols get the rest.

    Needs a running event loop. Raises OSError where there is no room for another file.
    """

    def __init__(self, begin: Begin, end: End) -> None:
        self._native = Sockets()
        self._begin = begin
        self._end = end
        self._transports: dict[int, _Transport] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._native.descriptor, self._read)

    def close(self) -> None:
        """Reads no more."""
        self._loop.remove_reader(self._native.descriptor)

    def take(
        self, number: int, transport: asyncio.Transport, protocol: asyncio.Protocol, host: Host
    ) -> asyncio.Transport:
        """A transport in place of this one, which reads, and has sent all that was written to it.

        Raises OSError, with nothing changed.
        """
        self._native.add(number, os.dup(transport.get_extra_info("socket").fileno()), host)
        transport.set_protocol(asyncio.Protocol())
        transport.abort()  # this closes one of two descriptors, and not the connection
        extra = {"peername": transport.get_extra_info("peername")}
        made = self._transports[number] = _Transport(self._native, self._forget, number, protocol, extra)
        return made

    def _forget(self, number: int) -> None:
        del self._transports[number]

    def _read(self) -> None:
        now_s, may_answer, done = self._begin()
        events = self._native.round(now_s, may_answer, _MOST, _MOST_S, done)
        if done.answers:
            self._end(now_s, done)
        for number, kind, data, error in events:
            transport = self._transports.get(number)
            if transport is None:  # an event before this one has ended the connection
                continue
            try:
                transport.heard(kind, data, error)
            except Exception as failed:  # as asyncio does: the others go on
                self._loop.call_exception_handler({"message": "a host was not heard", "exception": failed})
                transport.abort()


class _Transport(asyncio.Transport):
    """One of the sockets."""

    def __init__(
        self,
        native: Sockets,
        forget: Callable[[int], None],
        number: int,
        protocol: asyncio.Protocol,
        extra: dict[str, Any],
    ) -> None:
        super().__init__(extra)
        self._native = native
        self._forget = forget
        self._number = number
        self._protocol = protocol
        self._high = _HIGH
        self._is_slow = False  # the protocol was told that bytes wait
        self._is_closing = False
        self._is_over = False

    def heard(self, kind: Kind, data: bytes, error: int) -> None:
        """Something that the protocol has to know."""
        if kind is Kind.FAILED:
            self._lose(OSError(error, os.strerror(error)) if error != errno.ECONNRESET else ConnectionResetError(error))
        elif kind is Kind.SENT:
            self._sent()
        elif self._is_closing:
            pass
        elif kind is Kind.WAITS:
            self._note_unsent(self._native.unsent(self._number))
        elif kind is Kind.SAID:
            self._protocol.data_received(data)
        elif not self._protocol.eof_received():
            self.close()

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._note_unsent(self._native.send(self._number, data))

    def close(self) -> None:
        """What waits is sent before."""
        if self._is_closing:
            return
        self._is_closing = True
        self._native.read(self._number, False)
        if not self._native.unsent(self._number):
            self._end()

    def abort(self) -> None:
        self._is_closing = True
        self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._native.read(self._number, False)

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._native.read(self._number, True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """`low` is 0."""
        self._high = _HIGH if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._native.unsent(self._number)

    def _note_unsent(self, size: int) -> None:
        if size > self._high and not self._is_slow:
            self._is_slow = True
            self._protocol.pause_writing()

    def _sent(self) -> None:
        if self._native.unsent(self._number):  # written since, by what came before in the same round
            return
        if self._is_slow:
            self._is_slow = False
            if not self._is_closing:
                self._protocol.resume_writing()
        if self._is_closing:
            self._end()

    def _end(self) -> None:
        """The other side gets all that was sent, as far as it had said nothing more by now."""
        self._native.drop(self._number)
        self._lose(None)

    def _lose(self, why: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = self._is_closing = True
        self._native.remove(self._number)
        self._forget(self._number)
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, why)
