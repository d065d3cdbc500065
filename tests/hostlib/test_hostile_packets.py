# SPDX-License-Identifier: Apache-2.0
"""Invalid packets, made by Scapy, against a live device: they do not write to memory, do not stall other peers, and are
counted."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.packet import Raw

from hostlib import Device, Listener, TransportError

from . import hostile_peer as hp
from .hostile_peer import DEADLINE_S, PATH_MTU, RETH, AtomicETH, Attacker, ImmDt, body
from .hostile_scene import HOSTILE, STRANGER, VICTIM, HonestTraffic, Scene, Target, open_devices, replaced, wait_until


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[Device, Device, Listener, HonestTraffic]]:
    with open_devices() as devices:
        yield devices


@pytest.fixture
def scene(devices: tuple[Device, Device, Listener, HonestTraffic]) -> Iterator[Scene]:
    with Scene(*devices) as scene:
        yield scene


# -- packets that are discarded ----------------------------------------------------------------------------------------


def test_packets_for_unknown_queue_pairs_are_discarded(scene: Scene) -> None:
    target = scene.target()
    known = {lane["qpn"] for lane in scene.victim.counters()["lanes"]}
    draw = random.Random(1)
    qpns = [0, 1, 2**24 - 1] + [draw.randrange(2**24) for _ in range(50)]
    assert not known & set(qpns)
    with scene.discards("unknown_qp", len(qpns)):
        for qpn in qpns:
            scene.peer.send(scene.peer.write(target.advertisement, b"x" * 100, dqpn=qpn))
    assert target.holds()
    assert scene.still_works(target)


def test_packets_from_another_source_are_discarded(scene: Scene) -> None:
    target = scene.target()
    with (
        Attacker(STRANGER, VICTIM, scene.victim.udp_port) as stranger,
        scene.discards("wrong_source", 20),
    ):
        for _ in range(10):
            stranger.send(scene.peer.write(target.advertisement, b"x" * 100))
            stranger.send(scene.peer.bth(hp.ACKNOWLEDGE) / AETH(syndrome=hp.NAK_ACCESS, msn=0))
    assert target.holds()
    assert scene.still_works(target)


def test_each_flipped_bit_of_the_checksum_is_detected(scene: Scene) -> None:
    target = scene.target()
    right = scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 100))
    with scene.discards("icrc", 32):
        for bit in range(32):
            damaged = int.from_bytes(right[-4:], "big") ^ 1 << bit
            scene.peer.send(right[:-4] + damaged.to_bytes(4, "big"))
    assert target.holds()
    assert scene.still_works(target)


def test_each_flipped_bit_of_a_packet_is_detected(scene: Scene) -> None:
    target = scene.target()
    right = scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 8))
    resv8a = range(32, 40)  # FECN, BECN and reserved: switches may change them
    bits = [bit for bit in range(len(right) * 8) if bit not in resv8a]
    before = sum(scene.victim.counters()["discards"].values())
    for bit in bits:
        damaged = bytearray(right)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        scene.peer.send(bytes(damaged))
    wait_until(lambda: sum(scene.victim.counters()["discards"].values()) >= before + len(bits), "all discarded")
    assert sum(scene.victim.counters()["discards"].values()) == before + len(bits)
    assert scene.lane()["rx_packets"] == 0
    assert target.holds()
    assert scene.still_works(target)


def test_truncated_packets_are_discarded(scene: Scene) -> None:
    target = scene.target()
    right = scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 8))
    before = sum(scene.victim.counters()["discards"].values())
    for length in range(1, len(right)):
        scene.peer.send(right[:length])  # its last bytes are not the checksum
    wait_until(lambda: sum(scene.victim.counters()["discards"].values()) >= before + len(right) - 1, "all discarded")
    assert sum(scene.victim.counters()["discards"].values()) == before + len(right) - 1
    assert scene.lane()["rx_packets"] == 0
    assert scene.still_works(target)


def test_truncated_packets_with_a_valid_checksum_are_refused(scene: Scene) -> None:
    target = scene.target()
    transport = scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 8))[:-4]
    headers = 12 + 16 + 4
    with scene.discards("malformed", headers - 12):
        for length in range(12, headers):
            scene.peer.send(scene.peer.seal(transport[:length]))
    for length in range(headers, len(transport)):  # complete headers, but fewer bytes than they announce
        packet = scene.peer.seal(transport[:length])
        assert scene.peer.ask(BTH(packet)) == (hp.NAK_INVALID, 0)
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize("pkey", [0, 1, 0x8000, 0x8001, 0x7FFE, 0xFFFE, 0xBFFF])
def test_packets_of_another_partition_are_discarded(scene: Scene, pkey: int) -> None:
    target = scene.target()
    with scene.discards("malformed", 1):
        scene.peer.send(scene.peer.write(target.advertisement, b"x" * 100, pkey=pkey))
    assert target.holds()
    assert scene.still_works(target)


def test_packets_of_another_transport_version_are_discarded(scene: Scene) -> None:
    target = scene.target()
    with scene.discards("malformed", 15):
        for version in range(1, 16):
            scene.peer.send(scene.peer.write(target.advertisement, b"x" * 100, version=version))
    assert scene.still_works(target)


def test_opcodes_of_other_services_and_of_responses_are_discarded(scene: Scene) -> None:
    target = scene.target()
    responses = [0x0D, 0x0E, 0x0F, 0x10, 0x12]
    opcodes = responses + [opcode for opcode in range(256) if opcode & 0xE0]
    with scene.discards("malformed", len(opcodes)):
        for opcode in opcodes:
            packet = scene.peer.write(target.advertisement, b"x" * 100)
            packet.opcode = opcode
            scene.peer.send(packet)
    assert target.holds()
    assert scene.still_works(target)


# -- requests that get a NAK -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [hp.READ_REQUEST, hp.COMPARE_SWAP, hp.FETCH_ADD, 0x15, 0x16, 0x17, 0x18, 0x1F])
def test_unsupported_requests_are_refused(scene: Scene, opcode: int) -> None:
    target = scene.target()
    headers = RETH(va=0, rkey=target.advertisement.rkey, dmalen=8)
    if opcode in (hp.COMPARE_SWAP, hp.FETCH_ADD):
        headers = AtomicETH(va=0, rkey=target.advertisement.rkey, swap=1, compare=0xEEEEEEEEEEEEEEEE)
    assert scene.peer.ask(scene.peer.bth(opcode) / headers) == (hp.NAK_INVALID, 0)
    assert target.holds()
    assert scene.still_works(target)


def test_wrong_rkeys_and_ranges_are_refused(scene: Scene) -> None:
    target = scene.target(1000)
    right = target.advertisement
    wrong = [replaced(right, rkey=right.rkey ^ 1 << bit) for bit in range(32)]
    wrong += [replaced(right, rkey=rkey) for rkey in (0, 2**32 - 1)]
    wrong += [
        replaced(right, address=address) for address in (901, 1000, 1001, 2**31, 2**32, 2**63, 2**64 - 1, 2**64 - 100)
    ]
    for advertisement in wrong:
        assert scene.peer.ask(scene.peer.write(advertisement, b"x" * 100)) == (hp.NAK_ACCESS, 0), advertisement
    for length in (1001, 2**31, 2**32 - 1):  # the first packet announces the whole length
        first = scene.peer.bth(hp.WRITE_FIRST) / RETH(va=0, rkey=right.rkey, dmalen=max(length, PATH_MTU + 1))
        assert scene.peer.ask(first / Raw(bytes(PATH_MTU))) == (hp.NAK_ACCESS, 0), length
    assert target.holds()
    assert scene.still_works(target)


def test_payloads_that_contradict_the_announced_length_are_refused(scene: Scene) -> None:
    target = scene.target(3000)
    for announced in (0, 99, 101, PATH_MTU, 2**32 - 1):
        assert scene.peer.ask(scene.peer.write(target.advertisement, b"x" * 100, dmalen=announced)) == (
            hp.NAK_INVALID,
            0,
        ), announced
    assert scene.peer.ask(scene.peer.write(target.advertisement, b"x" * (PATH_MTU + 1))) == (hp.NAK_INVALID, 0)
    reth = RETH(va=0, rkey=target.advertisement.rkey, dmalen=2 * PATH_MTU)
    for payload in (PATH_MTU - 1, PATH_MTU + 1):
        first = scene.peer.bth(hp.WRITE_FIRST, bytes(payload)) / reth / body(bytes(payload))
        assert scene.peer.ask(first) == (hp.NAK_INVALID, 0)
    assert target.holds()
    # Within a message the first announced length stays valid.
    half = b"h" * PATH_MTU
    assert scene.peer.ask(scene.peer.bth(hp.WRITE_FIRST) / reth / Raw(half)) == (hp.ACK, 0)
    for opcode, payload in (
        (hp.WRITE_MIDDLE, half),
        (hp.WRITE_LAST, half[1:]),
        (hp.WRITE_FIRST, half),
        (hp.WRITE_ONLY, b""),
        (hp.SEND_MIDDLE, half),
        (hp.SEND_LAST, b""),
    ):
        packet = scene.peer.bth(opcode, payload) / (reth if opcode in (hp.WRITE_FIRST, hp.WRITE_ONLY) else Raw(b""))
        assert scene.peer.ask(packet / body(payload)) == (hp.NAK_INVALID, 0), opcode
    assert target.holds(half)
    last = scene.peer.bth(hp.WRITE_LAST_IMM) / ImmDt(imm=target.advertisement.slot << 16 | 1) / Raw(half)
    assert scene.peer.ask(last) == (hp.ACK, 0)
    assert target.request.wait(DEADLINE_S) == 2 * PATH_MTU
    assert target.holds(half + half)
    assert scene.honest_traffic.continues()


def test_a_send_that_exceeds_the_receive_buffer_is_refused(scene: Scene) -> None:
    packet = bytes(PATH_MTU)
    fitting = (20 + 16384) // PATH_MTU  # an eager message is the longest SEND
    assert scene.peer.ask(scene.peer.bth(hp.SEND_FIRST) / Raw(packet)) == (hp.ACK, 0)
    for _ in range(fitting - 1):
        assert scene.peer.ask(scene.peer.bth(hp.SEND_MIDDLE) / Raw(packet)) == (hp.ACK, 0)
    assert scene.peer.ask(scene.peer.bth(hp.SEND_MIDDLE) / Raw(packet)) == (hp.NAK_INVALID, 0)
    assert scene.peer.ask(scene.peer.bth(hp.SEND_LAST) / Raw(packet[:24])) == (hp.NAK_INVALID, 0)
    assert scene.honest_traffic.continues()


# -- PSNs out of sequence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 2, 1000, 2**22, 2**23])
def test_past_psns_are_acknowledged_and_ignored(scene: Scene, behind: int) -> None:
    target = scene.target()
    for payload in (b"x" * 100, b"y" * 100):
        # Acknowledged as a duplicate, and not written.
        assert scene.peer.ask(scene.peer.write(target.advertisement, payload, ahead=-behind)) == (hp.ACK, -1)
    assert scene.lane()["duplicates"] == 2
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize("ahead", [1, 2, 64])
def test_a_future_psn_that_comes_again_gets_another_nak(scene: Scene, ahead: int) -> None:
    target = scene.target()
    packet = BTH(scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 100, ahead=ahead)))
    for _ in range(3):  # the requester went back, and the expected packet was lost again
        assert scene.peer.ask(packet) == (hp.NAK_SEQUENCE, 0)
    assert scene.lane()["out_of_order"] == 3
    assert target.holds()
    assert scene.still_works(target)


@pytest.mark.parametrize("ahead", [65, 1000, 2**22, 2**23 - 1])
def test_psns_far_ahead_get_one_nak(scene: Scene, ahead: int) -> None:
    target = scene.target()
    packet = scene.peer.packet(scene.peer.write(target.advertisement, b"x" * 100, ahead=ahead))
    assert scene.peer.ask(BTH(packet)) == (hp.NAK_SEQUENCE, 0)
    for _ in range(5):
        scene.peer.send(packet)  # one gap, one answer
    wait_until(lambda: scene.lane()["out_of_order"] == 6, "six packets out of order")
    assert target.holds()
    assert scene.still_works(target)


# -- answers to requests that were never sent --------------------------------------------------------------------------


def test_answers_to_unsent_requests_are_counted_and_ignored(scene: Scene) -> None:
    target = scene.target()
    next_psn = scene.peer.lanes[0].victim_psn
    kinds = (hp.ACK, 0, 0x2C, hp.NAK_SEQUENCE, hp.NAK_INVALID, hp.NAK_ACCESS, hp.NAK_OPERATION, 0x40, 0xFF)
    answers = [(0, syndrome) for syndrome in range(256)]  # for the next packet to be sent
    answers += itertools.product((1, 1000, 2**22, 2**23 - 1, 2**23, -1, -2, -1000), kinds)
    before = scene.lane()["stale_acks"]  # on a slow machine an advertisement is sent and acknowledged twice
    for distance, syndrome in answers:
        scene.peer.answer(next_psn + distance, syndrome)
    wait_until(lambda: scene.lane()["stale_acks"] >= before + len(answers), "all counted")
    lane = scene.lane()
    assert lane["stale_acks"] == before + len(answers)
    assert lane["naks"] == lane["rnr"] == 0
    assert scene.still_works(target)
    scene.target()  # the victim can still send


@pytest.mark.parametrize("syndrome", [hp.NAK_INVALID, hp.NAK_ACCESS, hp.NAK_OPERATION, 0x64, 0x7F, 0x40, 0x80, 0xFF])
def test_a_fatal_nak_ends_only_the_peer_that_sent_it(scene: Scene, syndrome: int) -> None:
    receiving = scene.connection.recv(bytearray(100))
    request = scene.peer.receive()
    scene.peer.answer(request.psn, syndrome)
    with pytest.raises(TransportError, match=rf"^lane 0 to {HOSTILE}: the peer "):
        receiving.wait(DEADLINE_S)
    assert scene.dropped()


@pytest.mark.parametrize("syndrome", [0x20 | timer for timer in (1, 12, 14)] + [hp.NAK_SEQUENCE])
def test_an_rnr_or_sequence_nak_leads_to_a_retransmission(scene: Scene, syndrome: int) -> None:
    receiving = scene.connection.recv(bytearray(100))
    for _ in range(20):
        scene.peer.answer(scene.peer.receive().psn, syndrome)
    (advertisement,) = scene.peer.advertisements()
    assert scene.peer.ask(scene.peer.write(advertisement, b"at last")) == (hp.ACK, 0)
    assert receiving.wait(DEADLINE_S) == 7
    assert scene.honest_traffic.continues()


# -- valid packets with false content ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [b"", b"x" * 39, b"x" * 40, b"\1\2" + bytes(38), b"x" * 400, b"\1\1" + bytes(77), b"\2\2" + bytes(10)]
)
def test_an_invalid_advertisement_ends_only_its_sender(scene: Scene, payload: bytes) -> None:
    scene.peer.send(scene.peer.bth(hp.SEND_ONLY, payload) / body(payload))
    assert scene.dropped()


@pytest.mark.parametrize("imm", [0x00000000, 0x00010001, 0xFFFF0001], ids=["none", "next-slot", "last-slot"])
def test_a_flowlet_for_a_receive_that_is_not_open_ends_only_its_sender(scene: Scene, imm: int) -> None:
    target = scene.target()
    scene.peer.send(scene.peer.write(target.advertisement, b"x" * 100, imm=imm))
    with pytest.raises(TransportError, match="the peer sent a flowlet for a receive that is not open"):
        target.request.wait(DEADLINE_S)
    assert target.holds(b"x" * 100)  # it had the rkey
    assert scene.dropped()


def test_more_bytes_than_the_receive_end_only_their_sender(scene: Scene) -> None:
    target = scene.target(1000)
    for _ in range(2):  # both at the start: all in range, but 1600 bytes would be reported for a receive of 1000
        scene.peer.send(scene.peer.write(target.advertisement, b"x" * 800, imm=target.advertisement.slot << 16 | 2))
        scene.peer.lanes[0].psn += 1
    with pytest.raises(TransportError, match="the peer sent more than the receive takes"):
        target.request.wait(DEADLINE_S)
    assert target.holds(b"x" * 800)
    assert scene.dropped()


def write_without_end(scene: Scene, data: bytes, target: Target, slot: int, count: int, length: int) -> BTH:
    """Send a WRITE of `data` without immediate data. Return the SEND that ends the flowlet with the given content."""
    reth = RETH(va=target.advertisement.address, rkey=target.advertisement.rkey, dmalen=len(data))
    assert scene.peer.ask(scene.peer.bth(hp.WRITE_ONLY, data) / reth / body(data)) == (hp.ACK, 0)
    return scene.peer.bth(hp.SEND_ONLY) / Raw(hp.flowlet_end_bytes(slot, count, length))


def test_a_flowlet_may_end_in_a_send(scene: Scene) -> None:
    target = scene.target(1000)
    end = write_without_end(scene, b"x" * 800, target, target.advertisement.slot, 1, 800)
    assert not target.request.done
    assert scene.peer.ask(end) == (hp.ACK, 0)
    assert target.request.wait(DEADLINE_S) == 800
    assert target.holds(b"x" * 800)
    assert scene.still_works(scene.target())


@pytest.mark.parametrize("slots_off", [0, 1, 0xFFFF])
def test_an_end_of_a_flowlet_for_a_receive_that_is_not_open_ends_only_its_sender(scene: Scene, slots_off: int) -> None:
    target = scene.target()
    count = 0 if slots_off == 0 else 1  # for the open receive, with a count of no flowlets
    scene.peer.send(
        write_without_end(scene, b"x" * 100, target, (target.advertisement.slot + slots_off) % 2**16, count, 100)
    )
    with pytest.raises(TransportError, match="the peer sent a flowlet for a receive that is not open"):
        target.request.wait(DEADLINE_S)
    assert scene.dropped()


@pytest.mark.parametrize("claimed", [1001, 2**31, 2**32 - 1])
def test_an_end_of_a_flowlet_with_a_length_beyond_the_receive_ends_only_its_sender(scene: Scene, claimed: int) -> None:
    target = scene.target(1000)
    scene.peer.send(write_without_end(scene, b"x" * 800, target, target.advertisement.slot, 1, claimed))
    with pytest.raises(TransportError, match="the peer sent more than the receive takes"):
        target.request.wait(DEADLINE_S)
    assert target.holds(b"x" * 800)
    assert scene.dropped()


def test_advertisements_for_unknown_connections_are_ignored(scene: Scene) -> None:
    target = scene.target()
    wrong = replaced(target.advertisement, connection=scene.peer.victim_connection - 1)
    for connection in (0, 2**32 - 1, wrong.connection):
        payload = hp.advertisement_bytes(replaced(wrong, connection=connection))
        assert scene.peer.ask(scene.peer.bth(hp.SEND_ONLY) / Raw(payload)) == (hp.ACK, 0)
    assert scene.still_works(target)


def test_advertisements_out_of_sequence_wait_in_bounded_memory(scene: Scene) -> None:
    advertisement = hp.Advertisement(scene.peer.victim_connection, 0, 0, 0, 1, 0, 100)
    for sequence in range(12, 60 * 12, 12):  # never the first
        payload = b"".join(hp.advertisement_bytes(replaced(advertisement, sequence=sequence + i)) for i in range(12))
        assert scene.peer.ask(scene.peer.bth(hp.SEND_ONLY) / Raw(payload)) == (hp.ACK, 0)
    sending = scene.connection.send(bytes(100))
    assert scene.honest_traffic.continues()
    assert not sending.done
    assert scene.still_works(scene.target())


# -- below RoCE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [b"\1\1\1\0", b"\x07\x27\x04" + bytes(36) + b"\0"], ids=["nop", "record-route"])
def test_ip_options_change_nothing(scene: Scene, options: bytes) -> None:
    target = scene.target()
    scene.peer.socket.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)
    wrong = replaced(target.advertisement, rkey=target.advertisement.rkey ^ 1)
    assert scene.peer.ask(scene.peer.write(wrong, b"x" * 100)) == (hp.NAK_ACCESS, 0)
    assert target.holds()
    assert scene.still_works(target)


def test_empty_datagrams_are_discarded(scene: Scene) -> None:
    with scene.discards("malformed", 2):
        scene.peer.send(b"")
        scene.peer.send(b"x")


def test_random_datagrams_are_discarded(scene: Scene) -> None:
    target = scene.target()
    draw = random.Random(2)
    sizes = [1, 2, 15, 16, 17, 1500, 9000, 65_507]
    with scene.discards("malformed", len(sizes)):
        for size in sizes:
            scene.peer.send((b"\xff" + draw.randbytes(size))[:size])
    assert target.holds()
    assert scene.still_works(target)
