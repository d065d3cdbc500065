# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes, of which one is killed or cut off again and again: no byte is ever wrong.

A third process exchanges messages meanwhile and notices nothing.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from hostlib import Device, TransportError
from tests.hostlib.conftest import DEADLINE_S, A
from tests.hostlib.soak import starved_s
from tests.hostlib.test_stress_peers import Echo, eventually, talking

BYSTANDER, VICTIM = "127.0.0.4", "127.0.0.3"
ROUNDS = 200
RETRY_TIME_S = 3.0
"""More than a busy machine keeps the bystander from a processor."""
SIZES = (0, 1, 300, 4096, 20_000, 150_000, 1 << 20)
MOST_AT_ONCE = 6
STRIKE_WITHIN_S = 0.05
"""After the first messages of a round."""
SHORT_S = RETRY_TIME_S / 60
STRIKES = ("kill", "cut for a moment", "kill", "cut", "kill", "cut for a moment", "kill", "cut UDP")
"""A cut until the peer is given up takes the retry time."""


def nft(rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=rules, check=True, capture_output=True, text=True)


@contextmanager
def cut(protocol: str = "") -> Iterator[None]:
    """Drop what comes from the victim and what goes to it."""
    rules = "\n".join(f"ip {end} {VICTIM} {protocol} drop" for end in ("saddr", "daddr"))
    nft(f"table inet attack {{\nchain cut {{\ntype filter hook input priority 0\n{rules}\n}}\n}}\n")
    try:
        yield
    finally:
        nft("delete table inet attack")


class Talk:
    """Messages to an echo and back, several at once, until it fails or is told to stop."""

    def __init__(self, echo: Echo, seed: int) -> None:
        self._echo = echo
        self._draw = random.Random(seed)
        self.over = threading.Event()
        self.messages = 0
        self.failed = False
        self.ended = False

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._exchange()
        except TransportError:
            self.failed = True
        finally:
            self.ended = True

    def _exchange(self) -> None:
        size = self._draw.choice(SIZES)
        sent = [self._draw.randbytes(self._draw.randint(0, size)) for _ in range(self._draw.randint(1, MOST_AT_ONCE))]
        connection = self._echo.connection
        back = [bytearray(len(message)) for message in sent]
        answers = [connection.recv(buffer) for buffer in back]
        sends = [connection.send(message) for message in sent]
        for message, buffer, answer in zip(sent, back, answers, strict=True):
            assert answer.wait(DEADLINE_S) == len(message)
            right = buffer == message
            assert right, f"a message of {len(message)} bytes arrived with wrong content"
            self.messages += 1
        for send in sends:
            send.wait(DEADLINE_S)


def strike(kind: str, echo: Echo, talk: Talk) -> None:
    """Harm the echo and return when the talk has noticed it, or has survived it."""
    match kind:
        case "kill":
            echo.process.kill()
            assert eventually(lambda: talk.ended)
        case "cut for a moment":
            with cut():
                time.sleep(SHORT_S)
            before = talk.messages
            assert eventually(lambda: talk.ended or talk.messages > before + MOST_AT_ONCE)
        case _:
            with cut("meta l4proto udp" if kind == "cut UDP" else ""):
                assert eventually(lambda: talk.ended)


@pytest.mark.timeout(420)
def test_no_byte_is_wrong_after_kills_and_cuts(sized: Callable[[int], int]) -> None:
    draw = random.Random(37)
    done: Counter[str] = Counter()
    messages = 0
    with (
        Device(A, lanes=2, min_timeout_s=0.02, retry_time_s=RETRY_TIME_S, idle_peer_s=0.05) as device,
        ThreadPoolExecutor(1) as threads,
        ExitStack() as started,
    ):
        listener = device.listen()
        bystander = Echo(BYSTANDER, listener)
        started.callback(bystander.end)
        with talking(bystander) as failures:
            for number in range(sized(ROUNDS)):
                kind = STRIKES[number % len(STRIKES)]
                victim = Echo(VICTIM, listener)
                talk = Talk(victim, number)
                running = threads.submit(talk.run)
                try:
                    assert eventually(lambda talk=talk: talk.messages > 0 or talk.ended)  # type: ignore[misc]
                    time.sleep(draw.uniform(0, STRIKE_WITHIN_S))
                    strike(kind, victim, talk)
                    talk.over.set()
                    running.result(2 * DEADLINE_S)
                finally:
                    talk.over.set()
                    victim.end()
                victim.connection.close()
                assert failures == [], f"this process waited for a processor up to {starved_s():.1f} s"
                done[f"{kind}, {'failed' if talk.failed else 'went on'}"] += 1
                messages += talk.messages
        assert failures == []
        survived = done["cut for a moment, went on"]
        assert survived > 0 or done.total() < len(STRIKES), "a short cut is not the end of a connection"
        assert eventually(lambda: device.counters()["peers"] == 1)
    print(f"{messages} messages in {done.total()} rounds, none wrong: {dict(sorted(done.items()))}")
