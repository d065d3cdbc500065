# SPDX-License-Identifier: Apache-2.0
"""What a port may send at once, above its rate: nothing in models, a shaper's bucket on emulated fabrics. Pure."""

from collections.abc import Callable
from typing import TypeAlias

Burst: TypeAlias = Callable[[int, int], int]
"""By a port's rate in bits per second and the MTU in bytes: the bytes that it sends at once after a pause."""

_LEAST_PART = 1000


def no_burst(rate_bps: int, mtu_bytes: int) -> int:
    """The burst of a port that never exceeds its rate."""
    return 0


def held_back(size: float, burst: int) -> float:
    """How much of `size` leaves at the rate at best, where `burst` may leave at once: bytes, or bits.

    A thousandth at least, so that quotients with the time of a message that is shorter than the burst exist. That
    nothing beats this time is an assumption: that no sender fills a burst at a thousand times the port's rate. For
    a port of 20 Mbit/s that sender would have to reach 20 Gbit/s. For a port of 1 Mbit/s it is 1 Gbit/s, which
    processors reach: there a message shorter than the burst may take less than its ideal time.
    """
    return max(size - burst, size / _LEAST_PART)
