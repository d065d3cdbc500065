# SPDX-License-Identifier: Apache-2.0
"""Made-up snapshots of live counters."""

from __future__ import annotations

from typing import Any

from hostlib.stats import DeviceSnapshot, Discards, LaneSnapshot, Messages, Process, Survey


def lane(number: int, tx_bytes: int = 0, peer: str = "10.0.0.2", **changes: Any) -> LaneSnapshot:
    """A lane that has sent this much; its QP and port follow from its number."""
    zeros = dict.fromkeys(LaneSnapshot.__slots__, 0)
    plain = {"peer": peer, "lane": number, "qpn": 100 + number, "port": 50_000 + number, "port_method": "socket"}
    measured = {"window": 2.5, "rtt_s": 123e-6, "tx_bytes": tx_bytes}
    return LaneSnapshot(**{**zeros, **plain, **measured, **changes})


def device(*lanes: LaneSnapshot, time_s: float = 0.0, address: str = "10.0.0.1", **changes: Any) -> DeviceSnapshot:
    """A device with these lanes."""
    plain: dict[str, Any] = {
        "generation": 1,
        "owner_pid": 42,
        "interface": "eth0",
        "udp_port": 4791,
        "policy": "ecmp",
        "m": 4,
        "path_mtu": 4096,
        "line_rate_bps": None,
        "connections": 3,
        "peers": 1,
        "messages": Messages(1, 2, 3, 4, 5),
        "discards": Discards(1, 2, 3, 4, 5, 6, 7),
        "path_client": None,
    }
    known = {"time_s": time_s, "guid": address, "address": address, "lanes": lanes}
    return DeviceSnapshot(**{**plain, **known, **changes})


def survey(*devices: DeviceSnapshot, pid: int = 42) -> Survey:
    """A survey that found these devices in one process."""
    return Survey((Process(pid, "/usr/bin/python train.py", devices),), (), (), ())
