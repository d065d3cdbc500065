# SPDX-License-Identifier: Apache-2.0
"""Packets over IPv6 are RoCEv2 according to independent tools: headers by Scapy, checksums by Scapy and zlib."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6

from .exchange import ETH_P_IPV6, Exchange, exchanged
from .link import FAR_IPV6, NEAR_IPV6

pytestmark = pytest.mark.sandboxed

TRAFFIC_CLASS = 0x68
ECT0 = 0x02  # both ends count congestion marks
IP_UDP_BYTES = 48


def expected_icrc(packet: bytes) -> int:
    masked = bytearray(packet[:-4])
    masked[0] |= 0x0F  # traffic class
    masked[1:4] = b"\xff\xff\xff"  # traffic class, flow label
    masked[7] = 0xFF  # hop limit
    masked[46:48] = b"\xff\xff"  # checksum
    masked[52] = 0xFF  # resv8a
    return zlib.crc32(b"\xff" * 8 + masked)


@pytest.fixture(scope="module")
def exchange() -> Exchange:
    return exchanged(NEAR_IPV6, FAR_IPV6, ETH_P_IPV6, traffic_class=TRAFFIC_CLASS)


def sent(packets: list[bytes]) -> list[IPv6]:
    return [packet for packet in map(IPv6, packets) if packet.src == NEAR_IPV6]


def test_every_counted_packet_was_captured(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, lanes = exchange
    requests = [packet for packet in sent(packets) if packet[BTH].opcode != 0x11]
    assert len(requests) == sum(lane["tx_packets"] for lane in lanes) > 70
    assert {packet[UDP].sport for packet in requests} <= {lane["port"] for lane in lanes}


def test_every_checksum_is_right(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, _ = exchange
    for raw in packets:
        assert struct.unpack("<I", raw[-4:])[0] == expected_icrc(raw)
        packet = IPv6(raw)
        assert packet[UDP].chksum != 0
        assert struct.pack(">I", packet[BTH].icrc) == raw[-4:]
        # Scapy computes its own from the fields that it has dissected.
        assert packet[BTH].compute_icrc(b"") == raw[-4:]


def test_scapy_dissects_every_packet_as_intended(exchange: tuple[list[bytes], list[dict[str, int]]]) -> None:
    packets, _ = exchange
    psns: dict[tuple[str, int], list[int]] = defaultdict(list)
    opcodes = set()
    labels: dict[tuple[str, int], set[int]] = defaultdict(set)
    for raw in packets:
        packet = IPv6(raw)
        bth = packet[BTH]
        assert packet[UDP].dport == 4791
        assert packet[UDP].sport >= 0xC000
        assert {packet.src, packet.dst} == {NEAR_IPV6, FAR_IPV6}
        assert len(raw) == IP_UDP_BYTES - 8 + packet.plen
        assert (bth.version, bth.pkey, bth.solicited, bth.migreq) == (0, 0xFFFF, 0, 1)
        assert packet.tc == (TRAFFIC_CLASS if packet.src == NEAR_IPV6 else 0) | ECT0
        labels[packet.src, packet[UDP].sport].add(packet.fl)
        opcodes.add(bth.opcode)
        if bth.opcode != 0x11:
            psns[packet.src, bth.dqpn].append(bth.psn)
    assert opcodes == {0x04, 0x06, 0x07, 0x08, 0x09, 0x0B, 0x11}
    for sequence in psns.values():
        # A lane probes with packets that it has sent before, where the machine is slow to acknowledge.
        first, once = sequence[0], list(dict.fromkeys(sequence))
        assert [(psn - first) % 2**24 for psn in once] == list(range(len(once)))
    assert all(len(of_port) == 1 for of_port in labels.values())  # switches that hash the label keep a lane's order
    assert len(set.union(*labels.values())) > 1
