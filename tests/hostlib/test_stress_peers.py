# SPDX-License-Identifier: Apache-2.0
"""Peers that are killed, stop answering or restart: requests to them fail within the retry time, other peers are not
affected, and no resources are left."""

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
from hostlib.device import Backend

from . import echo_process
from .conftest import DEADLINE_S, A

ROOT = Path(__file__).parents[2]
RETRY_TIME_S = 3.0


class Echo:
    """A process that sends back every message, and a connection to it."""

    def __init__(self, address: str, listener: Listener, backend: Backend) -> None:
        self.process = subprocess.Popen(
            [sys.executable, echo_process.__file__, address, backend],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(listener.handle.hex() + "\n")
        self.process.stdin.flush()
        self.connection: Connection = listener.accept(DEADLINE_S)
        assert self.connection.peer == address

    def echoes(self, message: bytes) -> bool:
        """Whether the process answers with the same bytes."""
        buffer = bytearray(len(message))
        answer = self.connection.recv(buffer)
        self.connection.send(message).wait(DEADLINE_S)
        return answer.wait(DEADLINE_S) == len(message) and buffer == message

    def stop(self) -> None:
        """Stop it by a signal. Until one of its threads has taken the signal, the others go on."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def backend() -> Backend:
    """The back end of all devices, for tests that do not name others."""
    return "soft"


@pytest.fixture
def device(backend: Backend) -> Iterator[Device]:
    with Device(A, backend=backend, lanes=2, min_timeout_s=0.02, retry_time_s=RETRY_TIME_S, idle_peer_s=0.05) as device:
        yield device


@pytest.fixture
def start(device: Device, backend: Backend) -> Iterator[Callable[[str], Echo]]:
    listener = device.listen()
    with ExitStack() as stack:

        def start(address: str) -> Echo:
            echo = Echo(address, listener, backend)
            stack.callback(echo.end)
            return echo

        yield start


@contextmanager
def talking(echo: Echo) -> Iterator[list[BaseException]]:
    """Exchange messages during the body. Yields the list of failures."""
    failures: list[BaseException] = []
    over = threading.Event()

    def talk() -> None:
        rounds = 0
        try:
            while not over.is_set() or rounds == 0:
                assert echo.echoes(os.urandom(20_000))
                rounds += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    yield failures
    over.set()
    thread.join()


def resources() -> set[str]:
    """Open files and threads of this process."""
    found = {f"thread {entry.name}" for entry in Path("/proc/self/task").iterdir()}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {os.readlink(entry)}")
        except FileNotFoundError:
            continue  # the descriptor of the directory itself
    return found


def fails(request: Request) -> str:
    with pytest.raises(TransportError) as error:
        request.wait(DEADLINE_S)
    return f"{type(error.value).__name__}: {error.value}"


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def settled(device: Device, echo: Echo) -> float:
    """Waits until an echo has done all that it has to: its threads sleep, and no packets come and go.

    Returns a time of the monotonic clock before which all that was sent to it has been acknowledged.
    """

    def packets() -> list[tuple[int, int]]:
        lanes = [lane for lane in device.counters()["lanes"] if lane["peer"] == echo.connection.peer]
        return [(lane["tx_packets"], lane["rx_packets"]) for lane in lanes]

    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        before = packets()
        time.sleep(0.05)
        states = [
            stat.read_text().rpartition(")")[2].split()[0]
            for stat in Path(f"/proc/{echo.process.pid}/task").glob("*/stat")
        ]
        now_s = time.monotonic()
        if packets() == before and set(states) == {"S"}:
            return now_s
    pytest.fail("the echo never came to rest")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_killed_peer_leaves_no_resources_and_affects_no_other_peer(
    device: Device, start: Callable[[str], Echo], number: signal.Signals
) -> None:
    bystander = start("127.0.0.4")
    assert bystander.echoes(b"hello")
    before = resources()
    victim = start("127.0.0.3")
    assert victim.echoes(bytes(50_000))
    with talking(bystander) as failures:
        pending = [victim.connection.recv(bytearray(10), tag=7), *(victim.connection.send(b"x", 9) for _ in range(3))]
        victim.process.send_signal(number)
        said = [fails(request) for request in pending]
    assert failures == []
    assert all(word.startswith("ConnectionClosed: 127.0.0.3 ") for word in said), said
    victim.end()
    assert bystander.echoes(b"still here")
    # Its QPs and its channel are freed. The device has no threads per peer.
    assert eventually(lambda: device.counters()["peers"] == 1 and device.counters()["connections"] == 1)
    victim.connection.close()
    assert eventually(lambda: resources() <= before), resources() - before


@pytest.mark.parametrize("backend", ["soft", "tcp"])
def test_a_stopped_peer_is_given_up_after_the_retry_time(
    device: Device, start: Callable[[str], Echo], backend: Backend
) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    assert victim.echoes(b"hello")
    with talking(bystander) as failures:
        waiting = victim.connection.recv(bytearray(10), tag=7)
        begin = settled(device, victim)
        victim.stop()
        # The echo has an open receive, so this message is sent. Over soft it is never acknowledged; over TCP the kernel
        # of the stopped process takes it.
        sent = victim.connection.send(bytes(100_000))
        said = [fails(request) for request in ([waiting] if backend == "tcp" else [sent, waiting])]
        took_s = time.monotonic() - begin
        victim.process.send_signal(signal.SIGCONT)
    assert failures == []
    print(f"given up after {took_s / RETRY_TIME_S:.2f} retry times")
    assert all("127.0.0.3: the peer did not answer within the retry time" in word for word in said), said
    assert took_s >= RETRY_TIME_S
    assert bystander.echoes(b"still here")


@pytest.mark.parametrize("backend", ["soft", "tcp"])
def test_a_stopped_peer_without_traffic_is_given_up_and_an_idle_one_is_not(
    device: Device, start: Callable[[str], Echo]
) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    assert victim.echoes(b"hello")
    assert bystander.echoes(b"hello")
    unmet = [victim.connection.send(bytes(100), tag=7), victim.connection.recv(bytearray(10), tag=7)]
    quiet = [bystander.connection.send(bytes(100), tag=7), bystander.connection.recv(bytearray(10), tag=7)]
    begin = settled(device, victim)
    victim.stop()
    said = [fails(request) for request in unmet]
    took_s = time.monotonic() - begin
    print(f"given up after {took_s / RETRY_TIME_S:.2f} retry times")
    assert all("127.0.0.3: the peer did not answer within the retry time" in word for word in said), said
    victim.process.send_signal(signal.SIGCONT)
    time.sleep(max(0.0, begin + 2 * RETRY_TIME_S - time.monotonic()))
    assert not any(request.done for request in quiet)
    assert bystander.echoes(b"still here")


def test_a_restarted_peer_is_a_new_peer(device: Device, start: Callable[[str], Echo]) -> None:
    bystander, victim = start("127.0.0.4"), start("127.0.0.3")
    for _ in range(3):
        old = victim.connection
        pending = old.recv(bytearray(10), tag=7)
        victim.end()
        victim = start("127.0.0.3")  # the same address and port
        assert victim.echoes(bytes(30_000))
        assert fails(pending).startswith("ConnectionClosed: 127.0.0.3 went away")
        with pytest.raises(ConnectionClosed):
            old.send(b"too late").wait(DEADLINE_S)
        assert bystander.echoes(b"still here")


def test_sigint_ends_a_process_that_waits(start: Callable[[str], Echo]) -> None:
    echo = start("127.0.0.3")
    assert echo.echoes(b"hello")
    echo.process.send_signal(signal.SIGINT)
    _, said = echo.process.communicate(timeout=DEADLINE_S)
    assert echo.process.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
