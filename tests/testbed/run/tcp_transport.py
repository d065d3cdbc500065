# SPDX-License-Identifier: Apache-2.0
"""A stand-in for hostlib over plain TCP, so that agents and runner can be tested without the native engine."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from testbed.run import agent_messages as messages
from testbed.run.collective_executor import Request
from testbed.workloads import Elements

_HEADER = struct.Struct("!QQ")  # tag, bytes
_FINISHED = threading.Condition()


class TcpRequest:
    """Done when `moved` is set."""

    def __init__(self) -> None:
        self.moved: int | None = None

    def finish(self, moved: int) -> None:
        with _FINISHED:
            self.moved = moved
            _FINISHED.notify_all()

    def wait(self, timeout_s: float | None = None) -> int:
        with _FINISHED:
            if not _FINISHED.wait_for(lambda: self.moved is not None, timeout_s):
                raise TimeoutError("a request did not finish in time")
            assert self.moved is not None
            return self.moved


class TcpConnection:
    """A connection in one direction: one end sends, the other receives.

    As on paralet's engine, a message whose tag nobody receives yet does not hold up the messages behind it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._changed = threading.Condition()
        self._outbox: list[tuple[int, Elements, TcpRequest]] = []
        self._posted: dict[int, tuple[Elements, TcpRequest]] = {}
        self._arrived: dict[int, bytearray] = {}
        """Messages whose receive has not been posted."""
        threading.Thread(target=self._write, daemon=True).start()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, buffer: Elements, tag: int = 0) -> TcpRequest:
        request = TcpRequest()
        with self._changed:
            self._outbox.append((tag, buffer, request))
            self._changed.notify_all()
        return request

    def recv(self, buffer: Elements, tag: int = 0) -> TcpRequest:
        request = TcpRequest()
        with self._changed:
            assert tag not in self._posted
            self._posted[tag] = (buffer, request)
        self._deliver(tag)
        return request

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox)
                tag, buffer, request = self._outbox.pop(0)
            data = memoryview(buffer).cast("B")
            try:
                self._socket.sendall(_HEADER.pack(tag, len(data)))
                self._socket.sendall(data)
            except OSError:
                return
            request.finish(len(data))

    def _read(self) -> None:
        while header := self._exactly(bytearray(_HEADER.size)):
            tag, length = _HEADER.unpack(header)
            data = bytearray(length)
            if self._exactly(data) is None:
                return
            with self._changed:
                self._arrived[tag] = data
            self._deliver(tag)

    def _deliver(self, tag: int) -> None:
        """Finish the receive with this tag if both the receive and its message are here."""
        with self._changed:
            if tag not in self._posted or tag not in self._arrived:
                return
            (buffer, request), data = self._posted.pop(tag), self._arrived.pop(tag)
        memoryview(buffer).cast("B")[:] = data
        request.finish(len(data))

    def _exactly(self, into: bytearray | memoryview) -> bytearray | memoryview | None:
        got = 0
        while got < len(into):
            try:
                count = self._socket.recv_into(memoryview(into)[got:])
            except OSError:
                return None
            if not count:
                return None
            got += count
        return into


class TcpListener:
    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0))
        host, port = self._socket.getsockname()
        self.handle = f"{host}:{port}".encode().ljust(128, b"\0")

    def accept(self, timeout_s: float | None = None) -> TcpConnection:
        self._socket.settimeout(timeout_s)
        sock, _ = self._socket.accept()
        sock.settimeout(None)
        return TcpConnection(sock)


class TcpDevice:
    def __init__(self, config: messages.DeviceConfig) -> None:
        self.config = config

    def listen(self) -> TcpListener:
        return TcpListener(self.config.address)

    def connect(self, handle: bytes, timeout_s: float = 10.0) -> TcpConnection:
        host, _, port = handle.rstrip(b"\0").decode().partition(":")
        sock = socket.create_connection((host, int(port)), timeout_s, source_address=(self.config.address, 0))
        sock.settimeout(None)
        return TcpConnection(sock)

    def counters(self) -> dict[str, Any]:
        return {"lanes": [], "discards": {}, "qps": 0, "connections": 0}

    def close(self) -> None:
        pass


class TcpTransport:
    def open(self, config: messages.DeviceConfig) -> TcpDevice:
        return TcpDevice(config)

    def wait_any(self, requests: Sequence[Request], timeout_s: float) -> int:
        def finished() -> int | None:
            return next((i for i, r in enumerate(requests) if isinstance(r, TcpRequest) and r.moved is not None), None)

        with _FINISHED:
            if not _FINISHED.wait_for(lambda: finished() is not None, timeout_s):
                raise TimeoutError("no request finished in time")
            index = finished()
            assert index is not None
            return index

    def lost_peer(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)
