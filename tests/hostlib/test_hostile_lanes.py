# SPDX-License-Identifier: Apache-2.0
"""A peer that breaks the rules of lanes over TCP, against a live device: it writes to no memory but its own receives,
and disturbs nobody else."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from hostlib import Connection, Device, Listener

from .hostile_lane import (
    ANSWERS_PINGS,
    CREDIT_WAITS,
    EAGER_MESSAGES,
    PING,
    REFUSED_ACCESS,
    REFUSED_MALFORMED,
    SEND,
    WRITE,
    LanePeer,
    ended,
    frame,
    notice,
    write,
)
from .hostile_peer import DEADLINE_S
from .hostile_scene import HOSTILE, STRANGER, HonestTraffic, Target, open_devices

DATA = b"a valid message"


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Device, Device, Listener, HonestTraffic]]:
    with open_devices("tcp") as devices:
        yield devices


class LaneScene:
    """The victim, the honest traffic, and a hostile peer with a connection and an open receive."""

    def __init__(self, victim: Device, honest_traffic: HonestTraffic, peer: LanePeer, connection: Connection) -> None:
        self.victim = victim
        self.honest_traffic = honest_traffic
        self.peer = peer
        self.connection = connection
        self.target = Target(connection, peer.advertisements)

    def still_works(self) -> bool:
        """A valid message arrives over a new connection, and the honest traffic continues."""
        lane = self.peer.connect(self.peer.hello())
        assert notice(lane)[0] == b"PLTW"
        lane.sendall(write(self.target.advertisement, DATA))
        assert self.target.request.wait(DEADLINE_S) == len(DATA)
        assert self.target.holds(DATA)
        return self.honest_traffic.continues()

    def refused(self, lane: socket.socket, reason: int, number: int) -> bool:
        """The victim refuses the frame with this number and ends the connection. Nothing was written."""
        assert notice(lane) == (b"PLTR", reason, number)
        assert ended(lane)
        assert not self.target.request.done
        assert self.target.holds()
        return self.honest_traffic.continues()


@pytest.fixture
def scene(devices: tuple[Device, Device, Listener, HonestTraffic]) -> Iterator[LaneScene]:
    victim, _, listener, honest_traffic = devices
    with LanePeer(HOSTILE, listener.handle, victim.udp_port) as peer:
        yield LaneScene(victim, honest_traffic, peer, listener.accept(DEADLINE_S))


# -- hellos -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "reason"),
    [(0, "malformed"), (1, "unknown_qp"), (2, "unknown_qp"), (3, "wrong_source"), (4, "wrong_source")],
    ids=["magic", "QPN", "token", "QPN of the sender", "token of the sender"],
)
def test_a_hello_with_a_wrong_field_ends_its_connection_and_is_counted(
    scene: LaneScene, place: int, reason: str
) -> None:
    before = scene.victim.counters()["discards"]
    for bit in (0, 7, 31):
        hello = bytearray(scene.peer.hello())
        hello[4 * place + bit // 8] ^= 1 << bit % 8
        assert ended(scene.peer.connect(bytes(hello)))
    assert scene.victim.counters()["discards"] == {**before, reason: before[reason] + 3}
    assert scene.target.holds()
    assert scene.still_works()


def test_a_hello_from_another_address_ends_its_connection(scene: LaneScene) -> None:
    assert ended(scene.peer.connect(scene.peer.hello(), STRANGER))
    assert scene.still_works()


def test_a_repeated_hello_does_not_replace_a_later_connection(scene: LaneScene) -> None:
    lane = scene.peer.lane()
    for attempt in (0, 1):
        assert ended(scene.peer.connect(scene.peer.hello(attempt)))
    lane.sendall(write(scene.target.advertisement, DATA))
    assert scene.target.request.wait(DEADLINE_S) == len(DATA)
    assert scene.honest_traffic.continues()


def test_a_part_of_a_hello_and_random_bytes_change_nothing(scene: LaneScene) -> None:
    draw = random.Random(5)
    hello = scene.peer.hello()
    for length in (0, 1, 23):
        scene.peer.connect(hello[:length]).close()
    for _ in range(20):
        assert ended(scene.peer.connect(draw.randbytes(24)))
    assert scene.target.holds()
    assert scene.still_works()


# -- frames -----------------------------------------------------------------------------------------------------------


def test_a_write_that_its_receive_does_not_allow_is_refused(scene: LaneScene) -> None:
    valid = scene.target.advertisement
    lane = scene.peer.lane()
    lane.sendall(frame(WRITE, b"", rkey=valid.rkey, address=valid.address))  # of no bytes: the first frame is taken
    lane.sendall(frame(WRITE, b"x" * 8, rkey=valid.rkey ^ 1, address=valid.address))
    assert scene.refused(lane, REFUSED_ACCESS, 1)


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 8), (993, 8), (1000, 1), (0, 1001), (0, 2**32 - 1)], ids=lambda value: str(value)
)
def test_a_write_beyond_its_receive_is_refused_before_its_payload_is_read(
    scene: LaneScene, offset: int, length: int
) -> None:
    lane = scene.peer.lane()
    lane.sendall(write(scene.target.advertisement, b"x" * 8, offset=offset, length=length))
    assert scene.refused(lane, REFUSED_ACCESS, 0)


@pytest.mark.parametrize(
    "bad",
    [
        frame(0),
        frame(4),
        frame(0xFF),
        frame(WRITE, reserved=1),
        frame(WRITE, imm=1),
        frame(SEND, rkey=1),
        frame(SEND, imm=1),
        frame(SEND, address=1),
    ],
    ids=["kind 0", "kind 4", "kind 255", "reserved", "imm of WRITE", "rkey of SEND", "imm of SEND", "address of SEND"],
)
def test_a_malformed_frame_is_refused(scene: LaneScene, bad: bytes) -> None:
    lane = scene.peer.lane()
    lane.sendall(bad)
    assert scene.refused(lane, REFUSED_MALFORMED, 0)


def test_a_send_that_exceeds_the_receive_buffer_is_refused(scene: LaneScene) -> None:
    lane = scene.peer.lane()
    lane.sendall(frame(SEND, b"x" * 8, length=2**32 - 1))
    assert scene.refused(lane, REFUSED_MALFORMED, 0)


def test_a_frame_that_has_arrived_in_part_is_forgotten_with_its_connection(scene: LaneScene) -> None:
    whole = write(scene.target.advertisement, DATA)
    for length in (1, 23, 24, len(whole) - 1):
        lane = scene.peer.lane()
        lane.sendall(whole[:length])
        lane.close()
    assert not scene.target.request.done
    assert scene.still_works()


@pytest.mark.parametrize("slots_off", [0, 1], ids=["twice", "other slot"])
def test_a_flowlet_for_a_receive_that_is_not_open_ends_only_its_sender(scene: LaneScene, slots_off: int) -> None:
    valid = scene.target.advertisement
    lane = scene.peer.lane()
    if slots_off == 0:
        lane.sendall(write(valid, DATA))
        assert scene.target.request.wait(DEADLINE_S) == len(DATA)
    lane.sendall(frame(2, imm=(valid.slot + slots_off) << 16 | 1))
    assert scene.peer.dropped()
    assert scene.honest_traffic.continues()


def test_random_bytes_after_the_hello_end_only_their_sender(scene: LaneScene) -> None:
    lane = scene.peer.lane()
    lane.sendall(b"\x07" + random.Random(9).randbytes(9_999))
    assert scene.refused(lane, REFUSED_MALFORMED, 0)


# -- pings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [ANSWERS_PINGS, 0xFFFFFFFF], ids=["known option", "all options"])
def test_a_flood_of_pings_gets_at_most_as_many_answers_and_keeps_nobody_else_waiting(
    devices: tuple[Device, Device, Listener, HonestTraffic], options: int
) -> None:
    victim, _, listener, honest_traffic = devices
    pings = 20_000
    with LanePeer(HOSTILE, listener.handle, victim.udp_port, options) as peer:
        scene = LaneScene(victim, honest_traffic, peer, listener.accept(DEADLINE_S))
        assert peer.agreed & ~(EAGER_MESSAGES | CREDIT_WAITS) == ANSWERS_PINGS
        lane = peer.lane()
        lane.sendall(PING * pings)
        assert honest_traffic.continues()
        taken = [0]
        while taken[-1] < pings:
            word, reason, number = notice(lane)
            assert (word, reason) == (b"PLTA", 0)
            taken.append(number)
        assert taken == sorted(set(taken))
        assert scene.still_works()


def test_a_peer_that_did_not_offer_to_wait_for_answers_gets_none(scene: LaneScene) -> None:
    assert scene.peer.agreed == 0
    lane = scene.peer.lane()
    lane.sendall(PING + write(scene.target.advertisement, DATA))
    assert scene.target.request.wait(DEADLINE_S) == len(DATA)
    lane.setblocking(False)
    with pytest.raises(BlockingIOError):
        lane.recv(1)


@pytest.mark.parametrize("number", [0, 1, 2**64 - 1])
def test_an_answer_that_nobody_asked_for_ends_only_its_connection(scene: LaneScene, number: int) -> None:
    lane = scene.peer.incoming()
    lane.sendall(struct.pack(">4sIQ", b"PLTA", 0, number))
    assert ended(lane)
    assert scene.still_works()


# -- short messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offers", [EAGER_MESSAGES, EAGER_MESSAGES | CREDIT_WAITS], ids=["older", "waits for credits"])
def test_a_short_message_without_a_credit_waits_for_it_and_asks_only_a_peer_that_cannot_notice(
    devices: tuple[Device, Device, Listener, HonestTraffic], offers: int
) -> None:
    victim, _, listener, _ = devices
    credits, waiting = 32, 3
    with LanePeer(HOSTILE, listener.handle, victim.udp_port, offers) as peer:
        connection = listener.accept(DEADLINE_S)
        assert peer.agreed == offers
        lane = peer.lane()
        messages = [bytes([i]) * 8 for i in range(credits + waiting)]
        sends = [connection.send(message) for message in messages]

        def eager() -> tuple[int, bytes]:
            kind, payload = peer.next_frame()
            assert (kind, payload[:1]) == (SEND, b"\4")
            return struct.unpack_from(">I", payload, 8)[0], payload[20:]

        assert [eager() for _ in range(credits)] == list(enumerate(messages[:credits]))
        number = credits
        if offers == EAGER_MESSAGES:
            assert peer.next_frame() == (SEND, struct.pack(">BBHII", 5, 1, 0, 0x51, number))  # an ask
            number += 1
        lane.sendall(frame(SEND, struct.pack(">BBHIIII", 6, 1, 0, peer.victim_connection, number, 16, 0)))  # a credit
        assert [eager() for _ in range(waiting)] == list(enumerate(messages[credits:], number))
        for send in sends:
            send.wait(DEADLINE_S)
