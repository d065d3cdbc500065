# SPDX-License-Identifier: Apache-2.0
"""A path service for tests: it records the hosts' messages and sends those that the test asks for."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

TOKEN = "a-token-for-tests"
DEADLINE_S = 60.0

Message = dict[str, Any]


def eventually(what: Callable[[], Any], why: str | Callable[[], str]) -> Any:
    """Wait for the first true value of `what` and return it. Fails with `why` after DEADLINE_S."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := what()):
        assert time.monotonic() < deadline, why if isinstance(why, str) else why()
        time.sleep(0.002)
    return value


class PathService:
    """Listens on a port of 127.0.0.1, on the same one after `stop` and `start`. A context manager.

    ``answer`` returns the messages, or raw bytes, that answer a host's message. It runs on the connection's thread.
    """

    def __init__(self, answer: Callable[[Message], list[Message | bytes]] = lambda message: []) -> None:
        self.answer = answer
        self.welcome: Message = {}
        """What a welcome has besides its version."""
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
        """Close everything, as when the process is killed."""
        assert self._listener is not None
        # Wakes the thread in accept; close alone does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the host has closed first
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
        """Send messages to every host, without a request."""
        with self._lock:
            for connection in self._welcome:
                with contextlib.suppress(OSError):  # the host has just closed
                    self._send(connection, messages)

    def of_type(self, kind: str) -> list[Message]:
        return [message for message in list(self.messages) if message["type"] == kind]

    def received(self, kind: str, count: int = 1) -> list[Message]:
        """Wait for `count` messages of a type and return all of that type."""
        eventually(lambda: len(self.of_type(kind)) >= count, f"the service never received {count} x {kind}")
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
                            said = {"type": "welcome", "version": message["version"], "session": "5e55"}
                            self._send(connection, [said | self.welcome])
                            self._welcome.append(connection)
                    self.messages.append(message)
                    with self._lock:
                        self._send(connection, self.answer(message))
            except OSError:
                pass  # stopped, or the host has closed
            with self._lock:
                for connections in (self._connections, self._welcome):
                    if connection in connections:
                        connections.remove(connection)

    @staticmethod
    def _send(connection: socket.socket, messages: Any) -> None:
        for message in messages:
            connection.sendall(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
