# SPDX-License-Identifier: Apache-2.0
"""The `verbs` back end on the kernel's rxe against `soft` on a plain interface: the engine on both ends of the wire."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.softroce.interop.conftest import PROPERTY
from tests.softroce.interop.network import PLAIN_ADDRESS, RXE, RXE_ADDRESS, Wire, in_namespace

Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(600)

VERBS_TO_SOFT, SOFT_TO_VERBS = "verbs to soft", "soft to verbs"
SIZES = (0, 1, 64, 65, 512, 513, 5000, 50_001)  # both sides of what goes inline and of what is received by copy
PORT = 0xEABC
TIMEOUT_S = 180


class Ends:
    """A back end, its queue pair, and the other's."""

    def __init__(self) -> None:
        import raw_qp

        with in_namespace():
            self.soft = raw_qp.soft(PLAIN_ADDRESS, min_timeout_s=0.5, retry_time_s=TIMEOUT_S)
        self.verbs = raw_qp.verbs(RXE_ADDRESS, device=RXE, min_timeout_s=0.5)
        self.soft_qp, soft_psn = self.soft.create_qp()
        self.verbs_qp, verbs_psn = self.verbs.create_qp()
        with in_namespace():
            common = {"path_mtu": 1024}
            assert self.soft.connect_qp(
                self.soft_qp,
                address=RXE_ADDRESS,
                remote_qpn=self.verbs_qp,
                first_psn=verbs_psn,
                source_port=0xC123,
                **common,
            )
        assert self.verbs.connect_qp(
            self.verbs_qp,
            address=PLAIN_ADDRESS,
            remote_qpn=self.soft_qp,
            first_psn=soft_psn,
            source_port=PORT,
            **common,
        )

    def completions(self, soft: int, verbs: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """So many completions of each side."""
        end = time.monotonic() + TIMEOUT_S
        of_soft: list[dict[str, Any]] = []
        of_verbs: list[dict[str, Any]] = []
        while len(of_soft) < soft or len(of_verbs) < verbs:
            of_soft += self.soft.progress(0.005)
            of_verbs += self.verbs.progress(0.005)
            assert time.monotonic() < end, (of_soft, of_verbs)
        return of_soft, of_verbs

    def direction(self, name: str) -> tuple[Any, int, Any]:
        """Sender, its queue pair, receiver."""
        if name == VERBS_TO_SOFT:
            return self.verbs, self.verbs_qp, self.soft
        return self.soft, self.soft_qp, self.verbs


@pytest.fixture
def ends(wire: Wire) -> Iterator[Ends]:
    made = Ends()
    yield made
    made.verbs.close()
    made.soft.close()


@pytest.mark.parametrize("direction", [VERBS_TO_SOFT, SOFT_TO_VERBS])
@pytest.mark.parametrize("verb", ["WRITE_WITH_IMM", "SEND"])
def test_messages_of_many_sizes(ends: Ends, record_property: Record, verb: str, direction: str) -> None:
    from tests.softroce.interop.pair import pattern

    record_property(PROPERTY, (f"{verb}, 0 B to 50 kB", direction, "MTU 1024"))
    sender, qp, receiver = ends.direction(direction)
    for size in SIZES:
        data, memory = pattern(size), bytearray(size + 2)
        if verb == "SEND":
            receiver.post_receive(memory)
            sender.send(qp, data)
        else:
            rkey = receiver.register_memory(memory)
            receiver.post_receive(bytearray(64))
            sender.write(qp, data, receiver.remote_address(rkey) + 1, rkey, 0x12345678)
        done = [each for side in ends.completions(1, 1) for each in side]
        assert {each["status"] for each in done} == {"success"}
        arrived = next(each for each in done if each["kind"] != "sent")
        assert arrived["byte_length"] == size
        if verb == "SEND":
            assert memory == data + b"\0\0"
        else:
            assert arrived["imm"] == 0x12345678
            assert memory == b"\0" + data + b"\0"
            receiver.deregister_memory(rkey)


def test_one_completion_covers_unsignalled_requests_and_an_error_covers_later_ones(
    ends: Ends, record_property: Record
) -> None:
    record_property(PROPERTY, ("60 WRITEs, the 50th with a wrong rkey", VERBS_TO_SOFT, ""))
    memory = bytearray(1000)
    rkey = ends.soft.register_memory(memory)
    cookies = [
        ends.verbs.write(ends.verbs_qp, bytes([i]) * 10, 10 * i, rkey if i != 50 else rkey ^ 1) for i in range(60)
    ]
    _, done = ends.completions(0, 60)
    assert [each["cookie"] for each in done] == cookies
    statuses = [each["status"] for each in done]
    assert set(statuses[:50]) == {"success"}
    assert statuses[50] == "the peer refused access to its memory (rkey or range)"
    assert len(set(statuses[51:])) == 1
    assert statuses[51].startswith("the queue pair was closed or failed")
    assert memory[:500] == b"".join(bytes([i]) * 10 for i in range(50))
    ends.verbs.send(ends.verbs_qp, b"late")
    _, (late,) = ends.completions(0, 1)
    assert late["status"] == statuses[51]


def test_the_source_port_is_the_one_asked_for(ends: Ends, record_property: Record) -> None:
    record_property(PROPERTY, ("UDP source port by flow label", VERBS_TO_SOFT, f"{PORT}"))
    with in_namespace():
        sniffer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    with sniffer:
        rkey = ends.soft.register_memory(bytearray(10))
        ends.verbs.write(ends.verbs_qp, b"x", 0, rkey)
        ends.completions(0, 1)
        packet = sniffer.recv(2048)
    (port,) = struct.unpack_from("!H", packet, 20)
    assert port == PORT
    assert ends.verbs.port_method == "flow_label"
    assert ends.verbs.statistics(ends.verbs_qp)["port"] == PORT
    assert not ends.verbs.set_port(ends.verbs_qp, 0xC777)  # fixed while it sends, and it says so


def test_ports_are_listed(wire: Wire) -> None:
    import raw_qp

    assert (RXE, RXE_ADDRESS) in {
        (device, address) for device, _, active, _, _, address in raw_qp.verbs_ports() if active
    }


def test_an_address_without_a_device_is_refused(wire: Wire) -> None:
    import raw_qp

    with pytest.raises(raw_qp.DeviceError, match=r"no RDMA device has a RoCEv2 GID for 192\.0\.2\.1 .*rdma link add"):
        raw_qp.verbs("192.0.2.1")
