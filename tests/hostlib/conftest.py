# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from hostlib import Connection, Device, Listener

A = "127.0.0.1"
B = "127.0.0.2"
PATIENCE_S = 30.0

# Of devices that send no packet twice because the machine is slow: without a line rate lanes ask after 2 ms.
PATIENT = {"min_timeout_s": 20.0, "line_rate_bps": 10e9}


@dataclass
class Pair:
    """Two devices of this process, joined by one connection."""

    one: Device
    two: Device
    listener: Listener
    to: Connection
    back: Connection

    def exchange(self, message: bytes, tag: int = 0) -> bytes:
        """What arrives of a message sent from one to two."""
        buffer = bytearray(len(message))
        receiving = self.back.recv(buffer, tag)
        assert self.to.send(message, tag).wait(PATIENCE_S) == len(message)
        assert receiving.wait(PATIENCE_S) == len(message)
        return bytes(buffer)


def join(one: Device, two: Device) -> Pair:
    listener = two.listen()
    to = one.connect(listener.handle)
    return Pair(one, two, listener, to, listener.accept(PATIENCE_S))


@pytest.fixture
def make_pair() -> Iterator[Callable[..., Pair]]:
    """Pairs of devices with the options given, `two` those that differ for the second; closed after the test."""
    with ExitStack() as stack:

        def make(two: dict[str, Any] | None = None, **options: Any) -> Pair:
            first = stack.enter_context(Device(A, **{"lanes": 4, **options}))
            second = stack.enter_context(Device(B, **{"lanes": 4, **options, **(two or {})}))
            return join(first, second)

        yield make


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()
