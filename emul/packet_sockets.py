# SPDX-License-Identifier: Apache-2.0
"""Room in the packet sockets of ovs-vswitchd, which the userspace datapath sends and receives by.

The userspace datapath sends by ONE socket for all ports of all switches, and a packet that waits in a shaped port's
queue counts against that socket's send buffer. With the default of 208 KiB about 23 packets of 4 KB may wait in the
whole fabric; then every port loses packets, and no counter says so. Measured: four links of 20 Mbit/s, each offered 30,
carried 17.5 to 20 with "dropped 0"; with room, 20.0 each, and the drops counted. Packets arriving while the daemon
does not run wait in one socket per port, which had better hold more than the default too.

OVS has no setting for either, and the system-wide default (net.core.wmem_default) is not ours to change. So these very
sockets are borrowed with pidfd_getfd(2) (Linux 5.6) and given room. The borrowed receive sockets also tell how many
packets the emulation itself lost because the daemon came too late.
"""

import ctypes
import os
import socket
import struct
from pathlib import Path

SEND_BYTES = 1 << 28
RECEIVE_BYTES = 1 << 23

_SYS_PIDFD_GETFD = 438  # the same number on every architecture (include/uapi/asm-generic/unistd.h)
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_MEMINFO = 32, 33, 55  # asm-generic/socket.h
_MEMINFO = struct.Struct("=9I")  # linux/sock_diag.h: SK_MEMINFO_*
_MEMINFO_DROPS = 8


class PacketSocketError(Exception):
    """The sockets of ovs-vswitchd cannot be reached; the text is one sentence for the user."""


def borrow(pid: int) -> list[socket.socket]:
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
                continue  # closed meanwhile
            descriptor = libc.syscall(_SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if descriptor < 0:
                code = ctypes.get_errno()
                raise PacketSocketError(
                    f"cannot reach the sockets of ovs-vswitchd ({os.strerror(code)}); "
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


def is_sender(packet_socket: socket.socket) -> bool:
    """Whether this is the shared sending socket, the one bound to no interface."""
    return not packet_socket.getsockname()[0]


def give_room(packet_socket: socket.socket) -> None:
    """Enlarge both buffers of a socket beyond the system's limits (needs CAP_NET_ADMIN)."""
    packet_socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BYTES)
    packet_socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)


def receive_drops(packet_socket: socket.socket) -> int:
    """Packets that found no room in a receiving socket since it was opened."""
    information = packet_socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    return int(_MEMINFO.unpack(information)[_MEMINFO_DROPS])
