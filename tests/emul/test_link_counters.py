# SPDX-License-Identifier: Apache-2.0
"""Counters of switch ports as differences of interface counters."""

from emul import LinkCounters
from emul.netlink import InterfaceCounters


def test_counters_are_differences_from_a_base_reading() -> None:
    first = LinkCounters.of(InterfaceCounters(rx_bytes=10, rx_packets=1, tx_bytes=200, tx_packets=2), dropped=3)
    later = LinkCounters.of(InterfaceCounters(rx_bytes=40, rx_packets=4, tx_bytes=900, tx_packets=9), dropped=5)
    assert later.since(first) == LinkCounters(tx_bytes=700, tx_packets=7, rx_bytes=30, rx_packets=3, dropped=2)
