# SPDX-License-Identifier: Apache-2.0
"""What commands need of a fabric that is up. `emul.MininetFabric` and `emul.RoutedFabric` implement it."""

from collections.abc import Sequence
from typing import Protocol

from emul import LinkFault
from emul.link_states import LinkState
from netmodel import Link, PortRef, Topology


class ConsoleFabric(Protocol):
    """The part of a fabric that is used here."""

    topology: Topology

    def enter(self, node: str) -> list[str]:
        """The argv prefix that runs a command in the namespaces of a host or switch."""

    def node_pid(self, node: str) -> int:
        """The id of a process in the namespaces of a host or switch."""

    def interface(self, port: PortRef) -> str:
        """The name of a port's interface in the namespaces of its node."""

    def name_hosts(self) -> None:
        """Let programs on hosts find hosts by name."""

    def link_states(self) -> Sequence[LinkState]:
        """How every link is now."""

    def rules(self, switch_name: str) -> str:
        """What a switch forwards by, for people."""

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or mend a link. Returns when the switches have the new routes."""

    def set_rate(self, link: Link, part: float) -> None:
        """Leave a link this part of its rate, unnoticed by switches."""

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port exactly these faults, beside its link's delay."""


def node_names(topology: Topology) -> list[str]:
    """The names of all hosts and switches."""
    return [*(host.name for host in topology.hosts), *(switch.name for switch in topology.switches)]
