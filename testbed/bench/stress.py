# SPDX-License-Identifier: Apache-2.0
"""Goodput when the network drops, duplicates, reorders or corrupts packets, relative to a perfect network.

Both devices are in this process, on loopback. Faults are injected on reception in both directions, so they affect
messages, acknowledgements and receive advertisements. Every received byte is compared with the byte sent, outside the
time that is measured: the devices wait meanwhile. With root, TCP is a second peer, under the same loss between two
network namespaces (`testbed.bench.lossy_link`).
"""

import os
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain

from hostlib import Connection, Device, Faults, Request, TransportError
from testbed.bench import lossy_link
from testbed.bench.frame import Measurement, Result, result
from testbed.bench.transport import printed
from testbed.errors import TestbedError
from testbed.progress import Steps

LOSS = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.2)
RATES = (0.01, 0.2)
REORDER_PACKETS = 64
REPETITIONS = 3
PEER = "no faults"

_ADDRESSES = ("127.0.0.1", "127.0.0.2")
_MESSAGE_BYTES = 256 << 10
_IN_FLIGHT = 8
_MESSAGES = 256
"""Messages of a stream, each into a buffer of its own, which are compared after the last has arrived."""

_SECONDS = 1.0
"""Measured seconds after which a repetition of a case starts no further stream."""

_TIMEOUT_S = 300.0


def ladder() -> dict[str, Faults]:
    """The faults of every step by name: loss from 0.01 % to 20 %, and a low and a high rate of every other fault."""
    steps = {f"{rate:.4g} % loss": Faults(drop=rate / 100) for rate in (100 * loss for loss in LOSS)}
    for rate in RATES:
        steps[f"{rate:.0%} repeated".replace("%", " %")] = Faults(duplicate=rate)
        steps[f"{rate:.0%} late by up to {REORDER_PACKETS} packets".replace("%", " %", 1)] = Faults(
            reorder=rate, reorder_packets=REORDER_PACKETS
        )
        steps[f"{rate:.0%} damaged".replace("%", " %")] = Faults(corrupt=rate)
    return steps


def measure() -> Result:
    """Every step of the ladder and of loss beside TCP, `REPETITIONS` times.

    Raises TestbedError when a message is lost or wrong.
    """
    steps = ladder()
    with_tcp = os.geteuid() == 0
    with Steps(REPETITIONS * (len(steps) + with_tcp * len(lossy_link.LOSS)), every_s=3.0) as progress:
        progress.now("measuring")
        measurements = []
        for measurement in chain(run(steps), beside_tcp() if with_tcp else ()):
            measurements.append(measurement)
            progress.now(measurement.case)
            progress.advance()
    if not with_tcp:
        print("stress: TCP is left out, because network namespaces need root", file=sys.stderr)
    return result("stress", measurements)


def beside_tcp() -> Iterator[Measurement]:
    """Goodput of `soft` and of TCP under the same loss, in a sandbox. Raises TestbedError."""
    inside = [sys.executable, "-m", "testbed.bench.lossy_link_main", str(REPETITIONS)]
    return printed([sys.executable, "-m", "emul.sandbox", *inside])


def run(steps: dict[str, Faults], repetitions: int = REPETITIONS, seconds: float = _SECONDS) -> Iterator[Measurement]:
    """Interleave runs with and without faults, so that changes of the machine's speed affect both."""
    for seed in range(repetitions):
        message = random.Random(seed).randbytes(_MESSAGE_BYTES)
        for case, faults in steps.items():
            ours, peer = (goodput_gbps(message, given, seconds) for given in (faults, Faults()))
            yield Measurement("goodput", case, "Gbit/s", ours, peer, PEER)


def goodput_gbps(message: bytes, faults: Faults, seconds: float) -> float:
    """Goodput in Gbit/s of streams of messages, for at least `seconds`. Raises TestbedError."""

    def device(address: str) -> Device:
        return Device(address, lanes=8, min_timeout_s=0.01, retry_time_s=_TIMEOUT_S, faults=faults)

    buffers = [bytearray(len(message)) for _ in range(_MESSAGES)]
    messages, elapsed = 0, 0.0
    try:
        with device(_ADDRESSES[0]) as one, device(_ADDRESSES[1]) as two:
            listener = two.listen()
            out = one.connect(listener.handle, _TIMEOUT_S)
            into = listener.accept(_TIMEOUT_S)
            while elapsed < seconds:
                elapsed += _stream(out, into, message, buffers)
                messages += len(buffers)
                _check(buffers, message)
    except (TransportError, TimeoutError) as error:
        raise TestbedError(f"a message was lost under {faults}: {error}") from error
    return messages * len(message) * 8 / elapsed / 1e9


def _stream(out: Connection, into: Connection, message: bytes, buffers: list[bytearray]) -> float:
    """Sends the message into each buffer, `_IN_FLIGHT` at a time. The seconds until the last has arrived."""
    begin = time.monotonic()
    under_way: deque[tuple[Request, Request]] = deque()
    for buffer in buffers:
        if len(under_way) == _IN_FLIGHT:
            _wait(under_way.popleft())
        under_way.append((into.recv(buffer), out.send(message)))
    while under_way:
        _wait(under_way.popleft())
    return time.monotonic() - begin


def _wait(message: tuple[Request, Request]) -> None:
    for request in message:
        request.wait(_TIMEOUT_S)


def _check(buffers: list[bytearray], message: bytes) -> None:
    """Raises TestbedError unless all buffers hold the message. Clears them for the next stream."""
    for buffer in buffers:
        if buffer != message:
            raise TestbedError("a message arrived corrupted")
        buffer[:] = bytes(len(buffer))
