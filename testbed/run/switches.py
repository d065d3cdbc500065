# SPDX-License-Identifier: Apache-2.0
"""What a run asks of the switches of a fabric, which differs between the kinds of switches."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from netmodel import Forwarding
from sdn.openflow.steering import Steering
from sdn.path_service.next_hops import NextHops
from testbed.spec import Event


@dataclass(frozen=True, slots=True)
class Ready:
    """How the switches are when a run begins."""

    routes: Forwarding | None = None
    """The routes that they have; None: those of `netmodel.forwarding`, or of the run's steering."""
    forgetful: bool = False
    """They have forgotten which flows they saw in earlier runs."""


class Switches(Protocol):
    """The switches of one fabric, for one run after the other."""

    def before_run(self, steering: Steering | None) -> Ready:
        """Make them ready for a run under this steering. Returns when they are."""

    def act(self, event: Event, undo: ExitStack) -> None:
        """Carry out what an event does to a whole switch. What has to be undone after the run is pushed onto `undo`."""

    def next_hops(self) -> NextHops | None:
        """The groups that the switches have now; None where they are known from the links that are dead."""

    def check(self) -> None:
        """Raises an error of `emul` if what programs the switches has failed."""

    def strays(self) -> dict[str, int]:
        """Packets of the run that steering has dropped, by switch port; only ports with any."""
