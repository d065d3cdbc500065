# SPDX-License-Identifier: Apache-2.0
"""How often a host tries to reach path services that do not take it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import Self

from hostlib import Device
from tests.hostlib.conftest import A
from tests.hostlib.path_service import TOKEN, eventually

LEAST_S, MOST_S = 0.25, 8.0
LOOK_S = 3.0


class Closing:
    """A port of which each connection is counted, and closed at once, as by a service that does not lead."""

    def __init__(self) -> None:
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with closing(connection):
                self.count += 1


def most_rounds(seconds: float) -> int:
    """The most rounds of attempts that begin within this time, if each pause is the shortest one allowed."""
    rounds, pause_s = 1, LEAST_S
    while seconds > 0:
        seconds -= pause_s / 2
        pause_s = min(1.25 * pause_s, MOST_S)
        rounds += 1
    return rounds


def test_attempts_become_rare_where_neither_of_two_services_leads() -> None:
    """Thousands of hosts would otherwise keep both services busy, just when these have to find out who leads."""
    with Closing() as one, Closing() as other:
        began_s = time.monotonic()
        options = {"policy": "controller", "token": TOKEN, "reconnect_s": (LEAST_S, MOST_S)}
        with Device(A, path_service=f"{one.address},{other.address}", **options):
            eventually(lambda: one.count and other.count, "not both were tried")
            time.sleep(LOOK_S)
        assert one.count + other.count <= 2 * most_rounds(time.monotonic() - began_s)
