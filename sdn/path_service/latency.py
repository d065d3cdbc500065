# SPDX-License-Identifier: Apache-2.0
"""How long announcements take in this process, as a histogram. No clocks."""

from bisect import bisect_left

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the buckets, in seconds. Longer ones are in a further bucket."""


_FIRST_S = BOUNDS_S[0]


class Latency:
    """Seconds from when announcements were read from a socket until they were handled.

    The time that they wait in the kernel before they are read is not in it.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Announcements by bucket."""
        self.sum_s = 0.0

    def note(self, seconds: float, announcements: int) -> None:
        """As many announcements took this time."""
        self.counts[0 if seconds <= _FIRST_S else bisect_left(BOUNDS_S, seconds)] += announcements
        self.sum_s += seconds * announcements
