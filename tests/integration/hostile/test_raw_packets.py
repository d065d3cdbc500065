# SPDX-License-Identifier: Apache-2.0
"""Packets that only a raw socket can send: fragments, forged addresses, IP options, contradictory headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.contrib.roce import BTH, CNPPadding
from scapy.layers.inet import IP, UDP, IPOption_LSRR, IPOption_NOP, IPOption_RR, fragment
from scapy.packet import Raw

from ...hostlib import hostile_peer as hp
from ...hostlib.hostile_scene import HONEST, HOSTILE, STRANGER, VICTIM, Scene, Target, open_devices, replaced

pytestmark = pytest.mark.sandboxed

DATA = b"x" * 800


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Any, ...]]:
    with open_devices() as devices:
        yield devices


@pytest.fixture
def scene(devices: tuple[Any, ...]) -> Iterator[Scene]:
    with Scene(*devices) as scene:
        yield scene


@pytest.fixture
def raw() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:  # the IP header is ours
        yield raw


def inject(raw: socket.socket, *packets: IP) -> None:
    for packet in packets:
        raw.sendto(bytes(packet), (VICTIM, 0))


def ip(scene: Scene, request: BTH, *, udp: dict[str, Any] | None = None, **fields: Any) -> IP:
    """The whole packet around a request of the hostile peer, with the ICRC that belongs to an ordinary header."""
    ports = {"sport": scene.peer.port, "dport": scene.victim.udp_port}
    header = IP(**{"src": HOSTILE, "dst": VICTIM, "id": 0, "flags": "DF", **fields})
    return header / UDP(**{**ports, **(udp or {})}) / Raw(scene.peer.packet(request))


def wrong(target: Target) -> hp.Advertisement:
    return replaced(target.advertisement, rkey=target.advertisement.rkey ^ 1)


def answer(scene: Scene) -> tuple[int, int]:
    packet = scene.peer.receive()
    return packet[hp.AETH].syndrome, packet.psn - scene.peer.lanes[0].psn


def notified(scene: Scene) -> bool:
    """Whether the next answer is a congestion notification."""
    packet = scene.peer.receive()
    return CNPPadding in packet and packet.becn == 1 and bytes(packet[CNPPadding]) == bytes(16)


def test_packets_with_a_forged_source_are_ignored(scene: Scene, raw: socket.socket) -> None:
    target = scene.target()
    sources = [HONEST, STRANGER, VICTIM, "127.255.255.254"]
    with scene.discards("wrong_source", len(sources)):
        for source in sources:
            packet = ip(scene, scene.peer.write(target.advertisement, DATA), src=source)
            inject(raw, packet)
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize("size", [8, 24, 200, 808])
def test_fragments_are_reassembled_or_dropped(scene: Scene, raw: socket.socket, size: int) -> None:
    target = scene.target()
    whole = ip(scene, scene.peer.write(wrong(target), DATA), id=7, flags=0)
    parts = fragment(whole, fragsize=size)
    assert len(parts) > 1
    inject(raw, *parts[:-1])  # never whole
    lone = ip(scene, scene.peer.write(target.advertisement, DATA), id=8, flags=0)
    inject(raw, *fragment(lone, fragsize=size)[1:])  # no first one, so no ports
    assert scene.lane()["rx_packets"] == 0
    inject(raw, *parts[::-1])  # in any order
    assert answer(scene) == (hp.NAK_ACCESS, 0)
    assert scene.lane()["rx_packets"] == 1
    assert target.holds()
    assert scene.still_works(target)


def test_overlapping_fragments_are_dropped(scene: Scene, raw: socket.socket) -> None:
    target = scene.target()
    first, *rest = fragment(ip(scene, scene.peer.write(target.advertisement, DATA), id=9, flags=0), fragsize=400)
    again = rest[0].copy()
    again.frag -= 10
    inject(raw, first, again, *rest)
    assert scene.lane()["rx_packets"] == 0  # the kernel throws all of them away
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize(
    "option",
    [IPOption_NOP(), IPOption_RR(routers=["0.0.0.0"] * 3), IPOption_LSRR(routers=[VICTIM])],
    ids=["nop", "record-route", "source-route"],
)
def test_packets_with_ip_options(scene: Scene, raw: socket.socket, option: Any) -> None:
    target = scene.target()
    inject(raw, ip(scene, scene.peer.write(wrong(target), DATA), options=[option]))
    assert target.holds()
    assert scene.honest_traffic.continues()
    assert scene.lane()["rx_packets"] <= 1


def test_fields_that_switches_may_change_are_ignored(scene: Scene, raw: socket.socket) -> None:
    target = scene.target()
    for fields in ({"tos": 0x02}, {"tos": 0xFC}, {"ttl": 1}, {"udp": {"chksum": 0}}):
        inject(raw, ip(scene, scene.peer.write(wrong(target), DATA), **fields))
        assert answer(scene) == (hp.NAK_ACCESS, 0)
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize("tos", [0x03, 0xFF])
def test_a_congestion_mark_changes_nothing_but_that_a_notification_comes(
    scene: Scene, raw: socket.socket, tos: int
) -> None:
    target = scene.target()
    inject(raw, ip(scene, scene.peer.write(wrong(target), DATA), tos=tos))
    assert notified(scene)
    assert answer(scene) == (hp.NAK_ACCESS, 0)
    assert target.holds()
    assert scene.still_works(target)


def test_wrong_udp_lengths_and_checksums(scene: Scene, raw: socket.socket) -> None:
    target = scene.target()
    packet = scene.peer.write(target.advertisement, DATA)
    length = len(scene.peer.packet(packet)) + 8
    inject(raw, ip(scene, packet, udp={"chksum": 0x1234}))  # the kernel drops these
    for wrong_length in (0, 7, length + 1, 0xFFFF):
        inject(raw, ip(scene, packet, udp={"len": wrong_length, "chksum": 0}))
    before = sum(scene.victim.counters()["discards"].values())
    shorter = [8, 9, 24, length - 4, length - 1]  # the rest of the IP packet is not the datagram's
    for wrong_length in shorter:
        inject(raw, ip(scene, packet, udp={"len": wrong_length, "chksum": 0}))
    assert scene.honest_traffic.continues()
    assert sum(scene.victim.counters()["discards"].values()) == before + len(shorter)
    assert scene.lane()["rx_packets"] == 0
    assert target.holds()
    assert scene.still_works(target)
