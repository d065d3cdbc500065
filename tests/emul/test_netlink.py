# SPDX-License-Identifier: Apache-2.0
"""Parsing what the kernel says about counters."""

from __future__ import annotations

import struct

import pytest

from emul.netlink import interface_counters, root_qdisc_drops

TC_H_ROOT = 0xFFFFFFFF
RTM_NEWQDISC = 36
DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def qdisc(index: int, parent: int, drops: int) -> bytes:
    queue = attribute(3, struct.pack("=IIIII", 9, 999, drops, 1, 2))
    body = struct.pack("=BxxxiIII", 0, index, 5 << 16, parent, 0)
    body += attribute(1, b"tbf\0") + attribute(7, attribute(1, bytes(16)) + queue)
    return struct.pack("=IHHII", 16 + len(body), RTM_NEWQDISC, 2, 1, 0) + body


def test_drops_are_those_of_root_qdiscs() -> None:
    messages = qdisc(4, TC_H_ROOT, 17) + qdisc(4, 5 << 16 | 1, 99) + qdisc(6, TC_H_ROOT, 0)
    assert root_qdisc_drops(messages) == ({4: 17, 6: 0}, False)
    assert root_qdisc_drops(messages + DONE) == ({4: 17, 6: 0}, True)


def test_an_error_of_the_kernel_is_raised() -> None:
    with pytest.raises(OSError, match="refused to list qdiscs"):
        root_qdisc_drops(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1))


@pytest.mark.parametrize("cut", [0, 3, 17, 40, 60])
def test_a_truncated_dump_does_not_hang_or_crash(cut: int) -> None:
    assert root_qdisc_drops(qdisc(4, TC_H_ROOT, 17)[:cut]) == ({}, False)


def test_interface_counters_are_read_from_the_kernels_table() -> None:
    text = (
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
        "    lo:  10 1 0 0 0 0 0 0  10 1 0 0 0 0 0 0\n"
        "leaf1-eth1:15002836    3622    0    0    0     0          0         0      586       7 0 0 0 0 0 0\n"
    )
    seen = interface_counters(text)["leaf1-eth1"]
    assert (seen.rx_bytes, seen.rx_packets, seen.tx_bytes, seen.tx_packets) == (15002836, 3622, 586, 7)
