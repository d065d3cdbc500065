# SPDX-License-Identifier: Apache-2.0
"""What a command and its answer are on the socket of a fabric's console.

The socket is in the scratch folder of the fabric's sandbox, disappears with that, and takes packets in order
(SOCK_SEQPACKET). The fabric first sends a `Greeting`. The other process sends a `Request` with its standard input,
output and error as file descriptors, and after it single bytes, each the number of a signal for the program that runs.
The last packet is an `Answer`. Both ends are processes of one user, as the kernel tells (SO_PEERCRED).
"""

import os
import socket
import struct

import msgspec

SOCKET = "console"
"""The name of the socket in the scratch folder."""

PACKET_BYTES = 1 << 17
"""Largest length of a packet: that of the longest word of a command line."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Greeting(msgspec.Struct, frozen=True):
    """What a fabric is."""

    name: str
    """That of the spec."""
    fabric: str
    """`mininet`, `routed` or `softroce`."""
    command: str
    """`shell` or `run`."""
    logs: str
    """The folder of its logs."""


class Request(msgspec.Struct, frozen=True):
    """A command, and the working folder of its programs."""

    words: list[str]
    folder: str


class Answer(msgspec.Struct, frozen=True):
    """The exit status of a command."""

    status: int


def peer_pid(end: socket.socket) -> int | None:
    """The process id of the other end; None unless it is a process of this user."""
    pid, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid if uid == os.geteuid() else None
