# SPDX-License-Identifier: Apache-2.0
"""Made-up snapshots of live counters."""

from __future__ import annotations

from typing import Any

from hostlib.stats import ConnectionSnapshot, DeviceSnapshot, Discards, LaneSnapshot, Messages, Process, Survey
from testbed.live.waits import Dump


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
        "messages": Messages(1, 2, 3, 4, 5, 6, 7, 8),
        "discards": Discards(1, 2, 3, 4, 5, 6, 7),
        "path_client": None,
    }
    known = {"time_s": time_s, "guid": address, "address": address, "lanes": lanes}
    return DeviceSnapshot(**{**plain, **known, **changes})


def survey(*devices: DeviceSnapshot, pid: int = 42) -> Survey:
    """A survey that found these devices in one process."""
    return Survey((Process(pid, "/usr/bin/python train.py", devices, uid=1000),), (), (), ())


def connection(to: DeviceSnapshot | str, number: int = 1, **changes: Any) -> ConnectionSnapshot:
    """A connection to a device, or to a peer at this address of which nothing is known, on which nothing is under way.

    Both ends have the same number. The last progress was at second 0.
    """
    zeros = dict.fromkeys(ConnectionSnapshot.__slots__, 0)
    address, port, guid = (to, 4791, "elsewhere") if isinstance(to, str) else (to.address, to.udp_port, to.guid)
    plain = {"peer": address, "peer_port": port, "peer_guid": guid, "id": number, "remote_id": number, "state": "open"}
    return ConnectionSnapshot(**{**zeros, **plain, **changes})


def dump(host: str, *devices: DeviceSnapshot, pid: int = 42, clock_s: float = 100.0, state: str = "S") -> Dump:
    """A dump of a host with these devices in one process."""
    return Dump(host, clock_s, (Process(pid, "python train.py", devices, state),))
