# SPDX-License-Identifier: Apache-2.0
"""A path service for tests: it records what hosts say, and says what the test wants said."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

TOKEN = "a-token-for-tests"
PATIENCE_S = 30.0

Message = dict[str, Any]


def eventually(what: Callable[[], Any], why: str | Callable[[], str]) -> Any:
    """The first true value of `what`; the bound only keeps a failing test from hanging."""
    until = time.monotonic() + PATIENCE_S
    while not (value := what()):
        assert time.monotonic() < until, why if isinstance(why, str) else why()
        time.sleep(0.002)
    return value


class PathService:
    """Listens on a port of 127.0.0.1, the same again after `stop` and `start`. A context manager.

    ``answer`` gives the messages, or raw bytes, that answer a message of a host; it runs on the connection's thread.
    """

    def __init__(self, answer: Callable[[Message], list[Message | bytes]] = lambda message: []) -> None:
        self.answer = answer
        self.messages: list[Message] = []
        self.generation = 0
        self._port = 0
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._welcome: list[socket.socket] = []
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._listener.listen()
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """As if the process was killed."""
        assert self._listener is not None
        # Only this wakes the thread in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the host was first
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()
            self._welcome.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        if self._listener is not None and self._listener.fileno() >= 0:
            self.stop()

    def push(self, *messages: Message | bytes) -> None:
        """Says something to every host, unasked."""
        with self._lock:
            for connection in self._welcome:
                with contextlib.suppress(OSError):  # the host has just left
                    self._send(connection, messages)

    def of_type(self, kind: str) -> list[Message]:
        return [message for message in list(self.messages) if message["type"] == kind]

    def heard(self, kind: str, count: int = 1) -> list[Message]:
        """The messages of a type, once there are so many."""
        eventually(lambda: len(self.of_type(kind)) >= count, f"the service never heard {count} x {kind}")
        return self.of_type(kind)

    def assign(self, peer: str, ports: list[int], **more: Any) -> Message:
        self.generation += 1
        return {"type": "assign", "peer": peer, "ports": ports, "generation": self.generation, **more}

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    assert len(line) <= 65536
                    if message["type"] == "hello":
                        assert message["token"] == TOKEN
                        with self._lock:
                            self._send(connection, [{"type": "welcome", "version": 1, "session": "5e55"}])
                            self._welcome.append(connection)
                    self.messages.append(message)
                    with self._lock:
                        self._send(connection, self.answer(message))
            except OSError:
                pass  # killed, or the host has left
            with self._lock:
                for connections in (self._connections, self._welcome):
                    if connection in connections:
                        connections.remove(connection)

    @staticmethod
    def _send(connection: socket.socket, messages: Any) -> None:
        for message in messages:
            connection.sendall(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
