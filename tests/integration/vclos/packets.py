# SPDX-License-Identifier: Apache-2.0
"""Single packets on a fabric: whether they arrive or are lost."""

from __future__ import annotations

import time
from contextlib import closing, suppress

from emul import MininetFabric
from tests.integration.traffic import address, receiver, sender

RESEND_S, TIMEOUT_S = 0.5, 30.0
QUIET_S = 0.5
"""For so long a packet that must not arrive has time to."""


def arrives(fabric: MininetFabric, src: str, dst: str, port: int = 50_000) -> bool:
    """Send datagrams until one gets there, for as long as a busy machine may take to follow new rules."""
    deadline = time.monotonic() + TIMEOUT_S
    with closing(receiver(fabric, dst, RESEND_S)) as into, closing(sender(fabric, src, port)) as out:
        while time.monotonic() < deadline:
            out.sendto(b"x", (str(address(fabric, dst)), 4791))
            with suppress(TimeoutError):
                return into.recv(10) == b"x"
    return False


def is_lost(fabric: MininetFabric, src: str, dst: str) -> bool:
    """Send one datagram, and see whether it stays away."""
    with closing(receiver(fabric, dst, QUIET_S)) as into, closing(sender(fabric, src, 50_000)) as out:
        out.sendto(b"x", (str(address(fabric, dst)), 4791))
        try:
            return into.recv(10) != b"x"
        except TimeoutError:
            return True
