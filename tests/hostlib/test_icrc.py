# SPDX-License-Identifier: Apache-2.0
"""The engine's ICRC equals zlib's CRC-32 of the masked packet (IBTA, annex A17) and Scapy's."""

from __future__ import annotations

import ipaddress
import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from hostlib import _engine

addresses = st.integers(0, 2**32 - 1).map(lambda n: str(ipaddress.IPv4Address(n)))
addresses_v6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address).filter(lambda address: address.ipv4_mapped is None)
ports = st.integers(0, 65535)


def masked_crc(src: str, dst: str, src_port: int, dst_port: int, ip_id: int, transport: bytes) -> int:
    length = len(transport) + 4
    ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, 28 + length, ip_id, 0x4000, 0xFF, 17, 0xFFFF)
    ip += ipaddress.IPv4Address(src).packed + ipaddress.IPv4Address(dst).packed
    udp = struct.pack(">HHHH", src_port, dst_port, 8 + length, 0xFFFF)
    return zlib.crc32(b"\xff" * 8 + ip + udp + transport[:4] + b"\xff" + transport[5:])


@given(addresses, addresses, ports, ports, ports, st.binary(min_size=12, max_size=5000))
def test_icrc_is_the_crc_of_the_masked_packet(
    src: str, dst: str, src_port: int, dst_port: int, ip_id: int, transport: bytes
) -> None:
    ours = _engine.icrc(src=src, dst=dst, src_port=src_port, dst_port=dst_port, ip_id=ip_id, transport=transport)
    assert ours == masked_crc(src, dst, src_port, dst_port, ip_id, transport)


@given(st.integers(0, 0xFFFFFF), st.integers(0, 0xFFFFFF), ports, st.binary(max_size=64))
def test_icrc_equals_scapys(qpn: int, psn: int, ip_id: int, payload: bytes) -> None:
    payload = payload[: len(payload) // 4 * 4]
    packet = (
        IP(src="10.0.0.1", dst="10.0.0.2", id=ip_id, flags="DF")
        / UDP(sport=0xC001, dport=4791)
        / BTH(opcode="RC_SEND_ONLY", dqpn=qpn, psn=psn, ackreq=1)
    )
    if payload:
        packet /= Raw(payload)
    datagram = bytes(packet)[28:]
    if not payload:  # Scapy reserves space for the ICRC only after a payload or with an explicit ICRC
        datagram = datagram[:12] + datagram[-4:]
    theirs = IP(bytes(packet))[BTH].icrc if payload else None
    ours = _engine.icrc(
        src="10.0.0.1", dst="10.0.0.2", src_port=0xC001, dst_port=4791, ip_id=ip_id, transport=datagram[:-4]
    )
    assert theirs is None or struct.pack("<I", ours) == struct.pack(">I", theirs)


def masked_crc_v6(src: ipaddress.IPv6Address, dst: ipaddress.IPv6Address, flow: bytes, transport: bytes) -> int:
    length = len(transport) + 4
    ip = struct.pack(">IHBB", 0x6FFFFFFF, 8 + length, 17, 0xFF) + src.packed + dst.packed
    udp = flow + struct.pack(">HH", 8 + length, 0xFFFF)
    return zlib.crc32(b"\xff" * 8 + ip + udp + transport[:4] + b"\xff" + transport[5:])


@given(addresses_v6, addresses_v6, ports, ports, ports, st.binary(min_size=12, max_size=5000))
def test_icrc_over_ipv6_is_the_crc_of_the_masked_packet(
    src: ipaddress.IPv6Address,
    dst: ipaddress.IPv6Address,
    src_port: int,
    dst_port: int,
    ip_id: int,
    transport: bytes,
) -> None:
    ours = _engine.icrc(
        src=str(src), dst=str(dst), src_port=src_port, dst_port=dst_port, ip_id=ip_id, transport=transport
    )
    assert ours == masked_crc_v6(src, dst, struct.pack(">HH", src_port, dst_port), transport)


@given(
    st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
    st.integers(0, 255),
    st.integers(0, 0xFFFFF),
    st.binary(min_size=4, max_size=64),
)
def test_icrc_over_ipv6_equals_scapys(qpn: int, psn: int, traffic_class: int, label: int, payload: bytes) -> None:
    payload = payload[: len(payload) // 4 * 4]
    packet = (
        IPv6(src="fd00::1", dst="2001:db8::2", tc=traffic_class, fl=label)
        / UDP(sport=0xC001, dport=4791)
        / BTH(opcode="RC_SEND_ONLY", dqpn=qpn, psn=psn, ackreq=1)
        / Raw(payload)
    )
    datagram = bytes(packet)[48:]
    ours = _engine.icrc(
        src="fd00::1", dst="2001:db8::2", src_port=0xC001, dst_port=4791, ip_id=0, transport=datagram[:-4]
    )
    assert struct.pack("<I", ours) == datagram[-4:]
