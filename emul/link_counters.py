# SPDX-License-Identifier: Apache-2.0
"""Traffic counters of switch ports."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from emul.netlink import InterfaceCounters, read_interface_counters, read_root_qdisc_drops
from netmodel import PortRef


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Counters of one switch port since the fabric came up.

    Bytes are those of Ethernet frames without the frame check sequence. `tx` counts what left the switch by the port,
    after its queue; `dropped` counts the packets that its queue dropped.
    """

    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int
    dropped: int

    @classmethod
    def of(cls, interface: InterfaceCounters, dropped: int) -> "LinkCounters":
        """The counters of a port from those of its interface and of the interface's root qdisc."""
        return cls(interface.tx_bytes, interface.tx_packets, interface.rx_bytes, interface.rx_packets, dropped)

    def since(self, base: "LinkCounters") -> "LinkCounters":
        """The difference from the earlier reading `base`."""
        return LinkCounters(
            tx_bytes=self.tx_bytes - base.tx_bytes,
            tx_packets=self.tx_packets - base.tx_packets,
            rx_bytes=self.rx_bytes - base.rx_bytes,
            rx_packets=self.rx_packets - base.rx_packets,
            dropped=self.dropped - base.dropped,
        )


class PortCounters:
    """Reads the counters of switch ports. They count from zero at construction.

    interfaces: the interface name of each port, in this network namespace. Raises OSError for an interface that does
    not exist.
    """

    def __init__(self, interfaces: Mapping[PortRef, str]) -> None:
        self._interfaces = interfaces
        self._indices = {port: socket.if_nametoindex(name) for port, name in interfaces.items()}
        self._base = self._totals()

    def read(self) -> dict[PortRef, LinkCounters]:
        """The counters of all ports. Takes about one millisecond for 50 ports."""
        return {port: total.since(self._base[port]) for port, total in self._totals().items()}

    def _totals(self) -> dict[PortRef, LinkCounters]:
        interfaces, drops = read_interface_counters(), read_root_qdisc_drops()
        return {
            port: LinkCounters.of(interfaces[name], drops.get(self._indices[port], 0))
            for port, name in self._interfaces.items()
        }
