# SPDX-License-Identifier: Apache-2.0
"""Increasing fault rates: every message arrives exactly once and intact. Goodput is printed (-s)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from hostlib import Faults

from .conftest import DEADLINE_S, Pair

STEPS = (
    *((f"drop-{rate:.2%}", Faults(drop=rate)) for rate in (0.0001, 0.001, 0.01, 0.1, 0.2)),
    *((f"duplicate-{rate:.0%}", Faults(duplicate=rate)) for rate in (0.1, 1.0)),
    *((f"reorder-{rate:.0%}-to-64", Faults(reorder=rate, reorder_packets=64)) for rate in (0.01, 0.1)),
    ("corrupt-20%", Faults(corrupt=0.2)),
    ("all-5%", Faults(drop=0.05, duplicate=0.05, reorder=0.05, reorder_packets=64, corrupt=0.05)),
)
MESSAGES = 40
MAX_BYTES = 40_000


@pytest.mark.parametrize("faults", [faults for _, faults in STEPS], ids=[name for name, _ in STEPS])
def test_every_message_arrives_once_and_intact(make_pair: Callable[..., Pair], faults: Faults) -> None:
    pair = make_pair(min_timeout_s=0.005, flowlet_bytes=16_384, path_mtu=1024, retry_time_s=DEADLINE_S, faults=faults)
    draw = random.Random(4)
    start = time.monotonic()
    transfers = []
    for tag in range(MESSAGES):
        message = draw.randbytes(draw.randrange(MAX_BYTES))
        buffer = bytearray(len(message) + 1)  # one byte more than the message, which must stay unchanged
        sender, receiver = (pair.to, pair.back) if tag % 2 else (pair.back, pair.to)
        transfers.append((receiver.recv(buffer, tag), sender.send(message, tag), buffer, message))
    for receiving, sending, _, message in transfers:
        assert sending.wait(DEADLINE_S) == len(message)
        assert receiving.wait(DEADLINE_S) == len(message)
    elapsed = time.monotonic() - start
    # Late, duplicate and reordered packets must not change finished messages.
    for _, _, buffer, message in transfers:
        assert buffer == message + b"\0"
    counters = [device.counters() for device in (pair.one, pair.two)]
    for c in counters:
        assert c["messages"] == {
            "sends": MESSAGES // 2,
            "receives": MESSAGES // 2,
            "send_bytes": sum(len(m) for tag, (_, _, _, m) in enumerate(transfers) if tag % 2 == (c is counters[0])),
            "receive_bytes": sum(len(m) for tag, (_, _, _, m) in enumerate(transfers) if tag % 2 != (c is counters[0])),
            "failed": 0,
            "eager_sends": 0,  # a message is short only by chance, and eager ones follow several short ones
            "eager_kept": 0,
            "eager_waits": 0,
        }
    packets = sum(lane["rx_packets"] for c in counters for lane in c["lanes"])
    injected = sum(c["discards"]["injected"] for c in counters)
    goodput_bps = 8 * sum(len(message) for _, _, _, message in transfers) / elapsed
    print(f"{goodput_bps / 1e6:.1f} Mbit/s, {injected} faults, {packets} packets")
    most = max(faults.drop, faults.duplicate, faults.reorder, faults.corrupt)
    assert injected > 0.5 * most * packets or packets * most < 20  # with few packets there may be no fault
