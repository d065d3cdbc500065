# SPDX-License-Identifier: Apache-2.0
"""TCP connections by the thousand that say little each: what asyncio's transports do, with less work for a message.

One epoll descriptor has all sockets of a server, and the event loop watches that one. What is ready is read by one
callback, and what is written is sent at once: nothing is scheduled for a single message. Protocols see no difference.
"""

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_MOST_READY = 128  # connections served before the event loop has its turn
_MOST_ACCEPTED = 128
_READ = 4096  # bytes: as much as nearly all that is there at once
_READ_MORE = 1 << 18  # where that was not all
_ACCEPT_AGAIN_S = 1.0  # after descriptors or memory have run out
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class StreamServer:
    """Listens, and has a protocol made for every connection. Make it in a running event loop, `listen`, and `close`."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._protocol = protocol
        self.loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        self.epoll = select.epoll()
        self.streams: dict[int, Stream] = {}
        """Those whose sockets are open, by descriptor."""
        self.loop.add_reader(self.epoll.fileno(), self._serve)

    def listen(self, address: str, port: int, backlog: int) -> tuple[str, int]:
        """The IPv4 address and port where. Raises OSError when that cannot be."""
        self._listener = socket.create_server((address, port), backlog=backlog)
        self._listener.setblocking(False)
        self.loop.add_reader(self._listener.fileno(), self._accept)
        at: tuple[str, int] = self._listener.getsockname()
        return at

    def close(self) -> None:
        """Ends everything, at once."""
        if self._again is not None:
            self._again.cancel()
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for stream in list(self.streams.values()):
            stream.abort()
        if not self.epoll.closed:
            self.loop.remove_reader(self.epoll.fileno())
            self.epoll.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_MOST_ACCEPTED):
            try:
                accepted, peer = self._listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self.loop.remove_reader(self._listener.fileno())
                    self._again = self.loop.call_later(_ACCEPT_AGAIN_S, self._accept_again)
                if isinstance(error, BlockingIOError) or error.errno in _EXHAUSTED:
                    return
                continue  # it went away before it was accepted
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Stream(self, accepted, peer, self._protocol())

    def _accept_again(self) -> None:
        assert self._listener is not None
        self.loop.add_reader(self._listener.fileno(), self._accept)

    def _serve(self) -> None:
        """Reads what is there, and sends what has waited."""
        for descriptor, events in self.epoll.poll(0, _MOST_READY):
            stream = self.streams.get(descriptor)
            if stream is None:  # it was closed for what another has said
                continue
            try:
                if events & _OUT:
                    stream.send()
                if stream.events & _IN:
                    stream.receive()
            except Exception as error:
                context = {"message": "a protocol failed", "exception": error, "transport": stream}
                self.loop.call_exception_handler(context)
                stream.abort()


class Stream(asyncio.Transport):
    """One connection."""

    __slots__ = ("_closing", "_descriptor", "_most", "_peer", "_protocol", "_server", "_socket", "_unsent", "events")

    def __init__(self, server: StreamServer, connected: socket.socket, peer: Any, protocol: asyncio.Protocol) -> None:
        self._server = server
        self._socket = connected
        self._descriptor = connected.fileno()
        self._peer = peer
        self._protocol = protocol
        self._unsent = bytearray()
        self._most = 1 << 16
        self._closing = False
        self.events = 0
        server.streams[self._descriptor] = self
        self._watch(_IN)
        protocol.connection_made(self)

    # -- asyncio.Transport, as far as protocols here need it -----------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The protocol's `pause_writing` is called when more than `high` bytes wait; `resume_writing` never is."""
        if high is not None:
            self._most = high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        if not self._unsent:
            try:
                sent = os.write(self._descriptor, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._watch(self.events | _OUT)
        self._unsent += data
        if len(self._unsent) > self._most:
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._watch(self.events & ~_IN)

    def resume_reading(self) -> None:
        if not self._closing:
            self._watch(self.events | _IN)

    def unread(self) -> bool:
        """Whether something of it is still to be read, because others were served first."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Once everything is sent; nothing is read any more."""
        if not self._closing:
            self._closing = True
            self._watch(self.events & ~_IN)
            if not self._unsent:
                self._end(None)

    def abort(self) -> None:
        self._lose(None)

    # -- by the server -------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        try:
            data = os.read(self._descriptor, _READ)
            if len(data) == _READ:
                data = self._more(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self.close()

    def send(self) -> None:
        try:
            del self._unsent[: os.write(self._descriptor, self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not self._unsent:
            self._watch(self.events & ~_OUT)
            if self._closing:
                self._end(None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _more(self, data: bytes) -> bytes:
        try:
            return data + os.read(self._descriptor, _READ_MORE)
        except BlockingIOError:
            return data

    def _watch(self, events: int) -> None:
        """Which events to be told of, from now on."""
        was, self.events = self.events, events
        if not was and events:
            self._server.epoll.register(self._descriptor, events)
        elif was and not events:
            self._server.epoll.unregister(self._descriptor)
        elif was != events:
            self._server.epoll.modify(self._descriptor, events)

    def _lose(self, error: Exception | None) -> None:
        """What is unsent is lost."""
        if self._socket.fileno() >= 0:
            self._closing = True
            self._unsent.clear()
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._watch(0)
        self._socket.close()
        del self._server.streams[self._descriptor]
        self._server.loop.call_soon(self._protocol.connection_lost, error)
