# SPDX-License-Identifier: Apache-2.0
"""Every message arrives intact when packets are lost, duplicated, reordered or corrupted in both directions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hostlib import Faults

from .conftest import DEADLINE_S, NO_SPURIOUS_RETRANSMITS, Pair

KINDS = ("drop", "duplicate", "reorder", "corrupt")
CASES = [({kind: rate}, f"{kind}-{rate:.0%}") for kind in KINDS for rate in (0.01, 0.05)]
CASES += [(dict.fromkeys(KINDS, rate), f"all-{rate:.0%}") for rate in (0.01, 0.05)]


@pytest.mark.parametrize("rates", [case[0] for case in CASES], ids=[case[1] for case in CASES])
def test_every_message_arrives_intact(make_pair: Callable[..., Pair], rates: dict[str, float]) -> None:
    pair = make_pair(
        min_timeout_s=0.005,
        flowlet_bytes=16_384,
        path_mtu=1024,
        faults=Faults(**rates, seed=1),
        two={"faults": Faults(**rates, seed=2)},
    )
    draw = random.Random(3)
    transfers = []
    for tag in range(30):
        message = draw.randbytes(draw.randrange(60_000))
        buffer = bytearray(len(message))
        sender, receiver = (pair.to, pair.back) if tag % 2 else (pair.back, pair.to)
        transfers.append((receiver.recv(buffer, tag), sender.send(message, tag), buffer, message))
    for receiving, sending, buffer, message in transfers:
        assert sending.wait(DEADLINE_S) == len(message)
        assert receiving.wait(DEADLINE_S) == len(message)
        assert buffer == message
    one, two = pair.one.counters(), pair.two.counters()
    assert one["discards"]["injected"] > 0
    assert two["discards"]["injected"] > 0
    if "corrupt" in rates:  # every flipped bit is detected
        corrupted = sum(c["discards"][name] for c in (one, two) for name in ("icrc", "malformed", "unknown_qp"))
        assert 0 < corrupted <= one["discards"]["injected"] + two["discards"]["injected"]
    else:
        assert one["discards"]["icrc"] == two["discards"]["icrc"] == 0
    retransmits = sum(lane["retransmits"] for c in (one, two) for lane in c["lanes"])
    if "drop" in rates or "corrupt" in rates:
        assert retransmits > 0


def test_the_same_messages_without_faults_retransmit_nothing(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(flowlet_bytes=16_384, path_mtu=1024, **NO_SPURIOUS_RETRANSMITS)
    for tag in range(30):
        message = random.Random(tag).randbytes(30_000)
        assert pair.exchange(message, tag) == message
    for counters in (pair.one.counters(), pair.two.counters()):
        assert sum(lane["retransmits"] for lane in counters["lanes"]) == 0
        assert counters["discards"]["injected"] == 0
