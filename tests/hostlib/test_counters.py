# SPDX-License-Identifier: Apache-2.0
"""Counters equal the traffic that was sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.ports import free_ports

from .conftest import DEADLINE_S, NO_SPURIOUS_RETRANSMITS, A, B, Pair, counters_once_acknowledged


def total(counters: dict[str, Any], name: str) -> int:
    return sum(lane[name] for lane in counters["lanes"])


@pytest.mark.parametrize("size", [4097, 65_536, 1_000_003])
@pytest.mark.parametrize("flowlet", [4096, 5000, 65_536])
def test_the_number_of_flowlets_is_the_size_over_s(make_pair: Callable[..., Pair], size: int, flowlet: int) -> None:
    pair = make_pair(flowlet_bytes=flowlet, path_mtu=4096, **NO_SPURIOUS_RETRANSMITS)
    assert pair.exchange(bytes(size)) == bytes(size)
    in_packets = math.ceil(flowlet / 4096) * 4096
    sent = counters_once_acknowledged(pair.one, math.ceil(size / in_packets))
    received = pair.two.counters()
    assert total(sent, "flowlets") == math.ceil(size / in_packets)
    assert total(sent, "tx_bytes") == size
    assert total(sent, "tx_packets") == math.ceil(size / 4096)
    assert total(received, "rx_bytes") == size
    assert total(received, "rx_packets") == math.ceil(size / 4096)
    assert total(received, "flowlets") == 0
    assert total(received, "tx_packets") == total(sent, "rx_packets") == 1  # the advertisement of the receive
    for name in ("retransmits", "timeouts", "naks", "rnr", "duplicates", "out_of_order", "moves"):
        assert total(sent, name) == total(received, name) == 0, name
    assert set(sent["discards"].values()) == set(received["discards"].values()) == {0}


def test_all_lanes_are_listed_and_used(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(lanes=8, flowlet_bytes=4096)
    pair.exchange(bytes(64 * 4096))
    lanes = pair.one.counters()["lanes"]
    assert [lane["lane"] for lane in lanes] == list(range(8))
    assert {lane["peer"] for lane in lanes} == {B}
    assert {lane["port_method"] for lane in lanes} == {"socket"}
    assert len({lane["qpn"] for lane in lanes}) == 8
    assert all(lane["flowlets"] > 0 for lane in lanes)
    assert all(lane["rtt_s"] >= lane["min_rtt_s"] * 0.99 > 0 for lane in lanes)
    assert {lane["peer"] for lane in pair.two.counters()["lanes"]} == {A}


def test_pinned_lanes_use_their_ports(make_pair: Callable[..., Pair]) -> None:
    *there, back = free_ports(4)
    pair = make_pair(policy="pinned", ports={B: there, A: [back]}, lanes=4)
    pair.exchange(bytes(200_000))
    assert [lane["port"] for lane in pair.one.counters()["lanes"]] == [*there, there[0]]
    assert [lane["port"] for lane in pair.two.counters()["lanes"]] == [back] * 4


def test_a_small_path_mtu_makes_more_packets(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(path_mtu=256, **NO_SPURIOUS_RETRANSMITS)
    pair.exchange(bytes(10_000))
    assert total(pair.one.counters(), "tx_packets") == math.ceil(10_000 / 256)


def test_a_line_rate_paces_all_lanes_together(make_pair: Callable[..., Pair]) -> None:
    # Pacing counts whole frames, so payload runs below the rate; a burst of some packets leaves at once.
    pair = make_pair(line_rate_bps=50e6)
    size = 2_000_000
    start = time.monotonic()
    receiving = pair.back.recv(bytearray(size))
    pair.to.send(bytes(size)).wait(DEADLINE_S)
    receiving.wait(DEADLINE_S)
    assert size * 8 / (time.monotonic() - start) < 55e6


def test_a_fixed_window_is_the_window_of_every_lane(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(lanes=2, congestion_control="fixed_window", window_packets=9)
    message = bytes(range(256)) * 4096
    assert pair.exchange(message) == message
    assert {lane["window"] for lane in pair.one.counters()["lanes"]} == {9.0}
