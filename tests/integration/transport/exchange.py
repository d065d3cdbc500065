# SPDX-License-Identifier: Apache-2.0
"""The packets of a few messages over a link, captured as the wire has them."""

from __future__ import annotations

import socket
import threading
from typing import Any

from hostlib import Device

from .link import FAR, NEAR, Link, run

ETH_P_IP = 0x0800
ETH_P_IPV6 = 0x86DD
SO_RCVBUFFORCE = 33
TIMEOUT_S = 30.0
MESSAGES = (0, 1, 7, 4096, 5000, 300_000)


class Capture(threading.Thread):
    """UDP packets of one family at the near end, both ways, from the IP header on."""

    def __init__(self, family: int) -> None:
        super().__init__()
        self._family = family
        self.packets: list[bytes] = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))  # ETH_P_ALL
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.bind((NEAR, 3))
        self._socket.settimeout(0.3)
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            try:
                packet, origin = self._socket.recvfrom(1 << 16)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            if origin[1] == self._family:
                self.packets.append(packet)

    def stop(self) -> list[bytes]:
        self._ended.set()
        self.join()
        self._socket.close()
        protocol = 9 if self._family == ETH_P_IP else 6
        return [packet for packet in self.packets if packet[protocol] == socket.IPPROTO_UDP]


Exchange = tuple[list[bytes], list[dict[str, int]]]
"""The captured packets, and the sender's lanes."""


def exchanged(near: str, far: str, family: int, **options: Any) -> Exchange:
    """Send the messages over 4 lanes from one address to the other. `options` are further ones of the sender."""
    with Link(senders=1, lanes=4, connections=1, message_bytes=max(MESSAGES), far_address=far) as link:
        # Batches are cut in software before they reach the interface, as an ordinary NIC's driver would see them.
        run("ethtool", "-K", NEAR, "tx-udp-segmentation", "off")
        link.far("ethtool", "-K", FAR, "tx-udp-segmentation", "off")
        handle = link.open()
        with Device(near, lanes=4, seed=1, min_timeout_s=20, flowlet_bytes=65_536, **options) as device:
            capture = Capture(family)
            connection = device.connect(handle)
            for size in MESSAGES:
                assert connection.send(bytes(range(256)) * (size // 256) + bytes(size % 256)).wait(TIMEOUT_S) == size
            lanes = device.counters()["lanes"]
            packets = capture.stop()
    return packets, lanes
