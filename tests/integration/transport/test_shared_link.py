# SPDX-License-Identifier: Apache-2.0
"""Flows of one lane on one shaped link fill it and share it evenly; bursts and short messages beside them."""

from __future__ import annotations

import time
from statistics import median

import pytest

from hostlib import Device

from .flows import PACKET_BYTES, measure, sending
from .link import Link, near_address
from .looks import FAST, FAST_WARM_UP_S, MESSAGE_BYTES, check_filled_and_shared, queue_bound_s

pytestmark = [pytest.mark.sandboxed, pytest.mark.paced]

TIMEOUT_S = 60.0


@pytest.mark.parametrize("flows", [2, 8, 32])
def test_a_shared_link_is_filled_and_shared(flows: int) -> None:
    check_filled_and_shared(flows, 1, FAST)


def test_incast_into_a_small_buffer_completes() -> None:
    """16 hosts send to one at the same moment, into a buffer of 64 packets."""
    flows, size = 16, 512 * 1024
    with Link(senders=flows, lanes=4, connections=flows, message_bytes=size) as link:
        link.shape(FAST, queue_bytes=64 * PACKET_BYTES)
        handle = link.open()
        devices = [Device(near_address(i), lanes=4, line_rate_bps=FAST, seed=i) for i in range(flows)]
        connections = [device.connect(handle, TIMEOUT_S) for device in devices]
        start = time.monotonic()
        requests = [connection.send(bytes(size)) for connection in connections]
        assert [request.wait(TIMEOUT_S) for request in requests] == [size] * flows
        took_s = time.monotonic() - start
        drops = link.queue()["drops"]
        for device in devices:
            device.close()
    ideal_s = flows * size * 8 / FAST
    print(f"incast of {flows}: {took_s / ideal_s:.2f} of the ideal, {drops} packets dropped")
    assert took_s < 3 * ideal_s


def test_a_mouse_beside_elephants_waits_only_for_the_queue() -> None:
    elephants, lanes = 4, 8
    with Link(senders=elephants + 1, lanes=lanes, connections=elephants + 1, message_bytes=MESSAGE_BYTES) as link:
        link.shape(FAST)
        with sending(link, elephants, lanes, FAST, MESSAGE_BYTES) as devices:
            time.sleep(FAST_WARM_UP_S)
            with Device(near_address(elephants), lanes=lanes, line_rate_bps=FAST, seed=9) as device:
                mouse = device.connect(link.handle, TIMEOUT_S)
                latencies = []
                for _ in range(100):
                    start = time.monotonic()
                    mouse.send(b"squeak").wait(TIMEOUT_S)
                    latencies.append(time.monotonic() - start)
                    time.sleep(0.01)
            outcome = measure(link, devices, FAST, 1)
    bound_s = queue_bound_s(elephants, lanes, FAST)
    latencies.sort()
    print(f"a mouse: median {1e3 * median(latencies):.1f} ms, worst of 100 {1e3 * latencies[-1]:.1f} ms; {outcome}")
    assert median(latencies) <= bound_s
