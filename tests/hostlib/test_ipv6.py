# SPDX-License-Identifier: Apache-2.0
"""Devices with IPv6 addresses: messages, counters and snapshots. tests/integration/transport checks the packets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hostlib import Device, local_interfaces, stats
from hostlib.parameters import read_parameters
from tests.ports import free_ports

from .conftest import DEADLINE_S, Pair, join

LOCAL = "::1"

pytestmark = pytest.mark.skipif(
    all(address != LOCAL for _, address, _ in local_interfaces()), reason="the loopback interface has no address ::1"
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Device(LOCAL, lanes=4) as one, Device(LOCAL, lanes=4) as two:
        yield join(one, two)


@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
def test_messages_pass(pair: Pair, size: int) -> None:
    message = os.urandom(size)
    assert pair.exchange(message) == message
    assert pair.to.peer == pair.back.peer == LOCAL
    assert {lane["peer"] for lane in pair.one.counters()["lanes"]} == {LOCAL}


def test_snapshots_name_ipv6_addresses(pair: Pair) -> None:
    buffer = bytearray(10)
    waiting = pair.back.recv(buffer)

    def snapshot() -> stats.DeviceSnapshot:
        (process,) = stats.survey([os.getpid()]).processes
        (device,) = (device for device in process.devices if device.udp_port == pair.two.udp_port)
        return device

    deadline = time.monotonic() + DEADLINE_S
    while not snapshot().under_way and time.monotonic() < deadline:
        time.sleep(stats.EVERY_S / 10)
    device = snapshot()
    assert (device.address, device.name) == (LOCAL, f"[::1]:{pair.two.udp_port}")
    assert {lane.peer for lane in device.lanes} == {LOCAL}
    assert [connection.peer for connection in device.under_way] == [LOCAL]
    assert pair.to.send(bytes(10)).wait(DEADLINE_S) == 10
    assert waiting.wait(DEADLINE_S) == 10


def test_pinned_ports_name_ipv6_peers() -> None:
    ports = free_ports(2)
    with Device(LOCAL, lanes=2, policy="pinned", ports={LOCAL: ports}) as one, Device(LOCAL, lanes=2) as two:
        pair = join(one, two)
        assert pair.exchange(bytes(100_000)) == bytes(100_000)
        assert [lane["port"] for lane in one.counters()["lanes"]] == ports


def test_link_local_addresses_are_not_listed() -> None:
    assert not [address for _, address, _ in local_interfaces() if address.startswith("fe80")]


def test_parameters_take_ipv6_addresses() -> None:
    given = read_parameters({"PARALET_ADDRESSES": "FD00::0:1, 10.0.0.1"})
    assert given.addresses == ("fd00::1", "10.0.0.1")
    local = [("eth0", "10.0.0.1", 1500), ("eth0", "fd00::1", 1500), ("eth1", "fd00::2", 1500)]
    assert given.candidates(local) == ["fd00::1", "10.0.0.1"]
    assert read_parameters({"PARALET_IFNAME": "eth"}).candidates(local) == ["10.0.0.1"]
    assert read_parameters({"PARALET_IFNAME": "eth1"}).candidates(local) == ["fd00::2"]
    pinned = read_parameters({"PARALET_POLICY": "pinned", "PARALET_PORTS": "fd00::2=50000,50001; 10.0.0.2=50002"})
    assert pinned.options["ports"] == {"fd00::2": [50000, 50001], "10.0.0.2": [50002]}
    along = read_parameters(
        {
            "PARALET_BACKEND": "soft",
            "PARALET_POLICY": "pinned",
            "PARALET_PORTS": "fd00::2=50000,50001",
            "PARALET_SEGMENTS": "fd00::2=fd03::1,FD03::2 | fd03::3",
        }
    )
    assert along.options["segments"] == {"fd00::2": [["fd03::1", "fd03::2"], ["fd03::3"]]}
    with pytest.raises(ValueError, match="PARALET_ADDRESSES"):
        read_parameters({"PARALET_ADDRESSES": "fd00::g"})
