# SPDX-License-Identifier: Apache-2.0
"""Attackers that send packets made by Scapy, an independent encoder of docs/protocol.md that can break all its rules.

``HostilePeer`` has a handle and a connection, so it knows the QPNs, PSNs and rkeys that a peer is told. A plain
``Attacker`` knows none of them.
"""

from __future__ import annotations

import secrets
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from scapy.contrib.roce import AETH, BTH
from scapy.fields import IntField, LongField, XIntField, XLongField
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw

DEADLINE_S = 60.0
PATH_MTU = 1024
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x00, 0x01, 0x02, 0x04
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B
READ_REQUEST, ACKNOWLEDGE, COMPARE_SWAP, FETCH_ADD = 0x0C, 0x11, 0x13, 0x14

ACK, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x1F, 0x60, 0x61, 0x62, 0x63


class RETH(Packet):  # type: ignore[misc]
    name = "RETH"
    fields_desc = (XLongField("va", 0), XIntField("rkey", 0), IntField("dmalen", 0))


class ImmDt(Packet):  # type: ignore[misc]
    name = "ImmDt"
    fields_desc = (XIntField("imm", 0),)


class AtomicETH(Packet):  # type: ignore[misc]
    name = "AtomicETH"
    fields_desc = (XLongField("va", 0), XIntField("rkey", 0), LongField("swap", 0), LongField("compare", 0))


def body(payload: bytes) -> Raw:
    """The payload with its padding of ``pad(payload)`` bytes."""
    return Raw(payload + bytes(pad(payload)))


def pad(payload: bytes) -> int:
    return -len(payload) % 4


SELECTIVE_REPEAT = struct.pack(">HIII", 63, 0x504C4554, 1, 0)
"""The end of an endpoint: the highest IPv4 identification, and the option in place of those of a NIC."""


class Attacker:
    """A UDP socket on one address that sends packets to a device and receives its answers."""

    def __init__(self, address: str, target: str, target_port: int) -> None:
        self.address = address
        self.target = target, target_port
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)  # DF and identification 0
        self.socket.bind((address, 0))
        self.socket.settimeout(DEADLINE_S)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # packets of hundreds of lanes at once
        self.port: int = self.socket.getsockname()[1]

    def packet(self, bth: BTH) -> bytes:
        """The UDP payload of a packet. Scapy computes the ICRC unless the BTH has one."""
        if not bth.payload:
            bth = bth / Raw(b"")
        flow = IP(src=self.address, dst=self.target[0], id=0, flags="DF") / UDP(sport=self.port, dport=self.target[1])
        return bytes(flow / bth)[28:]

    def seal(self, transport: bytes) -> bytes:
        """The given bytes, which begin with a BTH, followed by their correct ICRC."""
        bth = BTH(transport[:12] + bytes(4))
        bth.icrc = None
        bth.remove_payload()
        return self.packet(bth / Raw(transport[12:]))

    def send(self, datagram: bytes | BTH) -> None:
        self.socket.sendto(self.packet(datagram) if isinstance(datagram, BTH) else datagram, self.target)

    def receive(self) -> BTH:
        datagram, _ = self.socket.recvfrom(1 << 16)
        return BTH(datagram)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


@dataclass
class Advertisement:
    connection: int
    sequence: int
    tag: int
    slot: int
    rkey: int
    address: int
    length: int


def advertisement_bytes(advertisement: Advertisement) -> bytes:
    head = struct.pack(
        ">BBHIIII4x",
        1,
        1,
        advertisement.slot,
        advertisement.connection,
        advertisement.sequence,
        advertisement.tag,
        advertisement.rkey,
    )
    return head + struct.pack(">QQ", advertisement.address, advertisement.length)


def read_advertisement(payload: bytes) -> Advertisement:
    _, _, slot, connection, sequence, tag, rkey, address, length = struct.unpack(">BBHIIII4xQQ", payload)
    return Advertisement(connection, sequence, tag, slot, rkey, address, length)


def flowlet_end_bytes(slot: int, count: int, length: int) -> bytes:
    return struct.pack(">BBHHxxI", 2, 1, slot, count, length)


@dataclass
class Lane:
    """A QP of the hostile peer, connected to a QP of the victim."""

    qpn: int
    victim_qpn: int
    psn: int  # of the next request to the victim
    victim_psn: int  # of the victim's next request


class HostilePeer(Attacker):
    """A peer with a listener's handle and one connection: it knows all numbers that a peer gets.

    `offers` ends the endpoint of its hello: the highest IPv4 identification, and the ECE.
    """

    def __init__(self, address: str, handle: bytes, victim_port: int, lanes: int = 1, *, offers: bytes = b"") -> None:
        magic, version, tcp_port, target, _, self._listener, self._token = struct.unpack(">4sHH4s16sI16s", handle[:48])
        assert (magic, version) == (b"PLET", 1)
        super().__init__(address, socket.inet_ntoa(target), victim_port)
        self._tcp = socket.create_connection((self.target[0], tcp_port), DEADLINE_S, (address, 0))
        self._stream = self._tcp.makefile("rb")
        psns = [(0xFFFFF0 + 0x1000 * lane) % 2**24 for lane in range(lanes)]  # the first soon wraps
        hello = b"\1PLH1" + struct.pack(">HI16s", 1, self._listener, self._token) + secrets.token_bytes(16)
        hello += socket.inet_aton(address) + struct.pack(">HIH", self.port, PATH_MTU, lanes)
        hello += b"".join(struct.pack(">II", 0x700 + lane, psns[lane]) for lane in range(lanes))
        self.send_frame(hello + offers)
        welcome = self.receive_frame()
        assert welcome[0] == 2, welcome
        qps, self.agreed = welcome[31 : 31 + 8 * lanes], welcome[31 + 8 * lanes :]
        self.lanes = [
            Lane(0x700 + lane, *self._swapped(struct.unpack_from(">II", qps, 8 * lane), psns[lane]))
            for lane in range(lanes)
        ]
        self._advertisements: list[Advertisement] = []
        self._advertised: set[int] = set()  # sequence numbers
        self.connection = 0x51
        self.send_frame(b"\4" + struct.pack(">II16s", self.connection, self._listener, self._token))
        accept = self.receive_frame()
        assert accept[0] == 5, accept
        _, self.victim_connection = struct.unpack(">II", accept[1:])

    @staticmethod
    def _swapped(victim: tuple[int, ...], psn: int) -> tuple[int, int, int]:
        qpn, first_psn = victim
        return qpn, psn, first_psn

    # -- TCP ----------------------------------------------------------------------------------------------------

    def send_frame(self, frame: bytes) -> None:
        self.send_frames([frame])

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames together."""
        self._tcp.sendall(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))

    def receive_frame(self) -> bytes:
        """Receive one frame. Empty when the victim has closed the channel."""
        head = self._stream.read(4)
        return self._stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""

    def dropped(self) -> bool:
        """Wait until the victim closes the channel."""
        while self.receive_frame():
            pass
        return True

    # -- packets ------------------------------------------------------------------------------------------------

    def bth(self, opcode: int, payload: bytes = b"", *, ahead: int = 0, lane: int = 0, **fields: Any) -> BTH:
        """The header of the next request, or of the one `ahead` requests later."""
        to = self.lanes[lane]
        psn = (to.psn + ahead) % 2**24
        base = {"dqpn": to.victim_qpn, "psn": psn, "ackreq": 1, "padcount": pad(payload), "icrc": None}
        return BTH(opcode=opcode, **{**base, **fields})

    def write(
        self, advertisement: Advertisement, payload: bytes, *, imm: int | None = None, offset: int = 0, **fields: Any
    ) -> BTH:
        """A flowlet of one packet for an advertisement. It is the only one of its message unless `imm` is given."""
        reth = {"va": advertisement.address + offset, "rkey": advertisement.rkey, "dmalen": len(payload)}
        reth |= {name: fields.pop(name) for name in list(fields) if name in reth}
        imm = advertisement.slot << 16 | 1 if imm is None else imm
        return self.bth(WRITE_ONLY_IMM, payload, **fields) / RETH(**reth) / ImmDt(imm=imm) / body(payload)

    def ask(self, request: BTH, lane: int = 0) -> tuple[int, int]:
        """Send a request. Return the answer's syndrome and the distance of its PSN from the request's.

        An ACK of the request advances the PSN of the next one.
        """
        self.send(request)
        while (answer := self.acknowledgement()).dqpn != self.lanes[lane].qpn:
            pass
        to = self.lanes[lane]
        distance = (answer.psn - to.psn + 2**23) % 2**24 - 2**23
        syndrome = answer[AETH].syndrome
        if syndrome == ACK and distance == 0:
            to.psn = (to.psn + 1) % 2**24
        return syndrome, distance

    def answer(self, psn: int, syndrome: int = ACK, lane: int = 0) -> None:
        """Send an ACK or NAK for the victim's request with this PSN."""
        self.send(
            BTH(opcode=ACKNOWLEDGE, dqpn=self.lanes[lane].victim_qpn, psn=psn % 2**24, icrc=None)
            / AETH(syndrome=syndrome, msn=0)
        )

    def acknowledgement(self) -> BTH:
        """Receive the next acknowledgement on any lane. Advertisements before it are kept for `advertisements`."""
        while (packet := self.receive()).opcode != ACKNOWLEDGE:
            self._take_advertisements(packet)
        return packet

    def advertisements(self) -> list[Advertisement]:
        """Receive the victim's next message of advertisements."""
        while not self._advertisements:
            self._take_advertisements(self.receive())
        advertisements, self._advertisements = self._advertisements, []
        return advertisements

    def _take_advertisements(self, request: BTH) -> None:
        """Acknowledge advertisements. On a slow machine the victim repeats them, on the same lane or on another one."""
        assert request.opcode == SEND_ONLY, request.opcode
        number, lane = next((i, lane) for i, lane in enumerate(self.lanes) if lane.qpn == request.dqpn)
        ahead = (request.psn - lane.victim_psn) % 2**24
        if 0 < ahead < 2**23:
            return  # the socket's queue was full: the victim's timer repeats the packets before
        self.answer(request.psn, lane=number)
        if ahead:
            return
        lane.victim_psn = (lane.victim_psn + 1) % 2**24
        payload = bytes(request.payload)
        advertisements = [read_advertisement(payload[i : i + 40]) for i in range(0, len(payload), 40)]
        self._advertisements += [
            advertisement for advertisement in advertisements if advertisement.sequence not in self._advertised
        ]
        self._advertised |= {advertisement.sequence for advertisement in advertisements}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._tcp.close()
        super().__exit__(kind, error, trace)
