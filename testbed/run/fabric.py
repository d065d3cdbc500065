# SPDX-License-Identifier: Apache-2.0
"""What the testbed asks of a fabric that carries packets: `emul.MininetFabric` is one, tests have another."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from emul.flow_dump import ObservedFlow
from netmodel import Circuits, Flow, Link, PortRef
from sdn.openflow.steering import Steering
from sdn.topoopt.relays import RelayPlan


class Counters(Protocol):
    """The part of `emul.LinkCounters` that is used: what left by a port, and what its queue dropped."""

    @property
    def tx_bytes(self) -> int:
        """Bytes of Ethernet frames."""

    @property
    def tx_packets(self) -> int:
        """Frames."""

    @property
    def dropped(self) -> int:
        """Frames that the port's queue dropped."""


class Fabric(Protocol):
    """The part of `emul.MininetFabric` that is used."""

    def popen(self, host_name: str, argv: Sequence[str], **popen_kwargs: Any) -> "subprocess.Popen[Any]":
        """Start a command on a host."""

    def link_counters(self) -> Mapping[PortRef, Counters]:
        """Counters of every switch port."""

    def observed_ports(self, switch_name: str) -> Mapping[Flow, int]:
        """Where the switch has really sent each flow for which it had a choice."""

    def overruns(self) -> Mapping[PortRef, int]:
        """Packets lost at each switch port for want of CPU."""

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or mend a link; returns when the routes have followed."""

    def steer(self, steering: Steering | None) -> None:
        """Put `steering` above the switches' routes; `observed_ports` starts anew."""

    def set_circuits(self, circuits: Circuits, reconfiguration_s: float) -> None:
        """Set the named optical switches; returns when light goes through."""

    def set_relays(self, plan: RelayPlan) -> None:
        """Let hosts send and forward for others as planned for the circuits that are set."""

    def check_relays(self, plan: RelayPlan) -> None:
        """Raises RelayError when a host that should relay does not."""

    def strays(self) -> Mapping[PortRef, int]:
        """Packets dropped at each switch port because they may not go where they wanted to, since `steer`."""

    def crossing(self, link: Link, within_s: float) -> Sequence[ObservedFlow]:
        """The flows that have crossed a link in the last `within_s` seconds."""
