# SPDX-License-Identifier: Apache-2.0
"""A log whose lines come at a limited rate, so that refused connections cannot fill a disk. No clock."""

import logging

from netmodel.printable import printable

_BURST_S = 10.0  # of the rate, written at once


class BoundedLog:
    """Writes lines to `log`: on average `per_s` a second, ten seconds' worth at once."""

    def __init__(self, log: logging.Logger, per_s: float) -> None:
        self._log = log
        self._per_s = per_s
        self._left = self._most = _BURST_S * per_s
        self._dropped = 0

    def write(self, text: str) -> bool:
        """Logs a line, or counts it when the rate is exceeded. Returns whether it was logged."""
        if self._left < 1:
            self._dropped += 1
            return False
        self._left -= 1
        self._log.info(printable(text))
        return True

    def refill(self, seconds: float) -> None:
        """So many seconds have passed: allows more lines, and logs how many were dropped."""
        self._left = min(self._most, self._left + self._per_s * seconds)
        if self._dropped and self._left >= 1:
            self._log.info("and %d lines more like these", self._dropped)
            self._dropped = 0
