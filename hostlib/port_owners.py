# SPDX-License-Identifier: Apache-2.0
"""Which user's socket has a port, by the kernel's tables of a network namespace (proc(5), net/udp, net/tcp, ..)."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from typing import Literal

Protocol = Literal["udp", "tcp"]
Endpoint = tuple[Protocol, str, int]
"""A protocol, an IP address and a port."""

_LISTENS = "0A"


def network_of(pid: int) -> int | None:
    """A number for the network namespace of a process; None when this user may not see it."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def port_owners(pid: int, wanted: Collection[Endpoint]) -> dict[Endpoint, set[int]]:
    """The users whose sockets are bound to these endpoints, of TCP listen there, in the network namespace of a process.

    An endpoint to which no socket is bound is left out: the NIC itself receives for `verbs`.
    """
    found: dict[Endpoint, set[int]] = {}
    for protocol in {endpoint[0] for endpoint in wanted}:
        for table in (protocol, f"{protocol}6"):
            try:
                with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                    for endpoint, uid in _bound(protocol, lines):
                        if endpoint in wanted:
                            found.setdefault(endpoint, set()).add(uid)
            except OSError:
                continue  # the process has ended, or the kernel has no IPv6
    return found


def _bound(protocol: Protocol, lines: Iterator[str]) -> Iterator[tuple[Endpoint, int]]:
    next(lines, None)  # the heading
    for line in lines:
        fields = line.split()
        if protocol == "tcp" and fields[3] != _LISTENS:
            continue  # a connection
        address, _, port = fields[1].partition(":")
        words = [int(address[start : start + 8], 16).to_bytes(4, "little") for start in range(0, len(address), 8)]
        family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
        bound = str(ip_address(socket.inet_ntop(family, b"".join(words))))
        yield (protocol, bound, int(port, 16)), int(fields[7])
