# SPDX-License-Identifier: Apache-2.0
"""A peer over TCP that can break every rule of docs/tcp.md: an encoder of its own, without the engine.

It has a handle and a connection, so it knows the QPN, token and rkeys that a peer is told.
"""

from __future__ import annotations

import secrets
import socket
import struct
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from .hostile_peer import DEADLINE_S, PATH_MTU, Advertisement, read_advertisement

WRITE, WRITE_IMM, SEND = 1, 2, 3
REFUSED_ACCESS, REFUSED_MALFORMED = 1, 2

_VENDOR = 0x504C5443
EAGER_MESSAGES, ANSWERS_PINGS, CREDIT_WAITS = 8, 16, 64
"""Options of an endpoint."""
PING = struct.pack(">I20x", WRITE << 24)
"""A WRITE of no bytes."""
_ADVERTISEMENT_BYTES = 40


def frame(
    kind: int,
    payload: bytes = b"",
    *,
    rkey: int = 0,
    imm: int = 0,
    address: int = 0,
    length: int | None = None,
    reserved: int = 0,
) -> bytes:
    """A work request. `length` is that of the payload unless it is given."""
    said = len(payload) if length is None else length
    return struct.pack(">IIIIQ", kind << 24 | reserved, said, rkey, imm, address) + payload


def write(
    advertisement: Advertisement, payload: bytes, *, imm: int | None = None, offset: int = 0, length: int | None = None
) -> bytes:
    """A flowlet for an advertisement. It is the only one of its message unless `imm` is given."""
    return frame(
        WRITE_IMM,
        payload,
        rkey=advertisement.rkey,
        imm=advertisement.slot << 16 | 1 if imm is None else imm,
        address=(advertisement.address + offset) % 2**64,
        length=length,
    )


class LanePeer:
    """A peer with one lane. `options` are those that it offers; `agreed` those that the victim names."""

    def __init__(self, address: str, handle: bytes, victim_port: int, options: int = 0) -> None:
        magic, version, tcp_port, target, _, listener, token = struct.unpack(">4sHH4s16sI16s", handle[:48])
        assert (magic, version) == (b"PLET", 1)
        self.address = address
        self._victim = socket.inet_ntoa(target), victim_port
        self._open = ExitStack()
        self._lanes = self._open.enter_context(socket.create_server((address, 0)))
        channel = socket.create_connection((self._victim[0], tcp_port), DEADLINE_S, (address, 0))
        self._channel = self._open.enter_context(channel)
        self._frames = self._open.enter_context(channel.makefile("rb"))
        self.qpn, self.token = 0x700, secrets.randbits(32)
        hello = b"\1PLH1" + struct.pack(">HI16s", 1, listener, token) + secrets.token_bytes(16)
        hello += socket.inet_aton(address) + struct.pack(">HIH", self._lanes.getsockname()[1], PATH_MTU, 1)
        hello += struct.pack(">II", self.qpn, self.token) + struct.pack(">HIII", 63, _VENDOR, options, 0)
        self._send_frame(hello)
        welcome = self._receive_frame()
        assert welcome[0] == 2, welcome
        self.victim_qpn, self.victim_token = struct.unpack_from(">II", welcome, 31)
        vendor, self.agreed = struct.unpack_from(">II", welcome, 41)
        assert vendor == _VENDOR
        self._attempts = 0
        self._send_frame(b"\4" + struct.pack(">II16s", 0x51, listener, token))
        accept = self._receive_frame()
        assert accept[0] == 5, accept
        self.victim_connection = struct.unpack_from(">I", accept, 5)[0]
        self._incoming: socket.socket | None = None

    # -- the channel ----------------------------------------------------------------------------------------------

    def _send_frame(self, body: bytes) -> None:
        self._channel.sendall(struct.pack(">I", len(body)) + body)

    def _receive_frame(self) -> bytes:
        """Receive one frame. Empty when the victim has closed the channel."""
        head = self._frames.read(4)
        return self._frames.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""

    def dropped(self) -> bool:
        """Wait until the victim closes the channel."""
        while self._receive_frame():
            pass
        return True

    # -- lanes ----------------------------------------------------------------------------------------------------

    def hello(self, attempt: int | None = None) -> bytes:
        """The hello of the next connection of our QP."""
        self._attempts += 1
        number = self._attempts if attempt is None else attempt
        return struct.pack(">4s5I", b"PLT1", self.victim_qpn, self.victim_token, self.qpn, self.token, number)

    def connect(self, hello: bytes, address: str | None = None) -> socket.socket:
        """Open a connection to the victim, and say hello."""
        lane = socket.create_connection(self._victim, DEADLINE_S, (address or self.address, 0))
        self._open.callback(lane.close)
        lane.sendall(hello)
        return lane

    def lane(self) -> socket.socket:
        """Open a connection that the victim takes."""
        lane = self.connect(self.hello())
        assert notice(lane) == (b"PLTW", 0, 0)
        return lane

    def incoming(self) -> socket.socket:
        """The first connection that the victim opens and sends on, welcomed."""
        if self._incoming is None:
            self._lanes.settimeout(DEADLINE_S)
            self._incoming = self._open.enter_context(self._lanes.accept()[0])
            self._incoming.settimeout(DEADLINE_S)
            said = struct.unpack(">4s5I", exactly(self._incoming, 24))
            assert said == (b"PLT1", self.qpn, self.token, self.victim_qpn, self.victim_token, 1)
            self._incoming.sendall(b"PLTW" + bytes(12))
        return self._incoming

    def next_frame(self) -> tuple[int, bytes]:
        """Receive the victim's next work request: kind and payload."""
        lane = self.incoming()
        kind, length = struct.unpack(">B3xI16x", exactly(lane, 24))
        return kind, exactly(lane, length)

    def advertisements(self) -> list[Advertisement]:
        """Receive the victim's next message of advertisements."""
        kind, payload = self.next_frame()
        assert kind == SEND
        length = len(payload)
        return [
            read_advertisement(payload[i : i + _ADVERTISEMENT_BYTES]) for i in range(0, length, _ADVERTISEMENT_BYTES)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def exactly(lane: socket.socket, length: int) -> bytes:
    """So many bytes."""
    got = b""
    while len(got) < length:
        piece = lane.recv(length - len(got))
        assert piece, f"the connection ended after {len(got)} of {length} bytes"
        got += piece
    return got


def notice(lane: socket.socket) -> tuple[bytes, int, int]:
    """What the victim says on a connection: word, reason, and number of a frame."""
    word, reason, number = struct.unpack(">4sIQ", exactly(lane, 16))
    return word, reason, number


def ended(lane: socket.socket) -> bool:
    """Whether the victim ends the connection without another word. Waits for it."""
    try:
        return lane.recv(1) == b""
    except ConnectionResetError:
        return True
