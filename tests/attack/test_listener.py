# SPDX-License-Identifier: Apache-2.0
"""Connections that end before `accept` do not pile up at a listener, and do not delay another host."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from hostlib import Device
from tests.hostlib.conftest import DEADLINE_S
from tests.hostlib.soak import resources

HOST, DYING, OTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"
DEAD = 47_400
MOST_OF_HOST = 4096
"""Waiting connections from one address (docs/security.md)."""
TOGETHER = 100


@pytest.mark.timeout(180)
def test_dead_connections_do_not_pile_up(sized: Callable[[int], int]) -> None:
    with Device(HOST, lanes=1) as host, Device(DYING, lanes=1) as dying, Device(OTHER, lanes=1) as other:
        listener = host.listen()
        grown = [resources()[0]]
        made = 0
        for _ in range(2):
            for _ in range(0, sized(DEAD // 2), TOGETHER):
                connections = [dying.connect(listener.handle, DEADLINE_S) for _ in range(TOGETHER)]
                for connection in connections:
                    connection.close()
                made += TOGETHER
                assert host.counters()["connections"] <= MOST_OF_HOST + TOGETHER  # those of the last round are open yet
            grown.append(resources()[0])
        to = other.connect(listener.handle, DEADLINE_S)
        back = listener.accept(DEADLINE_S)
        assert back.peer == OTHER, "a connection that lives comes before those that have ended"
        received = bytearray(5)
        receiving = back.recv(received)
        to.send(b"hello").wait(DEADLINE_S)
        receiving.wait(DEADLINE_S)
        assert received == b"hello"
        first, second = (after - before for before, after in pairwise(grown))
        print(f"{made} dead connections: the first half took {first:.0f} MiB, the second {second:.0f} MiB")
        if made > 4 * MOST_OF_HOST:
            assert second <= first / 2, "memory does not grow with connections that have ended"
