# SPDX-License-Identifier: Apache-2.0
"""The host library: messages as ParaLet flowlets over a few shared QPs with chosen UDP source ports.

A `Device` is a NIC address. Devices listen and connect; a `Connection` carries messages between two of
them; sends and receives never block and return a `Request`.
"""

from hostlib._engine import (
    Connection,
    ConnectionClosed,
    DeviceError,
    Listener,
    MemoryRegion,
    Request,
    TransportError,
    wait_any,
)
from hostlib.bench import bench_program
from hostlib.build import build_commit
from hostlib.device import Device, Faults, Policy, local_interfaces
from hostlib.flowlets import flowlet_bytes, lanes_for, slowdown

__all__ = [
    "Connection",
    "ConnectionClosed",
    "Device",
    "DeviceError",
    "Faults",
    "Listener",
    "MemoryRegion",
    "Policy",
    "Request",
    "TransportError",
    "bench_program",
    "build_commit",
    "flowlet_bytes",
    "lanes_for",
    "local_interfaces",
    "slowdown",
    "wait_any",
]
