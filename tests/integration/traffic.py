# SPDX-License-Identifier: Apache-2.0
"""Sockets inside emulated hosts, opened from the test's own process."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TypeVar

from emul import MininetFabric, RoutedFabric

PORT = 4791
CLONE_NEWNET = 0x40000000
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
FRAME_OVERHEAD = 14 + 20 + 8
PATIENCE_S = 30.0
"""For what arrives in a millisecond on a quiet machine: only a failing test waits so long."""

Fabric = MininetFabric | RoutedFabric
Result = TypeVar("Result")


def in_host(fabric: Fabric, host: str, action: Callable[[], Result]) -> Result:
    """Run `action` in a thread that has entered the host's network namespace; sockets it opens stay in there."""
    outcome: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            namespace = os.open(f"/proc/{fabric.host_pid(host)}/ns/net", os.O_RDONLY)
            try:
                if libc.setns(namespace, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(namespace)
            outcome.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]


def address(fabric: Fabric, host: str) -> IPv4Address:
    return fabric.topology.host(host).nics[0].address


def receiver(fabric: Fabric, host: str, timeout_s: float = PATIENCE_S) -> socket.socket:
    """A UDP socket at the host's address and the RoCE port; without one, hosts answer with ICMP errors."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        made.bind((str(address(fabric, host)), PORT))
        made.settimeout(timeout_s)
        return made

    return in_host(fabric, host, make)


def sender(fabric: Fabric, host: str, port: int = 0) -> socket.socket:
    """A UDP socket at the host's address that never fragments."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        made.bind((str(address(fabric, host)), port))
        return made

    return in_host(fabric, host, make)


class RawSender:
    """Sends single UDP datagrams from a host with any source port."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._socket = in_host(fabric, host, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
        self._socket.bind((str(address(fabric, host)), 0))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 22)  # bursts end in the host's queue

    def send(self, destination: IPv4Address, source_port: int, payload: bytes = b"paralet") -> None:
        header = struct.pack("!HHHH", source_port, PORT, 8 + len(payload), 0)  # a checksum of zero is none
        self._socket.sendto(header + payload, (str(destination), 0))

    def set_tos(self, tos: int) -> None:
        """Set the TOS byte (DSCP and ECN) of further packets."""
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)

    def close(self) -> None:
        self._socket.close()


def all_taken(take: Callable[[], Result], sent: int, lost: Callable[[], int]) -> list[Result]:
    """What `take` takes until all that was sent is there or lost. It raises TimeoutError when it has waited a while."""
    found, deadline = [], time.monotonic() + PATIENCE_S
    while True:
        try:
            found.append(take())
        except TimeoutError:
            if len(found) + lost() >= sent or time.monotonic() > deadline:
                return found


def received(from_socket: socket.socket, quiet_s: float = 1.0) -> tuple[int, float, float]:
    """Datagrams that arrive until none does for `quiet_s`: how many, and the times of the first and the last."""
    from_socket.settimeout(quiet_s)
    count, first, last = 0, 0.0, 0.0
    while True:
        try:
            from_socket.recv(1 << 16)
        except TimeoutError:
            return count, first, last
        last = time.monotonic()
        first = first or last
        count += 1
