# SPDX-License-Identifier: Apache-2.0
"""What every run needs of a fabric that carries packets. `emul.MininetFabric` and `emul.RoutedFabric` implement it;
tests have another.

What only an arrangement or a kind of switches needs is a protocol in the module of that one.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from emul import LinkFault
from emul.flow_dump import ObservedFlow
from netmodel import Link, PortRef
from testbed.run.seen_flows import Observed


class Counters(Protocol):
    """The part of `emul.LinkCounters` that is used: frames that cross a port, and frames that its queue dropped."""

    @property
    def tx_bytes(self) -> int:
        """The bytes of the Ethernet frames that the port has sent."""

    @property
    def tx_packets(self) -> int:
        """The frames that the port has sent."""

    @property
    def rx_bytes(self) -> int:
        """Bytes that came in by the port."""

    @property
    def rx_packets(self) -> int:
        """The frames that the port has received."""

    @property
    def dropped(self) -> int:
        """Frames that the port's queue dropped."""


class Faults(Protocol):
    """The part of `emul.link_faults.FaultCounts` that is used."""

    @property
    def lost(self) -> int:
        """The packets that the port's declared fault has lost."""

    @property
    def corrupted(self) -> int:
        """The packets that the port's declared fault has damaged."""

    @property
    def marked(self) -> int:
        """Packets that left with an ECN mark because of the port's queue."""

    @property
    def late(self) -> int:
        """Packets that others may have overtaken."""

    @property
    def dropped(self) -> int:
        """Packets dropped while they were delayed."""


class Fabric(Observed, Protocol):
    """The part of a fabric that is used, with that of its base class."""

    def link_counters(self) -> Mapping[PortRef, Counters]:
        """Read the counters of every switch port."""

    def overruns(self) -> Mapping[PortRef, int]:
        """Packets lost at each switch port because the emulation lacked processor time."""

    def set_link(self, link: Link, up: bool) -> None:
        """Cut or mend a link. Returns when the switches have the new routes."""

    def set_rate(self, link: Link, part: float) -> None:
        """Leave a link this part of its rate, unnoticed by switches."""

    def fault_counts(self) -> Mapping[PortRef, Faults]:
        """Packets that faults concerned, by port that has or had faults, or a delay of its link."""

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port of a switch or host exactly these faults, beside its link's delay."""

    def crossing(self, link: Link, within_s: float) -> Sequence[ObservedFlow]:
        """The flows that have crossed a link in the last `within_s` seconds."""
