# SPDX-License-Identifier: Apache-2.0
"""Limits on what one host's connection, and all connections together, may use of the path service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one path service's connections. Times are in seconds."""

    hello_s: float = 5.0
    """A connection that has not said hello within this time is closed."""
    silent_s: float = 30.0
    """A connection that has sent nothing for this time is closed."""
    lines_per_s: float = 500.0
    """Lines read from one connection on average; the rest waits at the host."""
    burst_lines: int = 512
    """Lines read from one connection at once, after it has been idle."""
    unread_bytes: int = 1 << 20
    """Buffered for a host that does not read; a host that leaves more unread is dropped."""
    all_unread_bytes: int = 1 << 28
    """Buffered for all hosts that do not read; beyond this the one that has not read for longest is dropped."""
    greeting_bytes: int = 1 << 22
    """Received from all connections that have not said hello; beyond this the oldest of those with some is closed."""
    received_bytes: int = 1 << 26
    """Received from all other connections, and not handled; beyond this the oldest of those with some is closed."""
    connections: int | None = None
    """Connections at the same time; None: as many as the process may have file descriptors for."""
    log_lines_per_s: float = 50.0
    """Lines logged on average, ten seconds' worth at once; the rest is only counted."""
