# SPDX-License-Identifier: Apache-2.0
"""Peers that die, stop answering or come back: requests towards them end with an error in the time that was set, nobody
else is harmed, and nothing of them stays behind here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hostlib import Connection, ConnectionClosed, Device, Listener, Request, TransportError

from . import echo_process
from .conftest import PATIENCE_S, A

ROOT = Path(__file__).parents[2]
RETRY_TIME_S = 3.0


class Echo:
    """A process that sends back what it receives, and our connection to it."""

    def __init__(self, address: str, listener: Listener) -> None:
        self.process = subprocess.Popen(
            [sys.executable, echo_process.__file__, address],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(listener.handle.hex() + "\n")
        self.process.stdin.flush()
        self.connection: Connection = listener.accept(PATIENCE_S)
        assert self.connection.peer == address

    def says(self, message: bytes) -> bool:
        """Whether it still answers, with the right bytes."""
        buffer = bytearray(len(message))
        answer = self.connection.recv(buffer)
        self.connection.send(message).wait(PATIENCE_S)
        return answer.wait(PATIENCE_S) == len(message) and buffer == message

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(A, lanes=2, min_timeout_s=0.02, retry_time_s=RETRY_TIME_S, idle_peer_s=0.05) as device:
        yield device


@pytest.fixture
def start(device: Device) -> Iterator[Callable[[str], Echo]]:
    listener = device.listen()
    with ExitStack() as stack:

        def start(address: str) -> Echo:
            echo = Echo(address, listener)
            stack.callback(echo.end)
            return echo

        yield start


@contextmanager
def talking(echo: Echo) -> Iterator[list[BaseException]]:
    """Meanwhile messages go to and fro; what went wrong with them, which is nothing."""
    failures: list[BaseException] = []
    over = threading.Event()

    def talk() -> None:
        rounds = 0
        try:
            while not over.is_set() or rounds == 0:
                assert echo.says(os.urandom(20_000))
                rounds += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    yield failures
    over.set()
    thread.join()


def resources() -> set[str]:
    """What this process has open, and its threads."""
    found = {f"thread {entry.name}" for entry in Path("/proc/self/task").iterdir()}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {os.readlink(entry)}")
        except FileNotFoundError:
            continue  # the directory itself
    return found


def fails(request: Request) -> str:
    with pytest.raises(TransportError) as error:
        request.wait(PATIENCE_S)
    return f"{type(error.value).__name__}: {error.value}"


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_peer_that_is_killed_leaves_nothing_and_harms_nobody(
    device: Device, start: Callable[[str], Echo], number: signal.Signals
) -> None:
    bystander = start("127.0.0.4")
    assert bystander.says(b"hello")
    before = resources()
    victim = start("127.0.0.3")
    assert victim.says(bytes(50_000))
    with talking(bystander) as failures:
        pending = [victim.connection.recv(bytearray(10), tag=7), *(victim.connection.send(b"x", 9) for _ in range(3))]
        victim.process.send_signal(number)
        said = [fails(request) for request in pending]
    assert failures == []
    assert all(word.startswith("ConnectionClosed: 127.0.0.3 ") for word in said), said
    victim.end()
    assert bystander.says(b"still here")
    # Its QPs, its channel and its name are gone; the device has no thread per peer to lose.
    assert eventually(lambda: device.counters()["peers"] == 1 and device.counters()["connections"] == 1)
    victim.connection.close()
    assert eventually(lambda: resources() <= before), resources() - before


def test_a_peer_that_stops_answering_is_given_up_in_the_time_that_was_set(
    device: Device, start: Callable[[str], Echo]
) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    assert victim.says(b"hello")
    with talking(bystander) as failures:
        waiting = victim.connection.recv(bytearray(10), tag=7)
        time.sleep(0.5)  # for the advertisement of the echo's next receive to come
        victim.process.send_signal(signal.SIGSTOP)
        # The echo has a receive open, so this one leaves, and nobody acknowledges it.
        begin = time.monotonic()
        said = [fails(victim.connection.send(bytes(100_000))), fails(waiting)]
        took_s = time.monotonic() - begin
        victim.process.send_signal(signal.SIGCONT)
    assert failures == []
    print(f"given up after {took_s / RETRY_TIME_S:.2f} retry times")
    assert all("127.0.0.3: the peer did not answer within the retry time" in word for word in said), said
    assert took_s >= RETRY_TIME_S
    assert bystander.says(b"still here")


def test_a_peer_that_stops_is_given_up_with_nothing_under_way_and_one_that_is_only_quiet_is_not(
    device: Device, start: Callable[[str], Echo]
) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    assert victim.says(b"hello")
    assert bystander.says(b"hello")
    unmet = [victim.connection.send(bytes(100), tag=7), victim.connection.recv(bytearray(10), tag=7)]
    quiet = [bystander.connection.send(bytes(100), tag=7), bystander.connection.recv(bytearray(10), tag=7)]
    time.sleep(0.5)  # for the advertisements to be acknowledged
    victim.process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    said = [fails(request) for request in unmet]
    took_s = time.monotonic() - begin
    print(f"given up after {took_s / RETRY_TIME_S:.2f} retry times")
    assert all("127.0.0.3: the peer did not answer within the retry time" in word for word in said), said
    victim.process.send_signal(signal.SIGCONT)
    time.sleep(max(0.0, begin + 2 * RETRY_TIME_S - time.monotonic()))
    assert not any(request.done for request in quiet)
    assert bystander.says(b"still here")


def test_a_peer_that_comes_back_is_a_new_one(device: Device, start: Callable[[str], Echo]) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    for _ in range(3):
        old = victim.connection
        pending = old.recv(bytearray(10), tag=7)
        victim.end()
        victim = start("127.0.0.3")  # the same address, and so the same port
        assert victim.says(bytes(30_000))
        assert fails(pending).startswith("ConnectionClosed: 127.0.0.3 went away")
        with pytest.raises(ConnectionClosed):
            old.send(b"to whom?").wait(PATIENCE_S)
        assert bystander.says(b"still here")


def test_a_process_that_is_interrupted_while_it_waits_ends_by_that(start: Callable[[str], Echo]) -> None:
    echo = start("127.0.0.3")
    assert echo.says(b"hello")
    echo.process.send_signal(signal.SIGINT)
    _, said = echo.process.communicate(timeout=PATIENCE_S)
    assert echo.process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
