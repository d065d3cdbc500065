# SPDX-License-Identifier: Apache-2.0
"""Connections among live processes on a machine so busy that each step of the set-up takes long."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import ExitStack

import numpy as np

from hostlib import Device
from hostlib.collectives import Group

from .group_scene import DEADLINE_S, world
from .hostile_peer import HostilePeer

RANK_0, RANK_1 = "127.0.3.1", "127.0.3.2"
GUID, TOKEN = bytes(range(16)), bytes(16)
RETRY_TIME_S = 5.0


class LateHello(HostilePeer):
    """Sends its hello more than 5 s after its TCP connection."""

    def send_frame(self, frame: bytes) -> None:
        if frame[0] == 1:
            time.sleep(5.5)
        super().send_frame(frame)


def test_a_hello_may_take_the_retry_time() -> None:
    with Device("127.0.3.3", lanes=1, retry_time_s=10 * DEADLINE_S) as device:
        listener = device.listen()
        with LateHello("127.0.3.4", listener.handle, device.udp_port):
            assert device.counters()["peers"] == 1


class SlowRank:
    """Rank 1, which answers each frame of rank 0's set-up only after a `gap_s`, and no packets at all."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._listener = socket.create_server((RANK_1, 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((RANK_1, 0))
        self._tcp: socket.socket | None = None

    @property
    def handle(self) -> bytes:
        port = self._listener.getsockname()[1]
        handle = struct.pack(">4sHH4s16sI16s", b"PLET", 1, port, socket.inet_aton(RANK_1), GUID, 1, TOKEN)
        return handle.ljust(128, b"\0")

    def answer(self) -> None:
        """Welcome rank 0, and accept both connections of its link."""
        self._tcp, _ = self._listener.accept()
        stream = self._tcp.makefile("rb")

        def receive() -> bytes:
            return stream.read(struct.unpack(">I", stream.read(4))[0])

        def send(frame: bytes) -> None:
            assert self._tcp is not None
            time.sleep(self._gap_s)
            self._tcp.sendall(struct.pack(">I", len(frame)) + frame)

        assert receive()[0] == 1
        address = socket.inet_aton(RANK_1) + struct.pack(">HIH", self._udp.getsockname()[1], 1024, 1)
        send(b"\2" + struct.pack(">H16s", 1, GUID) + address + struct.pack(">II", 0x700, 0))
        for number in range(2):
            connect = receive()
            assert connect[0] == 4
            send(b"\5" + connect[1:5] + struct.pack(">I", 0x51 + number))

    def close(self) -> None:
        for sock in (self._tcp, self._udp, self._listener):
            if sock is not None:
                sock.close()


def test_the_retry_time_of_a_link_begins_anew_with_every_answer() -> None:
    """The answers together take longer than the retry time, and each comes well within it."""
    with ExitStack() as stack:
        device = stack.enter_context(Device(RANK_0, lanes=1, retry_time_s=RETRY_TIME_S))
        slow = SlowRank(0.45 * RETRY_TIME_S)
        group = Group(device, 0, 2, lambda handle: [handle, slow.handle])
        stack.callback(group.close)
        stack.callback(slow.close)
        barrier = group.barrier()
        slow.answer()
        assert group.error is None, group.error
        assert not barrier.done


def test_a_link_that_was_wanted_long_ago_has_the_whole_retry_time() -> None:
    """A receive from any rank wants links to all. One that is not needed is not made until the next operation."""
    with world(3, retry_time_s=RETRY_TIME_S) as made:
        data = np.zeros(4, np.uint8)

        def send(tag: int) -> None:
            made.groups[1].send(data.ctypes.data, 4, 2, tag=tag).wait(DEADLINE_S)

        for tag, pause_s in ((1, 1.2 * RETRY_TIME_S), (2, 0.0)):
            receive = made.groups[2].recv(data.ctypes.data, 4, tag=tag)
            sending = made._pool.submit(send, tag)
            receive.wait(DEADLINE_S)
            sending.result(DEADLINE_S)
            time.sleep(pause_s)
        made.run(lambda group: group.barrier().wait(DEADLINE_S))
