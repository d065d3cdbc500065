# SPDX-License-Identifier: Apache-2.0
"""Helpers for direct-connect fabrics: sockets and devices at a NIC, and bytes that circuits carried."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import hostlib
from emul import MininetFabric
from netmodel import PortRef, Topology
from sdn.topoopt.relays import Connection, Way
from tests.integration.traffic import FRAME_OVERHEAD, PATIENCE_S, PORT, in_host

RATE_BPS = 20_000_000
PAYLOAD = 1000
FRAME = FRAME_OVERHEAD + PAYLOAD


def names(count: int) -> list[str]:
    return [f"h{i + 1}" for i in range(count)]


def address(topology: Topology, port: PortRef) -> str:
    return str(topology.host(port.node).nics[port.port - 1].address)


def bound(fabric: MininetFabric, nic: PortRef, port: int) -> socket.socket:
    """A UDP socket at a NIC's address, in its host."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((address(fabric.topology, nic), port))
        made.settimeout(PATIENCE_S)
        return made

    return in_host(fabric, nic.node, make)


def arrives(fabric: MininetFabric, way: Way, payload: bytes = b"x" * PAYLOAD, timeout_s: float = PATIENCE_S) -> bool:
    """Whether a datagram that is sent along a way comes out as it was."""
    with bound(fabric, way.ports[0], 50000) as out, bound(fabric, way.arrival, PORT) as into:
        into.settimeout(timeout_s)
        out.sendto(payload, (address(fabric.topology, way.arrival), PORT))
        try:
            got, (source, port) = into.recvfrom(1 << 16)
        except TimeoutError:
            return False
        assert (source, port) == (address(fabric.topology, way.ports[0]), 50000)
        return got == payload


def carried(fabric: MininetFabric) -> int:
    """Bytes that have come into the optical switches from hosts: every circuit crossed counts once."""
    return sum(counters.rx_bytes for counters in fabric.link_counters().values())


def connected(
    fabric: MininetFabric, stack: ExitStack, connection: Connection, lanes: int = 1
) -> tuple[hostlib.Connection, hostlib.Connection]:
    """Both ends of a logical RDMA connection, each in its own host."""
    ends = [
        stack.enter_context(
            in_host(
                fabric,
                nic.node,
                lambda nic=nic: hostlib.Device(
                    address(fabric.topology, nic), lanes=lanes, line_rate_bps=RATE_BPS, path_mtu=1024
                ),
            )
        )
        for nic in (connection.local, connection.remote)
    ]
    listener = in_host(fabric, connection.remote.node, ends[1].listen)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accept, 20)
        out = in_host(fabric, connection.local.node, lambda: ends[0].connect(listener.handle, timeout_s=20))
        return out, accepted.result()
