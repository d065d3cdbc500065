# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from hostlib import Connection, Device, Listener

A = "127.0.0.1"
B = "127.0.0.2"
DEADLINE_S = 60.0
"""Time limit of a wait: only a failing test reaches it."""

NO_SPURIOUS_RETRANSMITS = {"min_timeout_s": 20.0, "line_rate_bps": 10e9}
"""Options of devices that never retransmit because the machine is slow. Without a line rate lanes probe after 2 ms."""


@dataclass
class Pair:
    """Two devices of this process, joined by one connection."""

    one: Device
    two: Device
    listener: Listener
    to: Connection
    back: Connection

    def exchange(self, message: bytes, tag: int = 0) -> bytes:
        """Send a message from one to two and return what arrives."""
        buffer = bytearray(len(message))
        receiving = self.back.recv(buffer, tag)
        assert self.to.send(message, tag).wait(DEADLINE_S) == len(message)
        assert receiving.wait(DEADLINE_S) == len(message)
        return bytes(buffer)


def join(one: Device, two: Device, timeout_s: float = 10.0) -> Pair:
    listener = two.listen()
    to = one.connect(listener.handle, timeout_s)
    return Pair(one, two, listener, to, listener.accept(DEADLINE_S))


def counters_once_acknowledged(device: Device, flowlets: int) -> dict[str, Any]:
    """The counters once this number of flowlets is acknowledged: a short send is done before its flowlets are."""
    until = time.monotonic() + DEADLINE_S
    while True:
        counters = device.counters()
        if sum(lane["flowlets"] for lane in counters["lanes"]) >= flowlets or time.monotonic() > until:
            return counters
        time.sleep(0.001)


@pytest.fixture
def make_pair() -> Iterator[Callable[..., Pair]]:
    """Make pairs of devices, closed after the test. `two` has the options that differ for the second device."""
    with ExitStack() as stack:

        def make(two: dict[str, Any] | None = None, **options: Any) -> Pair:
            first = stack.enter_context(Device(A, **{"lanes": 4, **options}))
            second = stack.enter_context(Device(B, **{"lanes": 4, **options, **(two or {})}))
            return join(first, second)

        yield make


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()
