# SPDX-License-Identifier: Apache-2.0
"""A device under attack: an honest peer exchanges messages with it all the time, and every test asks whether that still
goes on, whether memory stayed as it was, and whether what was refused was counted."""

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

from .conftest import join
from .hostile_peer import PATIENCE_S, Advertisement, HostilePeer

VICTIM, HONEST, HOSTILE, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for what other threads do."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.001)


class Beside:
    """Messages from an honest peer to the victim and back, checked byte by byte, on a thread of their own."""

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
                receiving[0].wait(PATIENCE_S)
                self._pair.back.send(there)
                receiving[1].wait(PATIENCE_S)
                assert back == message
                self.exchanged += 1
                self._stop.wait(0.001)
        except BaseException as error:  # a test asks for it
            self._error = error

    def goes_on(self, messages: int = 3) -> bool:
        """Waits until so many more messages have gone both ways."""
        wanted = self.exchanged + messages
        until(lambda: self.exchanged >= wanted or self._error is not None, "messages beside")
        if self._error is not None:
            raise self._error
        return True

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


@contextmanager
def open_stage() -> Iterator[tuple[Device, Device, Listener, Beside]]:
    """The victim, an honest device, the victim's listener, and the honest messages that go on all the time."""
    # The hostile peer answers only while a test looks, which on a busy machine may be seldom.
    with (
        Device(VICTIM, lanes=2, retry_time_s=2 * PATIENCE_S) as victim,
        Device(HONEST, lanes=2, retry_time_s=2 * PATIENCE_S) as honest,
    ):
        beside = Beside(victim, honest)
        yield victim, honest, victim.listen(), beside
        beside.end()


class Target:
    """A receive of `size` bytes in the middle of memory that nobody may write, and the advertisement of it."""

    GUARD = 2000

    def __init__(self, scene: Scene, size: int = 1000) -> None:
        self._size = size
        self._memory = bytearray(b"\xee" * (size + 2 * self.GUARD))
        window = memoryview(self._memory)[self.GUARD : self.GUARD + size]
        self.request: Request = scene.connection.recv(window, 0)
        (self.advertisement,) = scene.peer.advertisements()

    def holds(self, data: bytes = b"", at: int = 0) -> bool:
        """Whether `data` at `at` in the window is all that was ever written."""
        expected = bytearray(b"\xee" * len(self._memory))
        expected[self.GUARD + at : self.GUARD + at + len(data)] = data
        return self._memory == expected


class Scene:
    """The victim, the honest pair's traffic, and a hostile peer that has a connection."""

    def __init__(self, victim: Device, honest: Device, listener: Listener, beside: Beside, lanes: int = 1) -> None:
        self.victim = victim
        self.honest = honest
        self.beside = beside
        self.peer = HostilePeer(HOSTILE, listener.handle, victim.udp_port, lanes)
        self.connection: Connection = listener.accept(PATIENCE_S)

    def target(self, size: int = 1000) -> Target:
        return Target(self, size)

    def lane(self, lane: int = 0) -> dict[str, Any]:
        """What the victim counts on a lane to the hostile peer."""
        qpn = self.peer.lanes[lane].victim_qpn
        (found,) = (each for each in self.victim.counters()["lanes"] if each["qpn"] == qpn)
        return dict(found)

    @contextmanager
    def discards(self, reason: str, count: int) -> Iterator[None]:
        """What is done within makes the victim discard so many packets for this reason, and none for another."""
        before = self.victim.counters()["discards"]
        yield
        expected = {**before, reason: before[reason] + count}
        until(lambda: sum(self.victim.counters()["discards"].values()) >= sum(expected.values()), f"{count} {reason}")
        assert self.victim.counters()["discards"] == expected

    def unharmed(self, target: Target) -> bool:
        """The hostile peer's own QP still does what it should, and so do the others'."""
        data = b"as it should be"
        answer = self.peer.ask(self.peer.write(target.advertisement, data))
        assert answer == (0x1F, 0), answer
        assert target.request.wait(PATIENCE_S) == len(data)
        assert target.holds(data)
        return self.beside.goes_on()

    def dropped(self) -> bool:
        """The victim has given the hostile peer up, and nobody else."""
        assert self.peer.dropped()
        with pytest.raises(TransportError):
            self.connection.recv(bytearray(1)).wait(PATIENCE_S)
        return self.beside.goes_on()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.peer.__exit__(kind, error, trace)


def other(advertisement: Advertisement, **changes: int) -> Advertisement:
    return Advertisement(**{**vars(advertisement), **changes})
