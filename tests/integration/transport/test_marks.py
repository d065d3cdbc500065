# SPDX-License-Identifier: Apache-2.0
"""A link whose nftables mark packets (ECN) and drop none: every packet with ECT(0) while a rule stands, else none.

The tests compare congestion windows. Delay cannot reduce these here, and loss only for a moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from hostlib import Connection, Device

from .link import FAR, FAR_ADDRESS, FAR_IPV6, NEAR, NEAR_IPV6, Link, near_address, run

pytestmark = pytest.mark.sandboxed

TIMEOUT_S = 120.0
MESSAGE_BYTES = 64 * 1024
MESSAGES = 500  # at most, until the windows have followed
LANES = 2
QUEUE_BYTES = 1 << 40  # no delay of the network is too long
SMALL = 4.0  # packets
ECN_BITS = 0x03


def mark_packets() -> None:
    rules = [
        "table netdev marks {",
        "chain leaves {",
        f'type filter hook egress device "{NEAR}" priority 0; policy accept;',
        "ip protocol udp ip ecn ect0 ip ecn set ce",
        "ip6 nexthdr udp ip6 ecn ect0 ip6 ecn set ce",
        "}",
        "}",
    ]
    run("nft", "\n".join(rules))


def send(connection: Connection, messages: int) -> None:
    for _ in range(messages):
        assert connection.send(bytes(MESSAGE_BYTES)).wait(TIMEOUT_S) == MESSAGE_BYTES


def windows(device: Device) -> list[float]:
    return [lane["window"] for lane in device.counters()["lanes"]]


def send_until(connection: Connection, reached: Callable[[], bool]) -> bool:
    for _ in range(MESSAGES):
        send(connection, 1)
        if reached():
            return True
    return False


def total(device: Device, counter: str) -> int:
    return sum(lane[counter] for lane in device.counters()["lanes"])


def dropped(link: Link) -> int:
    """Packets that either end of the link has dropped."""
    (near,) = json.loads(run("ip", "-s", "-j", "link", "show", NEAR))
    (far,) = json.loads(link.far("ip", "-s", "-j", "link", "show", FAR))
    return sum(end["stats64"][way]["dropped"] for end in (near, far) for way in ("rx", "tx"))


@pytest.mark.parametrize(("near", "far"), [(near_address(0), FAR_ADDRESS), (NEAR_IPV6, FAR_IPV6)], ids=["IPv4", "IPv6"])
def test_marks_make_windows_small_without_loss(near: str, far: str) -> None:
    with Link(senders=1, lanes=LANES, connections=1, message_bytes=MESSAGE_BYTES, far_address=far) as link:
        handle = link.open()
        before = dropped(link)  # the kernel's first packet of IPv6, where an end came up after the other
        with Device(near, lanes=LANES, seed=1, queue_bytes=QUEUE_BYTES) as device:
            connection = device.connect(handle)

            def large() -> bool:
                return max(windows(device)) > 4 * SMALL  # of a lane in use

            assert send_until(connection, large), windows(device)
            assert total(device, "tx_marked") == 0
            mark_packets()
            assert send_until(connection, lambda: max(windows(device)) < SMALL), windows(device)
            assert 0 < total(device, "tx_marked") <= total(device, "tx_packets")
            run("nft", "delete", "table", "netdev", "marks")
            assert send_until(connection, large), windows(device)
            assert dropped(link) == before


@pytest.mark.parametrize("traffic_class", [0, 0x68, 0x01, 0x69])
def test_packets_with_ecn_bits_of_the_user_keep_them(traffic_class: int) -> None:
    with Link(senders=1, lanes=LANES, connections=1, message_bytes=MESSAGE_BYTES) as link:
        handle = link.open()
        mark_packets()  # not those with ECT(1), 0x01
        with Device(near_address(0), lanes=LANES, seed=1, traffic_class=traffic_class) as device:
            send(device.connect(handle), 3)
            assert (total(device, "tx_marked") > 0) == (traffic_class & ECN_BITS == 0)
