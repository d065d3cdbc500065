# SPDX-License-Identifier: Apache-2.0
"""Several addresses as one device."""

from __future__ import annotations

import os
import time

import pytest

from hostlib import Device, stats

from .conftest import DEADLINE_S, join

ONE = "127.0.0.1+127.0.0.3"
TWO = "127.0.0.2+127.0.0.4"


def test_messages_go_over_both_members() -> None:
    message = bytes(range(256)) * 2000
    with Device(ONE, lanes=4, flowlet_bytes=16_384) as one, Device(TWO, lanes=4) as two:
        pair = join(one, two)
        used: set[int] = set()
        for _ in range(1000):
            assert pair.exchange(message) == message
            used = {lane["member"] for lane in one.counters()["lanes"] if lane["flowlets"] > 0}
            if used == {0, 1}:
                break
        assert used == {0, 1}
        assert [lane["member"] for lane in two.counters()["lanes"]] == [0, 1, 0, 1]


def snapshot(address: str) -> stats.DeviceSnapshot:
    """The live counters of this process's device at an address, once it has QPs."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for process in stats.survey([os.getpid()]).processes:
            for found in process.devices:
                if found.address == address and found.lanes:
                    return found
        time.sleep(0.02)
    raise AssertionError("the device publishes no counters")


def test_live_counters_name_the_members() -> None:
    with Device(ONE, lanes=4) as one, Device("127.0.0.5", lanes=4) as single, Device(TWO, lanes=4) as two:
        assert join(one, two).exchange(b"hello") == b"hello"
        assert join(single, two).exchange(b"hello") == b"hello"
        fused = snapshot("127.0.0.1")
        assert [(nic.interface, nic.address) for nic in fused.members] == [("lo", "127.0.0.1"), ("lo", "127.0.0.3")]
        assert fused.members[0].udp_port == fused.udp_port == one.udp_port
        assert [lane.member for lane in fused.lanes] == [0, 1, 0, 1]
        assert snapshot("127.0.0.5").members == ()


def test_one_nic_uses_member_0_of_two() -> None:
    with Device("127.0.0.1", lanes=4) as one, Device(TWO, lanes=4) as two:
        assert join(one, two).exchange(b"hello") == b"hello"
        assert [lane["member"] for lane in two.counters()["lanes"]] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("address", "options", "error"),
    [
        ("127.0.0.1+", {}, "'' is not an IP address"),
        ("127.0.0.1+lo", {}, "'lo' is not an IP address"),
        ("127.0.0.1+127.0.0.1", {}, "127.0.0.1 is given twice: fuse different NICs"),
        ("+".join(f"127.0.0.{i}" for i in range(1, 6)), {}, "names 5 NICs: at most 4"),
        (ONE, {"lanes": 1}, "lanes must be at least 2"),
        (
            ONE,
            {"policy": "controller", "path_service": "127.0.0.1:1", "token": "secret-of-16-bytes"},
            "is only for a device with one NIC",
        ),
    ],
)
def test_mistakes_are_one_sentence(address: str, options: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("+", r"\+")):
        Device(address, **options)  # type: ignore[arg-type]
