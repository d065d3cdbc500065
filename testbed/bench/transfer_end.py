# SPDX-License-Identifier: Apache-2.0
"""One end of a transfer that lasts until it is told to end: a program on a host of an emulated fabric.

usage: python -m testbed.bench.transfer_end CONFIGURATION, a JSON object of `Configuration`'s fields. The receiver
prints its handle first. Both ends answer each line `lanes` on standard input with their lanes, and print `Sent` or
`Received` at the end, which the line `end` brings the sender to. All answers are JSON, one to a line.
"""

import json
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from hostlib import Device, Request, TransportError
from netmodel.printable import printable

Policy = Literal["ecmp", "adaptive"]

LANES = 16
LINE_RATE_BPS = 40_000_000
"""Of the device, with all its NICs."""

_FLOWLET_BYTES = 4096
_MESSAGE_BYTES = 512 << 10
_UNDER_WAY = 8
"""Messages; with their size the 4 MiB that NCCL keeps under way on a connection."""

_SAMPLE_S = 0.005
_TIMEOUT_S = 60.0
_END = b"."
"""The last message, shorter than all others."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """An end. handle: that of the receiver, for the sender; None: this is the receiver."""

    addresses: str
    policy: Policy
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What the sender saw.

    progress: by lane, when flowlets were acknowledged, on the monotonic clock, in seconds; the resolution is 5 ms.
    again: packets sent again. moves: changes of source ports.
    """

    progress: list[list[float]]
    messages: int
    packets: int
    again: int
    moves: int


@dataclass(frozen=True, slots=True)
class Received:
    """What the receiver got: messages, and how many of them were wrong."""

    messages: int
    wrong: int


class Progress:
    """Notes when lanes of a device make progress, from a thread of its own. A context manager."""

    def __init__(self, device: Device) -> None:
        self.times: list[list[float]] = [[] for _ in range(LANES)]
        self._device = device
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        finished = [0] * LANES
        while not self._over.wait(_SAMPLE_S):
            now_s = time.monotonic()
            for row in self._device.counters()["lanes"]:
                if row["flowlets"] != finished[row["lane"]]:
                    finished[row["lane"]] = row["flowlets"]
                    self.times[row["lane"]].append(now_s)


def send(configuration: Configuration, handle: bytes) -> Sent:
    """Send messages until standard input says `end`, which is read when every lane has made progress."""
    told = threading.Event()
    message = _message()
    with _device(configuration) as device:
        connection = device.connect(handle, _TIMEOUT_S)
        with Progress(device) as progress:
            under_way: list[Request] = []
            count, served = 0, False
            while not told.is_set():
                if not served and all(progress.times):
                    _serve(device, told)
                    served = True
                under_way.append(connection.send(message))
                count += 1
                if len(under_way) == _UNDER_WAY:
                    under_way.pop(0).wait(_TIMEOUT_S)
            for request in under_way:
                request.wait(_TIMEOUT_S)
        lanes = device.counters()["lanes"]  # they vanish when the receiver has ended
        connection.send(_END).wait(_TIMEOUT_S)
    packets, again, moves = (sum(row[name] for row in lanes) for name in ("tx_packets", "retransmits", "moves"))
    return Sent(progress.times, count, packets, again, moves)


def receive(configuration: Configuration) -> Received:
    """Receive and compare messages until the last one. Prints the handle first."""
    expected = _message()
    with _device(configuration) as device:
        listener = device.listen()
        _answer(listener.handle.hex())
        connection = listener.accept(_TIMEOUT_S)
        _serve(device, threading.Event())
        buffers = [bytearray(_MESSAGE_BYTES) for _ in range(_UNDER_WAY)]
        under_way = [(connection.recv(buffer), buffer) for buffer in buffers]
        count = wrong = 0
        while True:
            request, buffer = under_way.pop(0)
            if request.wait(_TIMEOUT_S) == len(_END):
                return Received(count, wrong)
            count += 1
            wrong += buffer != expected
            buffer[:] = bytes(len(buffer))
            under_way.append((connection.recv(buffer), buffer))


def _device(configuration: Configuration) -> Device:
    return Device(
        configuration.addresses,
        lanes=LANES,
        policy=configuration.policy,
        seed=1,
        path_mtu=_FLOWLET_BYTES,
        flowlet_bytes=_FLOWLET_BYTES,
        line_rate_bps=LINE_RATE_BPS,
    )


def _message() -> bytes:
    return random.Random(1).randbytes(_MESSAGE_BYTES)


def _serve(device: Device, told: threading.Event) -> None:
    """Answer lines of standard input, from a thread of its own."""

    def answer() -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                told.set()
                return
            rows = sorted(device.counters()["lanes"], key=lambda row: int(row["lane"]))
            _answer([{name: row[name] for name in ("lane", "member", "port")} for row in rows])

    threading.Thread(target=answer, daemon=True).start()


def _answer(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main(argv: list[str]) -> int:
    """Returns the exit status. Prints errors to standard error."""
    configuration = Configuration(**json.loads(argv[0]))
    handle = configuration.handle
    try:
        _answer(asdict(receive(configuration) if handle is None else send(configuration, bytes.fromhex(handle))))
    except (TransportError, TimeoutError) as error:
        print(printable(f"transfer: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
