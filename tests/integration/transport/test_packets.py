# SPDX-License-Identifier: Apache-2.0
"""Packets on the wire are RoCEv2 according to independent tools: headers by Scapy, checksums by zlib.

test_ipv6_packets.py does the same for IPv6.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections import defaultdict

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP

from .exchange import ETH_P_IP, Exchange, exchanged
from .link import FAR_ADDRESS, near_address

pytestmark = pytest.mark.sandboxed


def expected_icrc(packet: bytes) -> int:
    masked = bytearray(packet[:-4])
    masked[1] = masked[8] = 0xFF  # type of service, time to live
    masked[10:12] = masked[26:28] = b"\xff\xff"  # checksums
    masked[32] = 0xFF  # resv8a
    return zlib.crc32(b"\xff" * 8 + masked)


@pytest.fixture(scope="module")
def exchange() -> Exchange:
    return exchanged(near_address(0), FAR_ADDRESS, ETH_P_IP)


def sent(packets: list[bytes]) -> list[bytes]:
    return [packet for packet in packets if packet[12:16] == socket.inet_aton(near_address(0))]


def test_every_counted_packet_was_captured(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, lanes = exchange
    requests = [packet for packet in sent(packets) if packet[28] != 0x11]
    assert len(requests) == sum(lane["tx_packets"] for lane in lanes) > 70
    assert {IP(packet)[UDP].sport for packet in requests} <= {lane["port"] for lane in lanes}
    assert sum(len(packet) > 4096 for packet in requests) >= 300_000 // 4096


def test_every_checksum_is_right(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, _ = exchange
    identifications = set()
    for packet in packets:
        assert struct.unpack("<I", packet[-4:])[0] == expected_icrc(packet)
        identifications.add(IP(packet).id)
    assert 0 in identifications
    assert len(identifications) > 5  # batches were among them: their segments are numbered
    assert max(identifications) < 64


def test_scapy_dissects_every_packet_as_intended(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, _ = exchange
    psns: dict[tuple[str, int], list[int]] = defaultdict(list)
    opcodes = set()
    for raw in packets:
        packet = IP(raw)
        bth = packet[BTH]
        assert packet[UDP].dport == 4791
        assert packet[UDP].sport >= 0xC000
        assert packet.flags == "DF"
        assert (packet.src, packet.dst) in {(near_address(0), FAR_ADDRESS), (FAR_ADDRESS, near_address(0))}
        assert (bth.version, bth.pkey, bth.solicited, bth.migreq) == (0, 0xFFFF, 0, 1)
        assert struct.pack(">I", bth.icrc) == raw[-4:]
        opcodes.add(bth.opcode)
        if bth.opcode != 0x11:
            psns[packet.src, bth.dqpn].append(bth.psn)
    # Advertisements and flowlet ends; flowlets of one and of several packets, with immediate data and without; ACKs.
    assert opcodes == {0x04, 0x06, 0x07, 0x08, 0x09, 0x0B, 0x11}
    for sequence in psns.values():
        # A lane probes with packets that it has sent before, where the machine is slow to acknowledge.
        first, once = sequence[0], list(dict.fromkeys(sequence))
        assert [(psn - first) % 2**24 for psn in once] == list(range(len(once)))


def test_flowlets_of_whole_packets_end_in_a_send(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, _ = exchange
    # Without the copies that probe: by opcode, QPN and PSN.
    once = {packet[28:29] + packet[33:36] + packet[37:40]: packet for packet in sent(packets)}.values()
    ends = [packet[40:-4] for packet in once if packet[28] == 0x04]
    assert len(ends) == sum(packet[28] == 0x08 for packet in once) == 300_000 // 65_536
    for end in ends:
        kind, version, _slot, flowlets, length = struct.unpack(">BBHHxxI", end)
        assert (kind, version, flowlets, length) == (2, 1, -(-300_000 // 65_536), 65_536)
