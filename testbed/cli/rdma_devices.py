# SPDX-License-Identifier: Apache-2.0
"""The RDMA devices of this machine, listed by pyverbs, and whether their drivers honour the flow label."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/class/infiniband")

_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}  # ibv_port_state
_GID_TYPES = {0: "IB", 1: "RoCE v1", 2: "RoCE v2"}  # ibv_gid_type

# These drivers derive the UDP source port of an RC queue pair from the flow label of its address. Source: the drivers'
# code; for rxe of Linux 6.12 also packets on the wire (docs/interoperability.md). bnxt_re ignores the flow label.
_HONOUR_FLOW_LABEL = {"erdma", "hns_roce", "ionic_rdma", "irdma", "mana_ib", "mlx5_core", "mlx5_ib", "rxe"}
_IGNORE_FLOW_LABEL = {"bnxt_en", "bnxt_re"}
_SINCE = {"rxe": (5, 18)}
"""Drivers of the kernel that honour the flow label since this version of Linux. Earlier versions use the QPN."""


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table; `address` is an IPv4 address if the GID maps one."""

    index: int
    address: str
    type: str


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port. `mtu` is its active path MTU in bytes."""

    number: int
    state: str
    mtu: int
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """A device. `flow_label` says whether its driver derives UDP source ports from flow labels; None if unknown."""

    name: str
    driver: str
    flow_label: bool | None
    ports: tuple[RdmaPort, ...]


def names() -> list[str]:
    """Names of the devices in sysfs. Needs no library."""
    try:
        return sorted(entry.name for entry in SYSFS.iterdir())
    except OSError:
        return []


def devices() -> list[RdmaDevice]:
    """All devices that can be opened. Raises ImportError without pyverbs, OSError when a device cannot be opened."""
    from pyverbs.device import Context
    from pyverbs.pyverbs_error import PyverbsError

    found = []
    for name in names():
        try:
            with Context(name=name) as context:
                found.append(_device(name, context))
        except PyverbsError as error:
            raise OSError(f"RDMA device {name} cannot be queried: {error}") from error
    return found


def driver_of(name: str) -> str:
    """The kernel driver behind a device; software devices name their interface (`parent`) instead. "" if unknown."""
    driver = SYSFS / name / "device" / "driver"
    if driver.exists():
        return driver.resolve().name
    return "rxe" if (SYSFS / name / "parent").exists() else ""


def honours_flow_label(driver: str, release: str | None = None) -> bool | None:
    """Whether a driver honours flow labels; None if unknown. `release` is a kernel's (default: the running one's)."""
    if driver in _HONOUR_FLOW_LABEL:
        since = _SINCE.get(driver, (0, 0))
        version = re.match(r"(\d+)\.(\d+)", release or platform.release())
        return version is None or (int(version[1]), int(version[2])) >= since
    return False if driver in _IGNORE_FLOW_LABEL else None


def address_of(gid: str) -> str:
    """A GID as an IPv4 address if it maps one, else as an IPv6 address. Raises ValueError for malformed text."""
    address = IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _device(name: str, context: Any) -> RdmaDevice:
    driver = driver_of(name)
    attributes = context.query_device()
    numbers = range(1, attributes.phys_port_cnt + 1)
    table = context.query_gid_table(sum(context.query_port(number).gid_tbl_len for number in numbers))
    ports = tuple(_port(number, context, table) for number in numbers)
    return RdmaDevice(name, driver, honours_flow_label(driver), ports)


def _port(number: int, context: Any, table: list[Any]) -> RdmaPort:
    port = context.query_port(number)
    gids = tuple(
        Gid(entry.gid_index, address_of(entry.gid_str()), _GID_TYPES.get(entry.gid_type, str(entry.gid_type)))
        for entry in table
        if entry.port_num == number
    )
    return RdmaPort(number, _STATES.get(port.state, str(port.state)), 128 << port.active_mtu, gids)
