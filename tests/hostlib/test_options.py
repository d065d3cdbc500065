# SPDX-License-Identifier: Apache-2.0
"""Options of a device: the signature agrees with the engine, and wrong values are refused with one sentence."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import socket
import typing
from typing import Any

import numpy as np
import pytest

from hostlib import Device, DeviceError, Faults, Policy, TransportError, _engine, local_interfaces
from hostlib.device import Backend, CongestionControl, LanesPer
from tests.ports import free_ports

from .conftest import A, B, join

TABLE = {row["name"]: row for row in _engine.options()}
SIGNATURE = inspect.signature(Device.__init__).parameters
ANNOTATIONS = typing.get_type_hints(Device.__init__)
FAULT_FIELDS = {f"faults.{field.name}": field for field in dataclasses.fields(Faults)}

TYPES = {
    "integer": int,
    "bytes": int,
    "number": float,
    "bits per second": float,
    "seconds": float,
    "range of seconds": tuple[float, float],
    "text": str,
}


# -- one table: the signature of Device agrees with the engine ---------------------------------------------------------


def test_the_keywords_of_a_device_are_the_options_of_the_engine() -> None:
    keywords = {name for name, p in SIGNATURE.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == {name.partition(".")[0] for name in TABLE}
    assert set(FAULT_FIELDS) == {name for name in TABLE if name.startswith("faults.")}


@pytest.mark.parametrize("name", [name for name in TABLE if not name.startswith("faults.")])
def test_default_type_and_documentation_of_a_keyword_are_the_options(name: str) -> None:
    row = TABLE[name]
    if name == "busy_poll_s":  # the engine's 0 suits NCCL; Python's default depends on the cores
        assert SIGNATURE[name].default is None
    else:
        assert SIGNATURE[name].default == row["default"]
    annotation = ANNOTATIONS[name]
    choices = {
        "policy": typing.get_args(Policy),
        "backend": typing.get_args(Backend),
        "congestion_control": typing.get_args(CongestionControl),
        "lanes_per": typing.get_args(LanesPer),
    }
    if row["type"] == "choice":
        assert list(choices[name]) == row["choices"]
    elif row["type"] in TYPES:
        assert TYPES[row["type"]] in (annotation, *typing.get_args(annotation))
    assert (type(None) in typing.get_args(annotation)) == (SIGNATURE[name].default is None)
    assert f"``{name}``" in (Device.__doc__ or "")


@pytest.mark.parametrize("name", FAULT_FIELDS)
def test_default_of_a_fault_is_the_options(name: str) -> None:
    assert FAULT_FIELDS[name].default == TABLE[name]["default"]


def outside(row: dict[str, Any]) -> list[Any]:
    """Values just outside an option's bounds."""
    least, most = row["bounds"]
    if isinstance(least, int):
        return [least - 1, most + 1]
    beyond = [math.nextafter(least, -math.inf), math.nextafter(most, math.inf), math.nan, math.inf, -math.inf]
    return [(value, value) for value in beyond] if row["type"] == "range of seconds" else beyond


def with_option(name: str, value: Any) -> None:
    """Pass an option through the public interface."""
    if name in FAULT_FIELDS:
        Faults(**{name.removeprefix("faults."): value})
    else:
        Device(A, **{name: value}).close()


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if "bounds" in row])
def test_a_value_outside_the_bounds_is_refused_with_its_name_and_what_is_allowed(name: str) -> None:
    row = TABLE[name]
    for value in row["bounds"]:
        _engine.check_option(name, (value, value) if row["type"] == "range of seconds" else value)
    for value in outside(row):
        message = f"{name} must be {row['allowed']}, not {value}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            _engine.check_option(name, value)
        with pytest.raises(ValueError, match=f"^{re.escape(name)} must be "):
            with_option(name, value)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy must be ecmp, pinned, adaptive or controller, not 'best'"),
        ({"backend": "hard"}, "backend must be soft, tcp or verbs, not 'hard'"),
        ({"lanes": 0}, "lanes must be 1 to 1024, not 0"),
        ({"path_mtu": 1500}, "path_mtu must be 256, 512, 1024, 2048 or 4096, not 1500"),
        ({"policy": "pinned"}, "policy='pinned' needs ports, the UDP source ports for each peer address"),
        ({"ports": {B: [50000]}}, "ports is only for policy='pinned', not for 'ecmp'"),
        ({"policy": "pinned", "ports": {B: []}}, "the list of source ports for peer 127.0.0.2 is empty"),
        ({"policy": "pinned", "ports": {B: [4791]}}, "source port 4791 for peer 127.0.0.2 is outside 49152..65535"),
        ({"policy": "pinned", "ports": {B: [65536]}}, "source port 65536 for peer 127.0.0.2 is outside 49152..65535"),
        ({"policy": "pinned", "ports": {"h2": [50000]}}, "'h2' is not an IP address such as 10.0.0.1 or fd00::1"),
        (
            {"policy": "pinned", "ports": {"fd00::2": [50000]}, "segments": {"fd00::2": [["10.0.0.9"]]}},
            "'10.0.0.9', a segment, is not an IPv6 address such as fd00::1",
        ),
        (
            {"policy": "pinned", "ports": {B: [50000]}, "segments": {B: [["fd03::1"]]}},
            f"'{B}', a peer with segments, is not an IPv6 address such as fd00::1",
        ),
        (
            {"policy": "pinned", "ports": {"fd00::2": [50000]}, "segments": {"fd00::2": [[]]}},
            "a lane to peer fd00::2 has 0 segments: give it 1 to 16",
        ),
        (
            {"policy": "pinned", "ports": {"fd00::2": [50000, 50001]}, "segments": {"fd00::2": [["fd03::1"]]}},
            "segments for fd00::2 has 1 lanes: ports must list as many source ports for that peer",
        ),
        (
            {
                "policy": "pinned",
                "ports": {"fd00::2": [50000, 50000]},
                "segments": {"fd00::2": [["fd03::1"], ["fd03::2"]]},
            },
            "source port 50000 for peer fd00::2 has two lists of segments: give each its own port",
        ),
        (
            {
                "backend": "tcp",
                "lanes": 1,
                "policy": "pinned",
                "ports": {"fd00::2": [50000]},
                "segments": {"fd00::2": [["fd03::1"]]},
            },
            "segments is only for backend='soft': no other back end sends IPv6 routing headers",
        ),
        ({"seed": -1}, f"seed must be 0 to {2**64 - 1}, not -1"),
        ({"line_rate_bps": 0}, "line_rate_bps must be 1 to 1e15, not 0"),
        ({"flowlet_bytes": 2**80}, f"flowlet_bytes must be 1 to 2147483648, not {2**80}"),
        ({"retry_time_s": math.inf}, "retry_time_s must be 0 to 1000000, not inf"),
        ({"congestion_control": "fast"}, "congestion_control must be delay or fixed_window, not 'fast'"),
        ({"window_packets": 8}, "window_packets is only for congestion_control='fixed_window'"),
        (
            {"backend": "verbs", "congestion_control": "fixed_window"},
            "congestion_control is only for backend='soft': an RDMA NIC has its own congestion control",
        ),
        (
            {"backend": "tcp", "congestion_control": "fixed_window"},
            "congestion_control is only for backend='soft': that of TCP is the kernel's, which tcp_congestion names",
        ),
        ({"tcp_congestion": "cubic"}, "tcp_congestion is only for backend='tcp'"),
        (
            {"backend": "tcp", "lanes": 2, "policy": "pinned", "ports": {B: [50000, 50000]}},
            "ports for 127.0.0.2 must name 2 different source ports, one for each lane: TCP lanes to one peer cannot "
            "share one",
        ),
        (
            {"backend": "tcp", "faults": Faults(drop=0.1)},
            "faults of packets are only for backend='soft': TCP repairs them",
        ),
        ({"faults": Faults(cut=0.1)}, "faults.cut is only for backend='tcp'"),
        ({"service_level": 1}, "gid_index and service_level are only for backend='verbs'"),
        (
            {"backend": "verbs", "faults": Faults(drop=0.1)},
            "faults is only for backend='soft': the packets of an RDMA NIC do not pass through this library",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Device(A, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": "8"}, "lanes must be an integer, not '8'"),
        ({"flowlet_bytes": 65536.0}, "flowlet_bytes must be an integer, not 65536.0"),
        ({"retry_time_s": "10s"}, "retry_time_s must be a number, not '10s'"),
        ({"policy": 1}, "policy must be a string, not 1"),
    ],
)
def test_wrong_types_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Device(A, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    with Device(A, lanes=np.int64(2), retry_time_s=np.float32(5)) as device:  # type: ignore[arg-type]
        assert device.udp_port > 0


@pytest.mark.parametrize("name", ["drop", "duplicate", "reorder", "corrupt"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_faults_are_probabilities(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^faults.{name} must be 0 to 1, not {value}$"):
        Faults(**{name: value})


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0", "10.0.0.256", "::g", "fe80::1%lo"])
def test_an_address_is_an_ip_address(address: str) -> None:
    with pytest.raises(ValueError, match=f"^'{address}' is not an IP address such as 10.0.0.1 or fd00::1$"):
        Device(address)


def test_an_address_of_another_machine_is_a_device_error() -> None:
    with pytest.raises(DeviceError) as error:
        Device("192.0.2.1")
    assert str(error.value) == ("no interface of this machine has the address 192.0.2.1 (list them with: ip address)")
    assert isinstance(error.value, TransportError)


def test_a_source_port_that_another_program_holds_is_a_device_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        (port,) = free_ports(1)
        taken.bind((A, port))
        with Device(A, lanes=1, policy="pinned", ports={B: [port]}) as one, Device(B, lanes=1) as two:
            with pytest.raises(DeviceError) as error:
                one.connect(two.listen().handle)
            assert str(error.value) == f"UDP source port {port} of {A} is taken by another program"


def test_set_port_accepts_ports_of_rocev2s_source_port_range() -> None:
    with Device(A, lanes=2) as one, Device(B, lanes=2) as two:
        joined = join(one, two)
        for wrong in (49151, 65536, -1):
            with pytest.raises(ValueError, match=f"^source port {wrong} is outside 49152..65535$"):
                one.set_port(B, 0, wrong)
        (port,) = free_ports(1)
        with pytest.raises(ValueError, match="'nobody' is not an IP address"):
            one.set_port("nobody", 0, port)
        assert one.set_port(B, 1, port)
        assert not one.set_port(B, 2, port)
        assert not one.set_port("10.9.9.9", 0, port)
        assert [lane["port"] for lane in one.counters()["lanes"]][1] == port
        assert joined.exchange(bytes(range(256))) == bytes(range(256))


def test_the_same_seed_draws_the_same_ports() -> None:
    def ports(seed: int | None) -> list[int]:
        with Device(A, seed=seed) as one, Device(B) as two:
            one.connect(two.listen().handle)
            return [lane["port"] for lane in one.counters()["lanes"]]

    first = ports(1)
    # Another program may take or leave one of them meanwhile.
    assert sum(one == other for one, other in zip(first, ports(1), strict=True)) > len(first) / 2
    assert sum(one == other for one, other in zip(first, ports(2), strict=True)) < len(first) / 2
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
