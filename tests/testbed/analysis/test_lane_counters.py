# SPDX-License-Identifier: Apache-2.0
"""Counters of a lane over time, and of two sets of queue pairs."""

from __future__ import annotations

from testbed.analysis.observations import LaneCounters


def counters(tx_bytes: int, tx_packets: int = 1) -> LaneCounters:
    return LaneCounters(
        peer="10.0.0.2",
        lane=0,
        port=50_000,
        port_method="socket",
        tx_bytes=tx_bytes,
        tx_packets=tx_packets,
        flowlets=1,
        retransmits=0,
        timeouts=0,
        rtt_s=1e-3,
    )


def test_counts_since_an_earlier_reading_and_of_two_sets_of_queue_pairs() -> None:
    both = counters(700, 3).plus(counters(40))
    assert (both.tx_bytes, both.tx_packets, both.flowlets) == (740, 4, 2)
    assert both.since(counters(40)).tx_bytes == 700
    assert counters(5).plus(None) == counters(5).since(None) == counters(5)
