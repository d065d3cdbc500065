# SPDX-License-Identifier: Apache-2.0
"""Larger buffers for the packet sockets by which OVS's userspace datapath sends and receives.

The userspace datapath sends by one socket for all ports of all switches, and a packet that waits in a shaped port's
queue counts against that socket's send buffer. With the default of 208 KiB about 23 packets of 4 KB may wait in the
whole fabric; beyond that every port loses packets, and no counter counts them. Measured: four links of 20 Mbit/s, each
offered 30 Mbit/s, carried 17.5 to 20 Mbit/s with "dropped 0"; with larger buffers each carried 20.0 Mbit/s and the
drops were counted. Packets that arrive while the daemon does not run wait in one receive socket per port, whose default
buffer is too small as well.

OVS has no setting for either buffer, and the system-wide default (net.core.wmem_default) belongs to the machine. So
these sockets are duplicated with pidfd_getfd(2) (Linux 5.6), and their buffers are set. The duplicated receive sockets
also count the packets that the emulation itself lost because the daemon fetched them too late.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path

SEND_BYTES = 1 << 28
RECEIVE_BYTES = 1 << 23

_SYS_PIDFD_GETFD = 438  # the same number on every architecture (include/uapi/asm-generic/unistd.h)
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_MEMINFO = 32, 33, 55  # asm-generic/socket.h
_MEMINFO = struct.Struct("=9I")  # linux/sock_diag.h: SK_MEMINFO_*
_MEMINFO_DROPS = 8


class PacketSocketError(Exception):
    """The sockets of ovs-vswitchd cannot be reached or are not the expected ones. The text is one sentence."""


def enlarge(pid: int, interfaces: Collection[str]) -> dict[str, socket.socket]:
    """Enlarge the buffers of all packet sockets of `pid`, an ovs-vswitchd that has sent a packet.

    Returns a duplicate of the receiving socket of each interface in `interfaces`; the caller closes them. Raises
    PacketSocketError when the process has not exactly one sending socket and one receiving socket per interface.
    """
    senders = 0
    receivers: dict[str, socket.socket] = {}
    for duplicate in duplicated_sockets(pid):
        _set_buffers(duplicate)
        interface = duplicate.getsockname()[0]
        if interface in interfaces:
            receivers[interface] = duplicate
            continue
        senders += not interface  # the sending socket is bound to no interface
        duplicate.close()
    if senders != 1 or len(receivers) != len(interfaces):
        for receiver in receivers.values():
            receiver.close()
        raise PacketSocketError(
            f"ovs-vswitchd has {senders} sending and {len(receivers)} receiving packet sockets where 1 and "
            f'{len(interfaces)} were expected; this version of Open vSwitch is not supported with datapath "user"'
        )
    return receivers


def receive_drops(packet_socket: socket.socket) -> int:
    """Packets that found the buffer of a receiving socket full, since it was opened."""
    information = packet_socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    return int(_MEMINFO.unpack(information)[_MEMINFO_DROPS])


def duplicated_sockets(pid: int) -> list[socket.socket]:
    """Duplicates of every packet socket that process `pid` has open. Raises PacketSocketError."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(entry).startswith("socket:"):
                    continue
            except FileNotFoundError:
                continue  # closed in the meantime
            descriptor = libc.syscall(_SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if descriptor < 0:
                code = ctypes.get_errno()
                raise PacketSocketError(
                    f"cannot duplicate the sockets of ovs-vswitchd ({os.strerror(code)}); "
                    "the userspace datapath needs Linux 5.6 and the right to ptrace (CAP_SYS_PTRACE)"
                )
            duplicate = socket.socket(fileno=descriptor)
            if duplicate.family == socket.AF_PACKET:
                found.append(duplicate)
            else:
                duplicate.close()
    finally:
        os.close(process)
    return found


def _set_buffers(packet_socket: socket.socket) -> None:
    """Set both buffers beyond the system's limits. Needs CAP_NET_ADMIN."""
    packet_socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BYTES)
    packet_socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
