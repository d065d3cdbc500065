# SPDX-License-Identifier: Apache-2.0
"""Source ports for tests that run beside other programs, which hold any."""

from __future__ import annotations

import secrets
import socket
from itertools import count, islice
from pathlib import Path

END = 0x10000
ROOM = 1024
"""So many ports at least are chosen from."""

_places = count(secrets.randbelow(END))  # processes begin at random, so they seldom choose the same ports at once


def free_ports(number: int) -> list[int]:
    """Source ports of RoCEv2's range (0xC000 to 0xFFFF) that are free now. Each call gives others.

    They are only looked at: another program may take one before the caller does. The kernel gives none of them to a
    program that names no port, where net.ipv4.ip_local_port_range leaves room.

    Raises:
        OSError: fewer ports are free.
    """
    last = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[1])
    first = last + 1 if 0xC000 <= last < END - ROOM else 0xC000
    free = (port for place in islice(_places, END - first) if is_free(port := first + place % (END - first)))
    if len(found := list(islice(free, number))) < number:
        raise OSError(f"fewer than {number} of the ports {first} to {END - 1} are free")
    return found


def is_free(port: int) -> bool:
    """Whether no socket has this port, at any address of the machine, of UDP or TCP."""
    ipv6 = socket.has_dualstack_ipv6()
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, kind) as everywhere:
            if ipv6:
                everywhere.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                everywhere.bind(("", port))
            except OSError:
                return False
    return True
