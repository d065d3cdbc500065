# SPDX-License-Identifier: Apache-2.0
"""Flows that meet on one shaped link fill it, and do not collapse. Bytes are the queueing discipline's own count."""

from __future__ import annotations

import threading
import time

import pytest

from hostlib import Connection, Device, Request

from .link import Link, near_address

pytestmark = pytest.mark.sandboxed

MESSAGE_BYTES = 512 * 1024
WARM_UP_S = 1.0
MEASURED_S = 3.0
DEPTH = 2  # messages under way per flow


def send_until(stop: threading.Event, connection: Connection) -> None:
    message = bytes(MESSAGE_BYTES)
    under_way: list[Request] = [connection.send(message) for _ in range(DEPTH)]
    while not stop.is_set():
        try:
            under_way[0].wait(0.2)
        except TimeoutError:
            continue
        under_way = [*under_way[1:], connection.send(message)]


def utilization(flows: int, lanes: int, rate_bps: int) -> tuple[float, int]:
    """The share of a link's rate that `flows` senders use together, and the packets they retransmitted."""
    with Link(senders=flows, lanes=lanes, connections=flows, message_bytes=MESSAGE_BYTES) as link:
        link.shape(rate_bps)
        handle = link.open()
        devices = [Device(near_address(i), lanes=lanes, line_rate_bps=rate_bps, seed=i) for i in range(flows)]
        stop = threading.Event()
        threads = [threading.Thread(target=send_until, args=(stop, device.connect(handle, 20.0))) for device in devices]
        for thread in threads:
            thread.start()
        time.sleep(WARM_UP_S)
        start, before = time.monotonic(), link.queue()
        time.sleep(MEASURED_S)
        elapsed, after = time.monotonic() - start, link.queue()
        stop.set()
        for thread in threads:
            thread.join()
        retransmits = sum(lane["retransmits"] for device in devices for lane in device.counters()["lanes"])
        assert after["drops"] == before["drops"] == 0
    for device in devices:
        device.close()
    return (after["bytes"] - before["bytes"]) * 8 / elapsed / rate_bps, retransmits


@pytest.mark.parametrize(
    ("flows", "lanes", "rate_bps"),
    [
        (1, 8, 100_000_000),
        (8, 1, 10_000_000),
        (8, 1, 100_000_000),
        (8, 8, 10_000_000),
        (8, 8, 100_000_000),
        (8, 1, 1_000_000_000),
        (8, 8, 1_000_000_000),
    ],
    ids=lambda value: str(value) if value < 1000 else f"{value // 1_000_000}M",
)
def test_a_shared_link_is_filled(flows: int, lanes: int, rate_bps: int) -> None:
    used, retransmits = utilization(flows, lanes, rate_bps)
    print(f"{flows} flows of {lanes} lanes at {rate_bps / 1e6:.0f} Mbit/s: {used:.3f}, {retransmits} retransmits")
    assert used >= 0.9
    assert used <= 1.05  # a burst more than the rate
