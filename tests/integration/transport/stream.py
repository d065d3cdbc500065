# SPDX-License-Identifier: Apache-2.0
"""A connection that is kept busy."""

from __future__ import annotations

import threading

from hostlib import Connection, wait_any

TIMEOUT_S = 60.0


class Stream(threading.Thread):
    """Keeps a constant number of messages in flight on a connection until it is stopped."""

    def __init__(self, connection: Connection, message_bytes: int) -> None:
        super().__init__()
        self._connection = connection
        self._message = bytes(message_bytes)
        self._over = threading.Event()
        self.sent = 0
        self.failures: list[BaseException] = []

    def run(self) -> None:
        try:
            under_way = [self._connection.send(self._message) for _ in range(16)]
            while under_way:
                assert under_way.pop(wait_any(under_way, TIMEOUT_S)).wait() == len(self._message)
                self.sent += 1
                if not self._over.is_set():
                    under_way.append(self._connection.send(self._message))
        except BaseException as error:
            self.failures.append(error)

    def stop(self) -> None:
        """Raises what went wrong. Returns when all messages have been acknowledged."""
        self._over.set()
        self.join()
        if self.failures:
            raise self.failures[0]
