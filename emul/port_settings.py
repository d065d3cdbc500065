# SPDX-License-Identifier: Apache-2.0
"""Rates of links and faults of ports, which change while a fabric is up."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from emul import commands
from emul.layout import Layout
from emul.link_faults import FaultCounts, LinkFault, LinkFaults
from emul.shaping import HOST_QUEUE_PACKETS, QUEUE_PACKETS, Queue, queue_bytes, shape_lines
from netmodel import Link, PortRef


class PortSettings:
    """The rates and faults of a fabric's ports; at the start the rates of the topology, and no faults.

    `delay_links` gives ports the delays of the topology too. Threads may share it.

    pid: the id of a process in the network namespace of a port, None for the namespace of this process. bpffs:
    directory for a bpffs, which is mounted when marks are first asked for. switch_queue: the kind of switches' queues.
    """

    def __init__(
        self, layout: Layout, pid: Callable[[PortRef], int | None], bpffs: Path, switch_queue: Queue = "head_drop"
    ) -> None:
        self._layout = layout
        self._topology = layout.topology
        self._pid = pid
        self._bpffs = bpffs
        self._switch_queue: Queue = switch_queue
        self._parts: dict[Link, float] = {}
        self._declared: dict[PortRef, LinkFault] = {}
        """By port that has or had faults, or a delay of its link: its faults, without that delay."""
        self._faults: dict[int | None, LinkFaults] = {}
        self._changing = threading.Lock()

    def set_rate(self, link: Link, part: float) -> None:
        """Leave a link this part of its rate, in both directions, unnoticed by switches. Raises FabricError.

        Raises ValueError for a link that the topology does not have, and for a part outside (0, 1].
        """
        if link not in self._topology.links or not 0 < part <= 1:
            raise ValueError(
                f"topology {self._topology.name!r} has no link {link.a} to {link.b}, or {part} is not a part"
            )
        with self._changing:
            self._parts[link] = part
            rate_bps = self._rate_bps(link)
            for end in (link.a, link.b):
                switch, interface = self._layout.is_switch(end), self._layout.interface(end)
                packets, queue = (QUEUE_PACKETS, self._switch_queue) if switch else (HOST_QUEUE_PACKETS, "head_drop")
                lines = shape_lines(interface, rate_bps, self._topology.mtu_bytes, packets, queue)
                commands.batch("tc", lines, self._enter(end))
                if (faults := self._faults.get(self._pid(end))) is not None:
                    faults.set_rate(interface, rate_bps)

    def part(self, link: Link) -> float:
        """The part of its rate that a link has now."""
        return self._parts.get(link, 1.0)

    def delay_links(self) -> None:
        """Give the packets that leave by a port the delay of its link, where that has one. Raises FabricError."""
        for port in self._topology.linked_ports():
            if self._topology.link_at(port).delay_s:
                self.set_faults(port, LinkFault())

    def set_faults(self, port: PortRef, fault: LinkFault) -> None:
        """Give the packets that leave by a port of a switch or host exactly these faults, beside the link's own delay.

        Raises KeyError for what is not a linked port, and FabricError.
        """
        link = self._topology.link_at(port)
        with self._changing:
            whole = replace(fault, delay_s=fault.delay_s + (link.delay_s or 0.0))
            rate_bps = self._rate_bps(link)
            pid = self._pid(port)
            if pid not in self._faults:
                host = not self._layout.shared and not self._layout.is_switch(port)
                packets = HOST_QUEUE_PACKETS if host else QUEUE_PACKETS
                longest = queue_bytes(self._topology.mtu_bytes, packets)
                self._faults[pid] = LinkFaults(longest, self._bpffs, self._enter(port), cut=host)
            self._faults[pid].set(self._layout.interface(port), whole, rate_bps)
            self._declared[port] = fault

    def faults(self, port: PortRef) -> LinkFault:
        """The faults that a port has now, without the delay of its link."""
        return self._declared.get(port, LinkFault())

    def fault_counts(self) -> Mapping[PortRef, FaultCounts]:
        """By port that has or had faults, or a delay of its link: the packets concerned. Raises FabricError."""
        with self._changing:
            counts = {pid: faults.counts() for pid, faults in self._faults.items()}
            return {port: counts[self._pid(port)][self._layout.interface(port)] for port in self._declared}

    def remove_faults(self) -> None:
        """Remove all faults. Packets that are delayed are lost. Raises FabricError."""
        with self._changing:
            for faults in self._faults.values():
                faults.remove()
            self._faults.clear()
            self._declared.clear()

    def _enter(self, port: PortRef) -> list[str]:
        """The argv prefix that enters the network namespace of a port, and no mount namespace.

        The mount namespaces of nodes are older than the bpffs.
        """
        pid = self._pid(port)
        return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]

    def _rate_bps(self, link: Link) -> int:
        """The current rate of a link."""
        return max(1, int(link.rate_bps * self.part(link)))
