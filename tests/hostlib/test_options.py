# SPDX-License-Identifier: Apache-2.0
"""Wrong options are refused with one sentence that names them, before anything is opened."""

from __future__ import annotations

import math
import re
import socket
from typing import Any

import pytest

from hostlib import Device, DeviceError, Faults, TransportError, local_interfaces

from .conftest import A, B, join


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy must be one of ecmp, pinned, adaptive, controller, not 'best'"),
        ({"lanes": 0}, "lanes must be 1 to 1024, not 0"),
        ({"lanes": 1025}, "lanes must be 1 to 1024, not 1025"),
        ({"path_mtu": 1500}, "path_mtu must be one of 256, 512, 1024, 2048, 4096, not 1500"),
        ({"policy": "pinned"}, "policy 'pinned' needs ports: a list of UDP source ports for each peer address"),
        ({"ports": {B: [50000]}}, "ports are for policy 'pinned', not for 'ecmp'"),
        ({"policy": "pinned", "ports": {B: []}}, "the list of source ports for peer 127.0.0.2 is empty"),
        ({"policy": "pinned", "ports": {B: [4791]}}, "source port 4791 for peer 127.0.0.2 is outside 49152..65535"),
        ({"policy": "pinned", "ports": {B: [65536]}}, "source port 65536 for peer 127.0.0.2 is outside 49152..65535"),
        ({"policy": "pinned", "ports": {"h2": [50000]}}, "'h2' is not an IPv4 address such as 10.0.0.1"),
        ({"seed": -1}, f"seed must be 0 to {2**64 - 1}, not -1"),
        ({"line_rate_bps": 0}, "line_rate_bps must be 1 to 1000000000000000.0, not 0"),
        ({"line_rate_bps": math.inf}, "line_rate_bps must be 1 to 1000000000000000.0, not inf"),
        ({"base_rtt_s": -1}, "base_rtt_s must be 0 to 1000000, not -1"),
        ({"flowlet_bytes": 0}, "flowlet_bytes must be 1 to 2147483648, not 0"),
        ({"flowlet_bytes": 2**40}, f"flowlet_bytes must be 1 to 2147483648, not {2**40}"),
        ({"mice_bytes": -1}, "mice_bytes must be 0 to 2147483648, not -1"),
        ({"target_queue_s": -0.1}, "target_queue_s must be 0 to 1000000, not -0.1"),
        ({"min_timeout_s": math.nan}, "min_timeout_s must be 0 to 1000000, not nan"),
        ({"retry_time_s": math.inf}, "retry_time_s must be 0 to 1000000, not inf"),
        ({"busy_poll_s": -1}, "busy_poll_s must be 0 to 1000000, not -1"),
        ({"idle_peer_s": -1}, "idle_peer_s must be 0 to 1000000, not -1"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Device(A, **options)


@pytest.mark.parametrize("name", ["drop", "duplicate", "reorder", "corrupt"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_faults_are_probabilities(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} is a probability from 0 to 1, not {value}$"):
        Faults(**{name: value})
    with pytest.raises(ValueError, match=r"^seed must be 0 to 18446744073709551615, not -1$"):
        Faults(seed=-1)


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0", "10.0.0.256", "::1"])
def test_an_address_is_an_ipv4_address(address: str) -> None:
    with pytest.raises(ValueError, match=f"^'{address}' is not an IPv4 address such as 10.0.0.1$"):
        Device(address)


def test_an_address_of_another_machine_is_a_device_error() -> None:
    with pytest.raises(DeviceError) as error:
        Device("192.0.2.1")
    assert str(error.value) == (
        "no interface of this machine has the address 192.0.2.1 (list them with: ip -4 address)"
    )
    assert isinstance(error.value, TransportError)


def test_a_source_port_that_another_program_holds_is_a_device_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        port = next(p for p in range(0xE000, 0xF000) if bound(taken, p))
        with Device(A, lanes=1, policy="pinned", ports={B: [port]}) as one, Device(B, lanes=1) as two:
            with pytest.raises(DeviceError) as error:
                one.connect(two.listen().handle)
            assert str(error.value) == f"UDP source port {port} of {A} is taken by another program"


def bound(holder: socket.socket, port: int) -> bool:
    try:
        holder.bind((A, port))
    except OSError:
        return False
    return True


def test_set_port_takes_ports_of_the_entropy_range() -> None:
    with Device(A, lanes=2) as one, Device(B, lanes=2) as two:
        joined = join(one, two)
        for port in (49151, 65536, -1):
            with pytest.raises(ValueError, match=f"^source port {port} is outside 49152..65535$"):
                one.set_port(B, 0, port)
        with pytest.raises(ValueError, match="'nobody' is not an IPv4 address"):
            one.set_port("nobody", 0, 50000)
        assert one.set_port(B, 1, 50000)
        assert not one.set_port(B, 2, 50000)
        assert not one.set_port("10.9.9.9", 0, 50000)
        assert [lane["port"] for lane in one.counters()["lanes"]][1] == 50000
        assert joined.exchange(bytes(range(256))) == bytes(range(256))


def test_the_same_seed_draws_the_same_ports() -> None:
    def ports(seed: int | None) -> list[int]:
        with Device(A, seed=seed) as one, Device(B) as two:
            one.connect(two.listen().handle)
            return [lane["port"] for lane in one.counters()["lanes"]]

    first = ports(1)
    assert first == ports(1)
    assert first != ports(2)
    assert len(set(first)) > 4
    assert all(0xC000 <= port <= 0xFFFF for port in first)


def test_the_loopback_interface_is_listed_and_bounds_the_path_mtu() -> None:
    (mtu,) = [mtu for _, address, mtu in local_interfaces() if address == A]
    assert mtu >= 256
    with Device(A) as device:
        assert device.path_mtu == 4096
        assert device.udp_port > 0
    with Device(A, path_mtu=512) as device:
        assert device.path_mtu == 512
