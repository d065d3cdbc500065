# SPDX-License-Identifier: Apache-2.0
"""Frames of a hostile peer about signs of life: the negotiation, asks, and what was not agreed on."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from hostlib import Device, Listener

from .hostile_scene import HonestTraffic, Scene, open_devices

SIGNS = 1 << 31
NIC = struct.pack(">HIII", 63, 0x02C9, 0x35, SIGNS)
"""The end of an endpoint: options of a NIC, and the offer of signs in their mask."""
ASK, SIGN = b"\x11\x01", b"\x11\x00"

Devices = tuple[Device, Device, Listener, HonestTraffic]


@pytest.fixture(scope="module")
def devices() -> Iterator[Devices]:
    with open_devices() as devices:
        yield devices


@pytest.mark.parametrize("mask", [0, 1, SIGNS >> 1, SIGNS, 0xFFFFFFFF], ids=hex)
def test_a_peer_that_offers_signs_is_answered_in_the_mask_alone(devices: Devices, mask: int) -> None:
    with Scene(*devices, offers=struct.pack(">HIII", 63, 0x02C9, 0x35, mask)) as scene:
        agreed = struct.pack(">HIII", 63, 0, 0, SIGNS)
        assert scene.peer.agreed == (agreed if mask & SIGNS else b"")
        assert scene.still_works(scene.target())


def test_an_ask_is_answered_and_a_sign_is_not(devices: Devices) -> None:
    with Scene(*devices, offers=NIC) as scene:
        scene.peer.send_frame(SIGN)
        scene.peer.send_frame(ASK)
        assert scene.peer.receive_frame() == SIGN
        scene.peer.send_frame(ASK)
        assert scene.peer.receive_frame() == SIGN
        assert scene.still_works(scene.target())


def test_a_flood_of_asks_gets_at_most_as_many_answers_and_keeps_nobody_else_waiting(devices: Devices) -> None:
    with Scene(*devices, offers=NIC) as scene:
        asks = 100_000
        scene.peer.send_frames([ASK] * asks)
        assert scene.honest_traffic.continues()
        scene.peer.send_frame(b"\x11\x02")  # ends the channel behind the answers
        answers = 0
        while (frame := scene.peer.receive_frame()) == SIGN:
            answers += 1
        assert frame == b"" or frame[0] == 3, frame
        assert 1 <= answers < asks
        assert scene.dropped()


@pytest.mark.parametrize("frame", [b"\x11", b"\x11\x02", b"\x11\xff", b"\x11\x00\x00"], ids=bytes.hex)
def test_a_malformed_sign_ends_only_its_sender(devices: Devices, frame: bytes) -> None:
    with Scene(*devices, offers=NIC) as scene:
        scene.peer.send_frame(frame)
        assert scene.dropped()


@pytest.mark.parametrize("frame", [ASK, SIGN], ids=bytes.hex)
def test_a_sign_that_was_not_agreed_on_ends_only_its_sender(devices: Devices, frame: bytes) -> None:
    with Scene(*devices) as scene:
        scene.peer.send_frame(frame)
        assert scene.dropped()
