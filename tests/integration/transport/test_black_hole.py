# SPDX-License-Identifier: Apache-2.0
"""A source port whose packets vanish: adaptive lanes leave it, others give up when the retry time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hostlib import Connection, Device, TransportError

from .link import FAR, Link, near_address

pytestmark = pytest.mark.sandboxed

PATIENCE_S = 60.0
MESSAGE_BYTES = 200_000


@pytest.fixture
def link() -> Iterator[Link]:
    with Link(senders=1, lanes=4, connections=1, message_bytes=MESSAGE_BYTES) as link:
        # Rules by port come before the table of local addresses, which is to be asked last.
        link.far("ip", "rule", "add", "pref", "200", "lookup", "local")
        link.far("ip", "rule", "delete", "pref", "0")
        yield link


def swallow(link: Link, port: int) -> None:
    """What comes from this UDP source port is not received any more."""
    link.far("ip", "rule", "add", "pref", "10", "iif", FAR, "ipproto", "udp", "sport", str(port), "blackhole")


def send_some(connection: Connection) -> None:
    """Enough messages at a time to keep every lane busy."""
    requests = [connection.send(bytes(MESSAGE_BYTES)) for _ in range(16)]
    assert all(request.wait(PATIENCE_S) == MESSAGE_BYTES for request in requests)


def send_until(connection: Connection, end: float) -> None:
    while time.monotonic() < end:
        send_some(connection)


def test_adaptive_lanes_leave_a_black_hole(link: Link) -> None:
    handle = link.open()
    with Device(near_address(0), lanes=4, policy="adaptive", seed=1, min_timeout_s=0.02) as device:
        connection = device.connect(handle)
        for _ in range(5):
            assert connection.send(bytes(MESSAGE_BYTES)).wait(PATIENCE_S) == MESSAGE_BYTES
        dead = [lane["port"] for lane in device.counters()["lanes"]][:2]
        for port in dead:
            swallow(link, port)
        lanes = device.counters()["lanes"]
        until = time.monotonic() + PATIENCE_S
        # Flowlets prefer the faster lanes, so it may take a while until both are tried again.
        while any(lane["port"] in dead for lane in lanes) and time.monotonic() < until:
            send_some(connection)
            lanes = device.counters()["lanes"]
        assert all(lane["port"] not in dead for lane in lanes)
        assert all(lane["moves"] >= 1 and lane["timeouts"] >= 1 for lane in lanes[:2])


def test_ecmp_lanes_stay_and_the_peer_is_given_up(link: Link) -> None:
    handle = link.open()
    with Device(near_address(0), lanes=4, seed=1, min_timeout_s=0.02, retry_time_s=1.0) as device:
        connection = device.connect(handle)
        assert connection.send(bytes(MESSAGE_BYTES)).wait(PATIENCE_S) == MESSAGE_BYTES
        swallow(link, device.counters()["lanes"][2]["port"])
        with pytest.raises(TransportError, match=r"lane 2 to 10\.99\.0\.100: the peer did not answer within the retry"):
            send_until(connection, time.monotonic() + PATIENCE_S)
