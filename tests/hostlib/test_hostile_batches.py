# SPDX-License-Identifier: Apache-2.0
"""Packets that arrive together from the middle of a WRITE are received in their place before they are looked at. One of
them that is not what it seemed leaves no trace: what is missing is asked for, and the message arrives whole."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from scapy.contrib.roce import AETH
from scapy.packet import Raw

from hostlib import Device, Listener

from . import hostile_peer as hp
from .hostile_peer import PATH_MTU, PATIENCE_S, RETH, ImmDt, body
from .hostile_scene import Beside, Scene, Target, open_stage

UDP_SEGMENT = 103
PACKETS = 40
BATCH = range(10, 20)  # of the message's packets: the batch that something is wrong with
DATA = random.Random(11).randbytes((PACKETS - 1) * PATH_MTU + 501)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Device, Device, Listener, Beside]]:
    with open_stage() as stage:
        yield stage


@pytest.fixture
def scene(stage: tuple[Device, Device, Listener, Beside]) -> Iterator[Scene]:
    with Scene(*stage, lanes=2) as scene:
        yield scene


def payload(index: int) -> bytes:
    return DATA[index * PATH_MTU :][:PATH_MTU]


def packet(scene: Scene, target: Target, index: int) -> bytes:
    """Packet `index` of a message of DATA; nothing of it may have been acknowledged by `ask`."""
    data = payload(index)
    if index == 0:
        first = scene.peer.bth(hp.WRITE_FIRST) / RETH(
            va=target.advertisement.address, rkey=target.advertisement.rkey, dmalen=len(DATA)
        )
        return scene.peer.packet(first / Raw(data))
    if index == PACKETS - 1:
        last = scene.peer.bth(hp.WRITE_LAST_IMM, data, ahead=index)
        return scene.peer.packet(last / ImmDt(imm=target.advertisement.slot << 16 | 1) / body(data))
    return scene.peer.packet(scene.peer.bth(hp.WRITE_MIDDLE, ahead=index, ackreq=0) / Raw(data))


def send_together(scene: Scene, packets: list[bytes]) -> None:
    """As one batch: all but the last of one size, the last no longer."""
    segment = len(packets[0])
    assert all(len(each) == segment for each in packets[:-1])
    assert len(packets[-1]) <= segment
    size = struct.pack("=H", segment)
    scene.peer.socket.sendmsg([b"".join(packets)], [(socket.IPPROTO_UDP, UDP_SEGMENT, size)], 0, scene.peer.target)


def send_from(scene: Scene, target: Target, first: int) -> None:
    """The message from this packet on, in batches as a device sends them."""
    if first == 0:
        send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
        first = 2
    for start in range(first, PACKETS - 1, 10):
        send_together(scene, [packet(scene, target, i) for i in range(start, min(start + 10, PACKETS - 1))])
    scene.peer.send(packet(scene, target, PACKETS - 1))


def answered(scene: Scene, syndrome: int, index: int) -> None:
    """Waits for an answer that names this packet."""
    wanted = syndrome, (scene.peer.lanes[0].psn + index) % 2**24
    while True:
        answer = scene.peer.acknowledgement()
        if answer.dqpn == scene.peer.lanes[0].qpn and (answer[AETH].syndrome, answer.psn) == wanted:
            return


def whole(scene: Scene, target: Target) -> None:
    assert target.request.wait(PATIENCE_S) == len(DATA)
    assert target.holds(DATA)
    answered(scene, hp.ACK, PACKETS - 1)
    scene.peer.lanes[0].psn = (scene.peer.lanes[0].psn + PACKETS) % 2**24
    assert scene.unharmed(scene.target())


def test_a_message_in_batches(scene: Scene) -> None:
    target = scene.target(len(DATA))
    send_from(scene, target, 0)
    whole(scene, target)


def bad_checksum(scene: Scene, target: Target, index: int) -> bytes:
    right = packet(scene, target, index)
    return right[:-1] + bytes([right[-1] ^ 1])


def other_bytes(scene: Scene, target: Target, index: int) -> bytes:
    return bytes(b ^ 0xFF if 12 <= i < 12 + PATH_MTU else b for i, b in enumerate(packet(scene, target, index)))


def from_the_future(scene: Scene, target: Target, index: int) -> bytes:
    return packet(scene, target, index + 1)


def once_more(scene: Scene, target: Target, index: int) -> bytes:
    return packet(scene, target, index - 1)


def padded(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.WRITE_MIDDLE, ahead=index, ackreq=0, padcount=3) / Raw(payload(index)))


def last_too_early(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.WRITE_LAST, ahead=index, ackreq=0) / Raw(payload(index)))


def a_send(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.SEND_MIDDLE, ahead=index, ackreq=0) / Raw(payload(index)))


def no_packet(scene: Scene, target: Target, index: int) -> bytes:
    return bytes(12 + PATH_MTU + 4)


@pytest.mark.parametrize("place", [BATCH[0], BATCH[1], BATCH[5], BATCH[-1]])
@pytest.mark.parametrize(
    ("spoiled", "syndrome"),
    [
        (bad_checksum, hp.NAK_SEQUENCE),
        (other_bytes, hp.NAK_SEQUENCE),
        (from_the_future, hp.NAK_SEQUENCE),
        (once_more, hp.NAK_SEQUENCE),
        (padded, hp.NAK_INVALID),
        (last_too_early, hp.NAK_INVALID),
        (a_send, hp.NAK_INVALID),
        (no_packet, hp.NAK_SEQUENCE),
    ],
)
def test_one_of_a_batch_is_not_what_it_seemed(
    scene: Scene, spoiled: Callable[[Scene, Target, int], bytes], syndrome: int, place: int
) -> None:
    target = scene.target(len(DATA))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, BATCH[0])])
    send_together(scene, [(spoiled if i == place else packet)(scene, target, i) for i in BATCH])
    send_together(scene, [packet(scene, target, i) for i in range(BATCH[-1] + 1, BATCH[-1] + 11)])
    answered(scene, syndrome, place)
    send_from(scene, target, place)
    whole(scene, target)


@pytest.mark.parametrize("place", [BATCH[0], BATCH[1], BATCH[5], BATCH[-1]])
def test_one_of_a_batch_is_for_another_queue_pair(scene: Scene, place: int) -> None:
    target, beside = scene.target(len(DATA)), scene.target(2000)
    small = random.Random(place).randbytes(PATH_MTU - 16 - 4)  # RETH and immediate: all together as long as the others
    foreign = scene.peer.packet(scene.peer.write(beside.advertisement, small, lane=1))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, BATCH[0])])
    together = [packet(scene, target, i) for i in BATCH]
    together.insert(place - BATCH[0], foreign)
    send_together(scene, together)
    send_from(scene, target, BATCH[-1] + 1)
    assert beside.request.wait(PATIENCE_S) == len(small)
    assert beside.holds(small)
    whole(scene, target)


@pytest.mark.parametrize("tail", [1, 12, 16, 17, 500, PATH_MTU + 15])
def test_a_batch_ends_in_something_short(scene: Scene, tail: int) -> None:
    target = scene.target(len(DATA))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, 10)] + [packet(scene, target, 10)[:tail]])
    send_from(scene, target, 10)
    whole(scene, target)


def test_a_batch_for_more_than_the_write_has_left(scene: Scene) -> None:
    target = scene.target(len(DATA))
    short = RETH(va=target.advertisement.address, rkey=target.advertisement.rkey, dmalen=4 * PATH_MTU)
    first = scene.peer.packet(scene.peer.bth(hp.WRITE_FIRST) / short / Raw(payload(0)))
    send_together(scene, [first, packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, 12)])
    answered(scene, hp.NAK_INVALID, 3)  # what ends the WRITE must say so
    assert target.holds(DATA[: 3 * PATH_MTU])
    assert scene.beside.goes_on()
