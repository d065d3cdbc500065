# SPDX-License-Identifier: Apache-2.0
"""Direct placement: middle packets of a WRITE that arrive in one batch are received into place before they are checked.

An invalid packet among them leaves no trace: the missing packet is requested again, and the message arrives intact.
"""

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
from .hostile_peer import DEADLINE_S, PATH_MTU, RETH, ImmDt, body
from .hostile_scene import HonestTraffic, Scene, Target, open_devices

UDP_SEGMENT = 103
PACKETS = 40
BATCH = range(10, 20)  # packets of the batch that contains an invalid packet
DATA = random.Random(11).randbytes((PACKETS - 1) * PATH_MTU + 501)


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Device, Device, Listener, HonestTraffic]]:
    with open_devices() as devices:
        yield devices


@pytest.fixture
def scene(devices: tuple[Device, Device, Listener, HonestTraffic]) -> Iterator[Scene]:
    with Scene(*devices, lanes=2) as scene:
        yield scene


def payload(index: int) -> bytes:
    return DATA[index * PATH_MTU :][:PATH_MTU]


def packet(scene: Scene, target: Target, index: int) -> bytes:
    """Packet `index` of a message of DATA. `ask` must not have acknowledged any of it."""
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
    """Send a batch with UDP_SEGMENT: all packets but the last have the same size, and the last is not longer."""
    segment = len(packets[0])
    assert all(len(each) == segment for each in packets[:-1])
    assert len(packets[-1]) <= segment
    size = struct.pack("=H", segment)
    scene.peer.socket.sendmsg([b"".join(packets)], [(socket.IPPROTO_UDP, UDP_SEGMENT, size)], 0, scene.peer.target)


def send_from(scene: Scene, target: Target, first: int) -> None:
    """Send the message from this packet on, in batches as a device does."""
    if first == 0:
        send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
        first = 2
    for start in range(first, PACKETS - 1, 10):
        send_together(scene, [packet(scene, target, i) for i in range(start, min(start + 10, PACKETS - 1))])
    scene.peer.send(packet(scene, target, PACKETS - 1))


def wait_for_answer(scene: Scene, syndrome: int, index: int) -> None:
    """Wait for an answer with this syndrome for this packet."""
    wanted = syndrome, (scene.peer.lanes[0].psn + index) % 2**24
    while True:
        answer = scene.peer.acknowledgement()
        if answer.dqpn == scene.peer.lanes[0].qpn and (answer[AETH].syndrome, answer.psn) == wanted:
            return


def arrives_intact(scene: Scene, target: Target) -> None:
    assert target.request.wait(DEADLINE_S) == len(DATA)
    assert target.holds(DATA)
    wait_for_answer(scene, hp.ACK, PACKETS - 1)
    scene.peer.lanes[0].psn = (scene.peer.lanes[0].psn + PACKETS) % 2**24
    assert scene.still_works(scene.target())


def test_a_valid_message_in_batches_arrives(scene: Scene) -> None:
    target = scene.target(len(DATA))
    send_from(scene, target, 0)
    arrives_intact(scene, target)


def wrong_checksum(scene: Scene, target: Target, index: int) -> bytes:
    right = packet(scene, target, index)
    return right[:-1] + bytes([right[-1] ^ 1])


def changed_payload(scene: Scene, target: Target, index: int) -> bytes:
    return bytes(b ^ 0xFF if 12 <= i < 12 + PATH_MTU else b for i, b in enumerate(packet(scene, target, index)))


def next_packet(scene: Scene, target: Target, index: int) -> bytes:
    return packet(scene, target, index + 1)


def previous_packet(scene: Scene, target: Target, index: int) -> bytes:
    return packet(scene, target, index - 1)


def padded(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.WRITE_MIDDLE, ahead=index, ackreq=0, padcount=3) / Raw(payload(index)))


def early_last(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.WRITE_LAST, ahead=index, ackreq=0) / Raw(payload(index)))


def send_packet(scene: Scene, target: Target, index: int) -> bytes:
    return scene.peer.packet(scene.peer.bth(hp.SEND_MIDDLE, ahead=index, ackreq=0) / Raw(payload(index)))


def all_zeros(scene: Scene, target: Target, index: int) -> bytes:
    return bytes(12 + PATH_MTU + 4)


@pytest.mark.parametrize("place", [BATCH[0], BATCH[1], BATCH[5], BATCH[-1]])
@pytest.mark.parametrize(
    ("invalid", "syndrome"),
    [
        (wrong_checksum, hp.NAK_SEQUENCE),
        (changed_payload, hp.NAK_SEQUENCE),
        (next_packet, hp.NAK_SEQUENCE),
        (previous_packet, hp.NAK_SEQUENCE),
        (padded, hp.NAK_INVALID),
        (early_last, hp.NAK_INVALID),
        (send_packet, hp.NAK_INVALID),
        (all_zeros, hp.NAK_SEQUENCE),
    ],
)
def test_an_invalid_packet_in_a_batch_is_answered_and_sent_again(
    scene: Scene, invalid: Callable[[Scene, Target, int], bytes], syndrome: int, place: int
) -> None:
    target = scene.target(len(DATA))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, BATCH[0])])
    send_together(scene, [(invalid if i == place else packet)(scene, target, i) for i in BATCH])
    send_together(scene, [packet(scene, target, i) for i in range(BATCH[-1] + 1, BATCH[-1] + 11)])
    wait_for_answer(scene, syndrome, place)
    send_from(scene, target, place)
    arrives_intact(scene, target)


@pytest.mark.parametrize("place", [BATCH[0], BATCH[1], BATCH[5], BATCH[-1]])
def test_a_batch_may_contain_a_packet_for_another_queue_pair(scene: Scene, place: int) -> None:
    target, second = scene.target(len(DATA)), scene.target(2000)
    small = random.Random(place).randbytes(PATH_MTU - 16 - 4)  # with RETH and immediate as long as the others
    foreign = scene.peer.packet(scene.peer.write(second.advertisement, small, lane=1))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, BATCH[0])])
    together = [packet(scene, target, i) for i in BATCH]
    together.insert(place - BATCH[0], foreign)
    send_together(scene, together)
    send_from(scene, target, BATCH[-1] + 1)
    assert second.request.wait(DEADLINE_S) == len(small)
    assert second.holds(small)
    arrives_intact(scene, target)


@pytest.mark.parametrize("tail", [1, 12, 16, 17, 500, PATH_MTU + 15])
def test_a_truncated_packet_at_the_end_of_a_batch_is_sent_again(scene: Scene, tail: int) -> None:
    target = scene.target(len(DATA))
    send_together(scene, [packet(scene, target, 0), packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, 10)] + [packet(scene, target, 10)[:tail]])
    send_from(scene, target, 10)
    arrives_intact(scene, target)


def test_a_batch_that_exceeds_the_length_of_its_write_is_refused(scene: Scene) -> None:
    target = scene.target(len(DATA))
    short = RETH(va=target.advertisement.address, rkey=target.advertisement.rkey, dmalen=4 * PATH_MTU)
    first = scene.peer.packet(scene.peer.bth(hp.WRITE_FIRST) / short / Raw(payload(0)))
    send_together(scene, [first, packet(scene, target, 1)])
    send_together(scene, [packet(scene, target, i) for i in range(2, 12)])
    wait_for_answer(scene, hp.NAK_INVALID, 3)  # the last packet of a WRITE needs another opcode
    assert target.holds(DATA[: 3 * PATH_MTU])
    assert scene.honest_traffic.continues()
