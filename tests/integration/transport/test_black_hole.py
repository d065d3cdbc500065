# SPDX-License-Identifier: Apache-2.0
"""A source port whose packets are all lost: adaptive lanes avoid it, others fail after the retry time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hostlib import Connection, Device, TransportError

from .link import FAR, Link, near_address
from .stream import Stream

pytestmark = pytest.mark.sandboxed

TIMEOUT_S = 60.0
MESSAGE_BYTES = 200_000


@pytest.fixture
def link() -> Iterator[Link]:
    with Link(senders=1, lanes=4, connections=1, message_bytes=MESSAGE_BYTES) as link:
        # Rules by port come before the table of local addresses, which is to be asked last.
        link.far("ip", "rule", "add", "pref", "200", "lookup", "local")
        link.far("ip", "rule", "delete", "pref", "0")
        yield link


def swallow(link: Link, port: int) -> None:
    """Drop packets from this UDP source port from now on."""
    link.far("ip", "rule", "add", "pref", "10", "iif", FAR, "ipproto", "udp", "sport", str(port), "blackhole")


def send_some(connection: Connection) -> None:
    """Enough messages at a time to keep every lane busy."""
    requests = [connection.send(bytes(MESSAGE_BYTES)) for _ in range(16)]
    assert all(request.wait(TIMEOUT_S) == MESSAGE_BYTES for request in requests)


def send_until(connection: Connection, end: float) -> None:
    while time.monotonic() < end:
        send_some(connection)


def test_adaptive_lanes_avoid_a_black_hole(link: Link) -> None:
    handle = link.open()
    with Device(near_address(0), lanes=4, policy="adaptive", seed=1, min_timeout_s=0.02) as device:
        connection = device.connect(handle)
        for _ in range(5):
            assert connection.send(bytes(MESSAGE_BYTES)).wait(TIMEOUT_S) == MESSAGE_BYTES
        dead = [lane["port"] for lane in device.counters()["lanes"]][:2]
        for port in dead:
            swallow(link, port)
        lanes = device.counters()["lanes"]
        until = time.monotonic() + TIMEOUT_S
        # Flowlets prefer the faster lanes, so it may take a while until both are tried again.
        while any(lane["port"] in dead for lane in lanes) and time.monotonic() < until:
            send_some(connection)
            lanes = device.counters()["lanes"]
        assert all(lane["port"] not in dead for lane in lanes)
        assert all(lane["moves"] >= 1 for lane in lanes[:2])


def test_ecmp_lanes_keep_their_ports_and_the_peer_fails(link: Link) -> None:
    handle = link.open()
    with Device(near_address(0), lanes=4, seed=1, min_timeout_s=0.02, retry_time_s=1.0) as device:
        connection = device.connect(handle)
        assert connection.send(bytes(MESSAGE_BYTES)).wait(TIMEOUT_S) == MESSAGE_BYTES
        swallow(link, device.counters()["lanes"][2]["port"])
        with pytest.raises(TransportError, match=r"lane 2 to 10\.99\.0\.100: the peer did not answer within the retry"):
            send_until(connection, time.monotonic() + TIMEOUT_S)


@pytest.mark.alone
def test_a_dead_lane_is_avoided_within_three_timeouts(link: Link) -> None:
    timeout_s = 0.5
    handle = link.open()
    with Device(near_address(0), lanes=4, policy="adaptive", seed=1, min_timeout_s=timeout_s) as device:
        stream = Stream(device.connect(handle), MESSAGE_BYTES)
        stream.start()
        while stream.sent < 20 and stream.is_alive():
            time.sleep(0.01)
        dead = device.counters()["lanes"][1]["port"]
        swallow(link, dead)
        start = time.monotonic()
        while device.counters()["lanes"][1]["port"] == dead and time.monotonic() < start + TIMEOUT_S:
            time.sleep(0.005)
        left_after = (time.monotonic() - start) / timeout_s
        stream.stop()
    print(f"left after {left_after:.2f} timeouts")
    assert left_after <= 3


def test_a_lane_that_was_dead_for_ten_seconds_is_used_again(link: Link) -> None:
    """With ECMP nothing moves: the dead lane gets nothing new while it is silent, the others carry on."""
    handle = link.open()
    options = {"lanes": 4, "seed": 1, "min_timeout_s": 0.05, "retry_time_s": TIMEOUT_S}
    with Device(near_address(0), **options) as device:
        stream = Stream(device.connect(handle), MESSAGE_BYTES)
        stream.start()
        while stream.sent < 20 and stream.is_alive():
            time.sleep(0.01)
        port = device.counters()["lanes"][1]["port"]
        swallow(link, port)
        time.sleep(1.0)
        before, sent = device.counters()["lanes"], stream.sent
        time.sleep(9.0)
        after = device.counters()["lanes"]
        carried = [b["flowlets"] - a["flowlets"] for a, b in zip(before, after, strict=True)]
        print(f"while lane 1 was dead: {stream.sent - sent} messages, flowlets by lane {carried}")
        assert stream.sent > sent
        assert carried[1] == 0
        assert after[1]["timeouts"] > before[1]["timeouts"]  # it is tried again and again
        link.far("ip", "rule", "delete", "pref", "10")
        until = time.monotonic() + TIMEOUT_S
        while device.counters()["lanes"][1]["flowlets"] < after[1]["flowlets"] + 10 and time.monotonic() < until:
            time.sleep(0.01)
        again = device.counters()["lanes"][1]
        stream.stop()
    assert again["flowlets"] >= after[1]["flowlets"] + 10
    assert again["port"] == port
