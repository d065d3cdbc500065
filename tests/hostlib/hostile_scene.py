# SPDX-License-Identifier: Apache-2.0
"""A device under attack, while an honest peer exchanges messages with it.

Every test checks that the honest traffic continues, that memory is unchanged, and that refused packets are counted.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from hostlib import Connection, Device, Listener, Request, TransportError
from hostlib.device import Backend

from .conftest import join
from .hostile_peer import DEADLINE_S, Advertisement, HostilePeer

VICTIM, HONEST, HOSTILE, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition that other threads bring about."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.001)


class HonestTraffic:
    """Messages from an honest peer to the victim and back, checked byte by byte, on a separate thread."""

    def __init__(self, victim: Device, honest: Device) -> None:
        self._pair = join(honest, victim)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.exchanged = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        draw = random.Random(7)
        try:
            while not self._stop.is_set():
                message = draw.randbytes(draw.choice((8, 5000, 100_000)))
                there, back = bytearray(len(message)), bytearray(len(message))
                receiving = self._pair.back.recv(there), self._pair.to.recv(back)
                self._pair.to.send(message)
                receiving[0].wait(DEADLINE_S)
                self._pair.back.send(there)
                receiving[1].wait(DEADLINE_S)
                assert back == message
                self.exchanged += 1
                self._stop.wait(0.001)
        except BaseException as error:  # `continues` and `end` raise it
            self._error = error

    def continues(self, messages: int = 3) -> bool:
        """Wait until this number of further messages has gone both ways."""
        wanted = self.exchanged + messages
        wait_until(lambda: self.exchanged >= wanted or self._error is not None, "honest messages")
        if self._error is not None:
            raise self._error
        return True

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


@contextmanager
def open_devices(backend: Backend = "soft") -> Iterator[tuple[Device, Device, Listener, HonestTraffic]]:
    """The victim, an honest device, the victim's listener, and the honest traffic."""
    # The hostile peer answers only while a test receives, which is rare on a busy machine: long retry times.
    with (
        Device(VICTIM, backend=backend, lanes=2, retry_time_s=2 * DEADLINE_S) as victim,
        Device(HONEST, backend=backend, lanes=2, retry_time_s=2 * DEADLINE_S) as honest,
    ):
        honest_traffic = HonestTraffic(victim, honest)
        yield victim, honest, victim.listen(), honest_traffic
        honest_traffic.end()


class Target:
    """A receive of `size` bytes in the middle of memory that must not be written, and its advertisement."""

    GUARD = 2000

    def __init__(
        self, connection: Connection, advertisements: Callable[[], list[Advertisement]], size: int = 1000
    ) -> None:
        self._size = size
        self._memory = bytearray(b"\xee" * (size + 2 * self.GUARD))
        window = memoryview(self._memory)[self.GUARD : self.GUARD + size]
        self.request: Request = connection.recv(window, 0)
        (self.advertisement,) = advertisements()

    def holds(self, data: bytes = b"", at: int = 0) -> bool:
        """Whether `data` at offset `at` of the receive is all that has been written."""
        expected = bytearray(b"\xee" * len(self._memory))
        expected[self.GUARD + at : self.GUARD + at + len(data)] = data
        return self._memory == expected


class Scene:
    """The victim, the honest traffic, and a hostile peer with a connection."""

    def __init__(
        self,
        victim: Device,
        honest: Device,
        listener: Listener,
        honest_traffic: HonestTraffic,
        lanes: int = 1,
        *,
        offers: bytes = b"",
    ) -> None:
        self.victim = victim
        self.honest = honest
        self.honest_traffic = honest_traffic
        self.peer = HostilePeer(HOSTILE, listener.handle, victim.udp_port, lanes, offers=offers)
        self.connection: Connection = listener.accept(DEADLINE_S)

    def target(self, size: int = 1000) -> Target:
        return Target(self.connection, self.peer.advertisements, size)

    def lane(self, lane: int = 0) -> dict[str, Any]:
        """The victim's counters of a lane to the hostile peer."""
        qpn = self.peer.lanes[lane].victim_qpn
        (found,) = (each for each in self.victim.counters()["lanes"] if each["qpn"] == qpn)
        return dict(found)

    @contextmanager
    def discards(self, reason: str, count: int) -> Iterator[None]:
        """The body makes the victim discard `count` packets for this reason, and none for other reasons."""
        before = self.victim.counters()["discards"]
        yield
        expected = {**before, reason: before[reason] + count}
        wait_until(
            lambda: sum(self.victim.counters()["discards"].values()) >= sum(expected.values()), f"{count} {reason}"
        )
        assert self.victim.counters()["discards"] == expected

    def still_works(self, target: Target) -> bool:
        """The hostile peer's QP still takes valid packets, and the honest traffic continues."""
        data = b"a valid message"
        answer = self.peer.ask(self.peer.write(target.advertisement, data))
        assert answer == (0x1F, 0), answer
        assert target.request.wait(DEADLINE_S) == len(data)
        assert target.holds(data)
        return self.honest_traffic.continues()

    def dropped(self) -> bool:
        """The victim has given up the hostile peer, and no other peer."""
        assert self.peer.dropped()
        with pytest.raises(TransportError):
            self.connection.recv(bytearray(1)).wait(DEADLINE_S)
        return self.honest_traffic.continues()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peer.__exit__(kind, error, trace)


def replaced(advertisement: Advertisement, **changes: int) -> Advertisement:
    return Advertisement(**{**vars(advertisement), **changes})
