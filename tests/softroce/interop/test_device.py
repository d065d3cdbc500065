# SPDX-License-Identifier: Apache-2.0
"""Whole devices on the kernel's rxe: `verbs` with `soft` and with itself."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hostlib import Connection, Device, DeviceError
from hostlib.device import Backend
from tests.softroce.interop.conftest import PROPERTY
from tests.softroce.interop.network import NAMESPACE, PLAIN_ADDRESS, RXE_ADDRESS, Wire, in_namespace

Record = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(600)

SIZES = (0, 1, 64, 65, 512, 4096, 4097, 50_001, 300_000)  # both sides of inline, of one packet, of one flowlet
LARGEST = 4 << 20
STREAM = 1 << 20
TIMEOUT_S = 120.0
ADDRESS = {"verbs": RXE_ADDRESS, "soft": PLAIN_ADDRESS}
ROOT = Path(__file__).parents[3]
SO_RCVBUFFORCE = 33  # asm-generic/socket.h


@dataclass
class Echo:
    """The other process."""

    handle: bytes
    process: subprocess.Popen[str]

    def lanes(self) -> list[dict[str, Any]]:
        """Its counters; call it after the last message."""
        assert self.process.stdout is not None
        return cast(list[dict[str, Any]], json.loads(self.process.stdout.readline()))


@contextmanager
def echo(backend: str, messages: int) -> Iterator[Echo]:
    """`soft` in the plain namespace, `verbs` on the rxe device."""
    inside = ("ip", "netns", "exec", NAMESPACE) if backend == "soft" else ()
    program = (sys.executable, "-m", "tests.softroce.interop.device_process", backend, ADDRESS[backend], str(messages))
    with subprocess.Popen(
        [*inside, *program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Echo(bytes.fromhex(process.stdout.readline()), process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(TIMEOUT_S)


@contextmanager
def connected(backend: str, handle: bytes, **options: Any) -> Iterator[tuple[Device, Connection]]:
    """A device of this process that has connected to the handle."""
    common = {"lanes": 2, "min_timeout_s": 0.5, "retry_time_s": TIMEOUT_S, "flowlet_bytes": 65_536}
    with (
        Device(ADDRESS[backend], backend=cast(Backend, backend), **{**common, **options}) as device,
        device.connect(handle, TIMEOUT_S) as connection,
    ):
        yield device, connection


def bounce(
    device: Device,
    connection: Connection,
    size: int,
    *,
    registered: bool,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """There and back, every byte compared, with a byte on either side that must stay as it was.

    `meanwhile` is called when the message has set out.
    """
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    back = np.full(size + 2, 7, dtype=np.uint8)
    if registered:
        source, target = device.register(data), device.register(back)
        receive = connection.recv(target.slice(1, size))
        sending = connection.send(source)
        meanwhile()
        sending.wait(TIMEOUT_S)
    else:
        receive = connection.recv(back[1:-1])
        connection.send(data.tobytes()).wait(TIMEOUT_S)  # read-only memory can be sent
    assert receive.wait(TIMEOUT_S) == size
    assert np.array_equal(back[1:-1], data)
    assert back[0] == back[-1] == 7


@pytest.mark.parametrize(("here", "there"), [("verbs", "soft"), ("verbs", "verbs")])
def test_messages_are_echoed(wire: Wire, record_property: Record, here: str, there: str) -> None:
    record_property(PROPERTY, ("Device: messages of 0 B to 4 MiB, and back", f"{here} to {there}", "2 lanes"))
    with echo(there, 2 * len(SIZES) + 1) as peer, connected(here, peer.handle) as (device, connection):
        for size in SIZES:
            bounce(device, connection, size, registered=False)
            bounce(device, connection, size, registered=True)
        bounce(device, connection, LARGEST, registered=True)
        lanes = peer.lanes()
        assert {row["port_method"] for row in device.counters()["lanes"]} == {"flow_label"}
        assert {row["port_method"] for row in lanes} == {"socket" if there == "soft" else "flow_label"}
        assert all(row["flowlets"] > 0 for row in device.counters()["lanes"])


def test_soft_connects_to_verbs(wire: Wire, record_property: Record) -> None:
    record_property(PROPERTY, ("Device: messages of 0 B to 300 kB, and back", "soft to verbs", "2 lanes"))
    with echo("verbs", 2 * len(SIZES)) as peer, in_namespace(), connected("soft", peer.handle) as (device, connection):
        for size in SIZES:
            bounce(device, connection, size, registered=False)
            bounce(device, connection, size, registered=True)
        assert device.counters()["discards"]["icrc"] == 0


def test_pinned_lanes_have_their_ports(wire: Wire, record_property: Record) -> None:
    record_property(PROPERTY, ("Device: pinned UDP source ports", "verbs to soft", "0xC111, 0xD222"))
    ports = [0xC111, 0xD222]
    with (
        echo("soft", 2) as peer,
        connected("verbs", peer.handle, policy="pinned", ports={PLAIN_ADDRESS: ports}) as (device, connection),
    ):
        bounce(device, connection, 300_000, registered=True)
        bounce(device, connection, 300_000, registered=True)
        assert [row["port"] for row in device.counters()["lanes"]] == ports


@contextmanager
def seen_ports() -> Iterator[Callable[[], set[int]]]:
    """Source ports of the rxe device's packets that arrived in the plain namespace since the last call."""
    with in_namespace():
        sniffer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    with sniffer:
        sniffer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        sniffer.setblocking(False)

        def ports() -> set[int]:
            out = set()
            while True:
                try:
                    packet = sniffer.recv(64)
                except BlockingIOError:
                    return out
                source, destination = struct.unpack_from("!HH", packet, 20)
                if packet[12:16] == socket.inet_aton(RXE_ADDRESS) and destination == 4791:
                    out.add(source)

        yield ports


@pytest.mark.parametrize("there", ["soft", "verbs"])
def test_lanes_change_their_ports_in_the_middle_of_messages(wire: Wire, record_property: Record, there: str) -> None:
    """A queue pair's port is fixed by its flow label, so the lane goes over to another queue pair."""
    record_property(
        PROPERTY, ("Device: UDP source ports change in mid-stream", f"verbs to {there}", "0xC111 to 0xE333, to 0xE444")
    )
    before = [0xC111, 0xD222]
    with (
        echo(there, 4) as peer,
        connected("verbs", peer.handle, policy="pinned", ports={ADDRESS[there]: before}) as (device, connection),
        seen_ports() as seen,
    ):

        def lanes() -> list[dict[str, Any]]:
            return cast(list[dict[str, Any]], device.counters()["lanes"])

        def move(port: int) -> None:
            moves = lanes()[0]["moves"]
            assert device.set_port(ADDRESS[there], 0, port)
            end = time.monotonic() + TIMEOUT_S
            while lanes()[0]["moves"] == moves:
                assert time.monotonic() < end, f"lane 0 did not move to {port}"
                time.sleep(0.01)

        first = lanes()
        bounce(device, connection, STREAM, registered=True, meanwhile=lambda: move(0xE333))
        bounce(device, connection, STREAM, registered=True, meanwhile=lambda: move(0xE444))
        last = lanes()
        assert [row["port"] for row in last] == [0xE444, before[1]]
        assert [row["moves"] for row in last] == [2, 0]
        assert last[0]["qpn"] != first[0]["qpn"]
        assert last[1]["qpn"] == first[1]["qpn"]
        assert sum(row["tx_bytes"] for row in last) >= 2 * STREAM  # those of queue pairs that are gone included
        if there == "soft":  # an rxe device's packets to itself are on no wire
            assert seen() >= {0xE333, 0xE444, before[1]}
        for _ in range(2):
            bounce(device, connection, 300_000, registered=True)
        if there == "soft":
            assert seen() == {0xE444, before[1]}
        assert [row["moves"] for row in peer.lanes()] == [0, 0]


def test_a_link_that_flaps_is_ridden_out(wire: Wire, record_property: Record) -> None:
    """The kernel breaks the queue pairs that send meanwhile, because they find no route."""
    record_property(PROPERTY, ("Device: the link is down for 2 s", "verbs to soft", "messages go on"))
    with echo("soft", 3) as peer, connected("verbs", peer.handle) as (device, connection):
        bounce(device, connection, 5000, registered=False)
        answer = bytearray(300_000)
        pending = connection.recv(answer)
        with wire.down():
            sending = connection.send(bytes(range(250)) * 1200)
            time.sleep(2)
        sending.wait(TIMEOUT_S)
        assert pending.wait(TIMEOUT_S) == len(answer)
        assert bytes(answer) == bytes(range(250)) * 1200
        bounce(device, connection, 5000, registered=True)


def test_a_port_that_stays_down_fails_pending_requests(wire: Wire, record_property: Record) -> None:
    record_property(PROPERTY, ("Device: the port stays down", "verbs to soft", "requests fail after the retry time"))
    with (
        echo("soft", 1) as peer,
        connected("verbs", peer.handle, retry_time_s=4.0) as (device, connection),
    ):
        bounce(device, connection, 5000, registered=False)
        pending = connection.recv(bytearray(100))  # nothing will come for it
        with wire.down():
            # The retry time ends for the port and for the TCP channel at about the same time. Both name the port.
            with pytest.raises(DeviceError, match="the RDMA port is down"):
                pending.wait(TIMEOUT_S)
            with pytest.raises(DeviceError, match="the RDMA port is down"):
                connection.send(b"late").wait(TIMEOUT_S)
    with echo("soft", 1) as peer, connected("verbs", peer.handle) as (device, connection):
        bounce(device, connection, 5000, registered=False)  # and it comes back


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_adaptive_lane_leaves_a_dead_path(wire: Wire, record_property: Record, lanes: int) -> None:
    record_property(PROPERTY, ("Device: a lane's path is dead, policy adaptive", "verbs to soft", f"m = {lanes}"))
    with (
        echo("soft", 6) as peer,
        connected("verbs", peer.handle, lanes=lanes, policy="adaptive", seed=3) as (device, connection),
    ):
        bounce(device, connection, 5000, registered=False)
        dead = device.counters()["lanes"][0]["port"]
        with wire.swallow(dead):
            for size in (300_000, 100, 300_001, 70_000, 65_536):
                bounce(device, connection, size, registered=True)
            lane = device.counters()["lanes"][0]
        if lanes == 1:
            assert lane["port"] != dead
            assert lane["moves"] >= 1
