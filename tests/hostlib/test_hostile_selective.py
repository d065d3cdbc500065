# SPDX-License-Identifier: Apache-2.0
"""Packets of a hostile peer that offers selective repeat, and the bytes of acknowledgements, compared with Scapy."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from hostlib import Device, Listener

from . import hostile_peer as hp
from .hostile_peer import DEADLINE_S, SELECTIVE_REPEAT
from .hostile_scene import HOSTILE, VICTIM, HonestTraffic, Scene, open_devices, replaced

WINDOW = 1024


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Device, Device, Listener, HonestTraffic]]:
    with open_devices() as devices:
        yield devices


@pytest.fixture
def scene(devices: tuple[Device, Device, Listener, HonestTraffic]) -> Iterator[Scene]:
    with Scene(*devices, offers=SELECTIVE_REPEAT) as scene:
        yield scene


def listed(scene: Scene, request: BTH) -> tuple[int, set[int]]:
    """Send a request. Return the PSN that the answer names and those that its bitmap lists, as distances from the next
    request's."""
    scene.peer.send(request)
    answer = scene.peer.acknowledgement()
    assert answer[AETH].syndrome == hp.ACK
    bitmap = bytes(answer[AETH].payload)
    distance = (answer.psn - scene.peer.lanes[0].psn + 2**23) % 2**24 - 2**23
    return distance, {distance + 2 + bit for bit in range(8 * len(bitmap)) if bitmap[bit // 8] & 0x80 >> bit % 8}


def test_selective_repeat_is_agreed_with_peers_that_offer_it_only(
    devices: tuple[Device, Device, Listener, HonestTraffic],
) -> None:
    for selective in (False, True):
        offers = SELECTIVE_REPEAT if selective else b""
        with Scene(*devices, offers=offers) as scene:
            assert scene.peer.agreed == offers
            target = scene.target()
            scene.peer.send(scene.peer.bth(hp.SEND_ONLY, ahead=2))
            answer = scene.peer.acknowledgement()
            assert answer[AETH].syndrome == (hp.ACK if selective else hp.NAK_SEQUENCE)
            assert bytes(answer[AETH].payload) == (bytes.fromhex("40000000") if selective else b"")
            assert scene.honest_traffic.continues()
            assert target.holds()


def test_an_acknowledgement_with_a_bitmap_has_the_bytes_that_scapy_makes(scene: Scene) -> None:
    lane = scene.peer.lanes[0]
    for ahead in (1, 3, 40):
        scene.peer.send(scene.peer.bth(hp.SEND_ONLY, ahead=ahead))
        answer = scene.peer.acknowledgement()
    expected = (
        IP(src=VICTIM, dst=HOSTILE, id=0, flags="DF")
        / UDP(sport=scene.lane()["port"], dport=scene.peer.port)
        / BTH(opcode=hp.ACKNOWLEDGE, dqpn=lane.qpn, psn=(lane.psn - 1) % 2**24, migreq=1, icrc=None)
        / AETH(syndrome=hp.ACK, msn=0)
        / Raw(bytes.fromhex("a000000001000000"))
    )
    assert bytes(answer) == bytes(expected)[28:]


def test_early_packets_are_written_when_the_missing_one_has_come_and_copies_never(scene: Scene) -> None:
    target = scene.target(300)
    parts = [bytes([value]) * 100 for value in (1, 2, 3)]
    imm = target.advertisement.slot << 16 | 3
    packets = [
        scene.peer.write(target.advertisement, part, imm=imm, offset=100 * i, ahead=i) for i, part in enumerate(parts)
    ]
    assert listed(scene, packets[2]) == (-1, {2})
    assert listed(scene, packets[1]) == (-1, {1, 2})
    other = scene.peer.write(target.advertisement, b"x" * 100, imm=imm, offset=100, ahead=1)
    assert listed(scene, other) == (-1, {1, 2})  # the first copy counts
    assert target.holds()
    assert listed(scene, packets[0]) == (2, set())
    assert target.request.wait(DEADLINE_S) == 300
    assert target.holds(b"".join(parts))
    for i in (0, 1, 2):  # the memory is the application's again
        late = scene.peer.write(target.advertisement, b"y" * 100, imm=imm, offset=100 * i, ahead=i)
        assert listed(scene, late) == (2, set())
    scene.peer.lanes[0].psn = (scene.peer.lanes[0].psn + 3) % 2**24
    assert scene.still_works(scene.target())
    assert target.holds(b"".join(parts))
    assert scene.lane()["duplicates"] == 3


def test_packets_beyond_the_window_are_not_kept(scene: Scene) -> None:
    target = scene.target()
    for ahead in (WINDOW, WINDOW + 1, 2**22, 2**23 - 1):
        packet = scene.peer.write(target.advertisement, b"x" * 100, ahead=ahead)
        assert listed(scene, packet) == (-1, set())
    assert listed(scene, scene.peer.bth(hp.SEND_ONLY, ahead=WINDOW - 1)) == (-1, {WINDOW - 1})
    assert target.holds()
    assert scene.still_works(target)


def test_an_early_packet_outside_of_its_window_is_refused_in_its_turn(scene: Scene) -> None:
    target = scene.target()
    wrong = replaced(target.advertisement, rkey=target.advertisement.rkey ^ 1)
    assert listed(scene, scene.peer.write(wrong, b"x" * 100, ahead=1)) == (-1, {1})
    scene.peer.send(scene.peer.write(target.advertisement, b"valid"))
    answer = scene.peer.acknowledgement()
    assert (answer[AETH].syndrome, answer.psn) == (hp.NAK_ACCESS, (scene.peer.lanes[0].psn + 1) % 2**24)
    assert target.request.wait(DEADLINE_S) == 5
    assert target.holds(b"valid")
    assert scene.honest_traffic.continues()


def test_early_packets_that_can_never_be_taken_are_not_kept(scene: Scene) -> None:
    target = scene.target()
    assert listed(scene, scene.peer.bth(hp.READ_REQUEST, ahead=1)) == (-1, set())
    long = bytes(hp.PATH_MTU + 4)
    assert listed(scene, scene.peer.bth(hp.SEND_ONLY, long, ahead=1) / hp.body(long)) == (-1, set())
    assert scene.still_works(target)


def test_acknowledgements_with_any_bitmap_harm_their_own_sender_only(scene: Scene) -> None:
    draw = random.Random(5)
    for _ in range(3):
        scene.connection.send(bytes(50_000))
    for sequence in range(3):
        scene.peer.send(
            scene.peer.bth(
                hp.SEND_ONLY,
                advertisement := hp.advertisement_bytes(
                    hp.Advertisement(scene.peer.victim_connection, sequence, 0, sequence, 1, 0, 50_000)
                ),
            )
            / Raw(advertisement)
        )
        scene.peer.lanes[0].psn = (scene.peer.lanes[0].psn + 1) % 2**24
    for _ in range(300):
        psn = scene.peer.lanes[0].victim_psn + draw.randrange(-5, 60)
        bitmap = draw.randbytes(draw.choice((0, 1, 4, 100, 128, 500)))
        scene.peer.send(
            BTH(opcode=hp.ACKNOWLEDGE, dqpn=scene.peer.lanes[0].victim_qpn, psn=psn % 2**24, icrc=None)
            / AETH(syndrome=hp.ACK, msn=0)
            / Raw(bitmap)
        )
    assert scene.honest_traffic.continues()
