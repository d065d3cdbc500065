# SPDX-License-Identifier: Apache-2.0
"""Applies the steering of a policy to the switches of a fabric."""

from collections.abc import Mapping
from typing import Protocol

from netmodel import PortRef
from sdn.openflow.steering import Steering


class Steered(Protocol):
    """A fabric whose switches can be steered, as far as it is used here."""

    def steer(self, steering: Steering | None) -> None:
        """Give `steering` precedence over the switches' routes. Resets the ports observed so far, and `strays`."""

    def strays(self) -> Mapping[PortRef, int]:
        """Packets that steering rules have dropped at each switch port since `steer`."""


class Steerer:
    """Steers the switches of one fabric, for one run after the other."""

    def __init__(self, fabric: Steered) -> None:
        self._fabric = fabric
        self._steering: Steering | None = None

    def steer(self, steering: Steering | None) -> bool:
        """Apply a run's steering. Returns whether the fabric has forgotten which flows it saw.

        With steering, the counters of packets that the switches drop restart for every run.
        """
        if steering is None and self._steering is None:
            return False
        if steering == self._steering:
            self._fabric.steer(None)
        self._fabric.steer(steering)
        self._steering = steering
        return True

    def strays(self) -> dict[str, int]:
        """Packets of the run that steering has dropped, by switch port; only ports with any."""
        if self._steering is None:
            return {}
        return {str(port): count for port, count in self._fabric.strays().items() if count}
