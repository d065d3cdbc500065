# SPDX-License-Identifier: Apache-2.0
"""Switches that a controller programs: policies steer them, and a switch dies with all its links."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Protocol

from netmodel import Link, PortRef
from sdn.openflow.steering import Steering
from testbed.run.switches import Ready
from testbed.spec import Event, Experiment


class Steered(Protocol):
    """A fabric whose switches can be steered, as far as it is used here."""

    def steer(self, steering: Steering | None) -> None:
        """Give `steering` precedence over the switches' routes. Resets the ports observed so far, and `strays`."""

    def strays(self) -> Mapping[PortRef, int]:
        """Packets that steering rules have dropped at each switch port since `steer`."""

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or mend a link. Returns when the switches have the new routes."""

    def check_switches(self) -> None:
        """Raises an error of `emul` if what programs the switches has failed."""


class SteeredSwitches:
    """The switches of one fabric, which are steered for one run after the other."""

    def __init__(self, fabric: Steered, experiment: Experiment) -> None:
        self._fabric = fabric
        self._experiment = experiment
        self._steering: Steering | None = None

    def before_run(self, steering: Steering | None) -> Ready:
        """Apply a run's steering.

        With steering, the counters of packets that the switches drop restart for every run.
        """
        if steering is None and self._steering is None:
            return Ready()
        if steering == self._steering:
            self._fabric.steer(None)
        self._fabric.steer(steering)
        self._steering = steering
        return Ready(forgetful=True)

    def act(self, event: Event, undo: ExitStack) -> None:
        """Cut the links of a switch that dies."""
        if event.kill is None:
            return
        for link in self._experiment.killed_links([event.kill]):
            undo.callback(self._fabric.set_link, link, True)
            self._fabric.set_link(link, False)

    def next_hops(self) -> None:
        """None: a switch's groups have its live links in the order of ports."""

    def check(self) -> None:
        """Raises an error of `emul` if what programs the switches has failed."""
        self._fabric.check_switches()

    def strays(self) -> dict[str, int]:
        """Packets of the run that steering has dropped, by switch port; only ports with any."""
        if self._steering is None:
            return {}
        return {str(port): count for port, count in self._fabric.strays().items() if count}
