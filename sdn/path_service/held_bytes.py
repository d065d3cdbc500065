# SPDX-License-Identifier: Apache-2.0
"""A bound on the bytes that all connections together hold in memory for one purpose. Pure."""


class HeldBytes:
    """The bytes that each connection holds, in order of how long it has held some."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, int] = {}
        self._sum = 0

    def hold(self, number: int, size: int) -> int | None:
        """Connection `number` holds `size` bytes now.

        Returns the connection that has held some for longest, when all together hold too many. It has to let go.
        """
        self._sum += size - self._held.get(number, 0)
        if size:
            self._held[number] = size
        else:
            self._held.pop(number, None)
        return next(iter(self._held)) if self._sum > self._most else None
