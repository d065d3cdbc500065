# SPDX-License-Identifier: Apache-2.0
"""Links that lose, damage, delay, reorder and mark packets, by rules where packets leave switches and hosts.

Kernels without netem have these means. Rules of nftables see a packet before the queue of its port, in a chain of the
netdev family at the egress hook. A lost packet is forwarded to an interface that nobody reads: a drop would make
sendmmsg(2) fail, and OVS's userspace datapath would then discard the rest of its batch (see `emul.shaping`). Packets
that wait are forwarded to the tap of `emul.link_delay`, and come back with a packet mark. Last is the virtual queue
that marks (`emul.virtual_queue`).

Hosts send batches that the kernel cuts into packets only behind its queues (UDP_SEGMENT, TSO). What leaves a host with
faults first crosses a veth that takes single packets only, and meets the rules behind it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emul import commands
from emul.layout import INTERFACE_GROUP
from emul.link_delay import MARK, DelayCounts, LinkDelay
from emul.virtual_queue import VirtualQueue, mount_bpffs

_TABLE = "netdev paralet_faults"
_SINK = "fault-sink"
_PARTS = 1_000_000_000
"""Probabilities are multiples of one billionth."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What happens to packets that leave by a port. Raises ValueError for what is not a probability or is negative."""

    loss: float = 0.0
    """Probability, from 0 to 1, with which a packet is lost."""
    corruption: float = 0.0
    """Probability with which a UDP packet is damaged. The P_Key of the BTH becomes 0, so that the ICRC is wrong."""
    mark_above_bytes: int | None = None
    """Packets capable of ECN that find a longer queue are marked; None: no marks."""
    delay_s: float = 0.0
    """Time that every packet waits before the queue of the port."""
    reorder: float = 0.0
    """Probability with which a packet waits longer, by a uniform random time up to `late_by_s`."""
    late_by_s: float = 0.0

    def __post_init__(self) -> None:
        for part in (self.loss, self.corruption, self.reorder):
            if not 0 <= part <= 1:
                raise ValueError(f"{part} is not a probability")
        if not all(value >= 0 for value in (self.mark_above_bytes or 0, self.delay_s, self.late_by_s)):
            raise ValueError("the length of a queue or a delay is below 0")

    @property
    def waits(self) -> bool:
        """Whether the fault delays packets."""
        return self.delay_s > 0 or (self.reorder > 0 and self.late_by_s > 0)


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """Packets that a port has lost, damaged, marked and sent late since it had its first fault.

    late: by reordering. dropped: while they were delayed, because the link went down or too much was waiting.
    """

    lost: int
    corrupted: int
    marked: int
    late: int
    dropped: int


def port_rules(number: int, interface: str, fault: LinkFault, cut: bool = False) -> list[str]:
    """Lines for `nft -f` that give an interface exactly this loss, damage and way to its tap. Its counters go on. Pure.

    number: of the interface among those with faults; chains and counters have it in their names. cut: the rules are
    behind the veth that cuts batches into packets.
    """
    lines = [
        f"add table {_TABLE}",
        f"add counter {_TABLE} lost_{number}",
        f"add counter {_TABLE} corrupted_{number}",
        f"add chain {_TABLE} port_{number} "
        f'{{ type filter hook egress device "{interface}" priority 0; policy accept; }}',
        f"flush chain {_TABLE} port_{number}",
    ]
    add = f"add rule {_TABLE} port_{number}"
    lines.append(f"{add} meta mark {MARK:#x} accept")  # has been here already
    if cut:
        if fault != LinkFault():
            lines.append(f'{add} fwd to "{_cutter(number)}"')
        lines += [
            f"add chain {_TABLE} cut_{number} "
            f'{{ type filter hook ingress device "{_cutter(number)}-end" priority 0; policy accept; }}',
            f"flush chain {_TABLE} cut_{number}",
        ]
        add = f"add rule {_TABLE} cut_{number}"
    if fault.loss:
        lines.append(f'{add} {_chance(fault.loss)}counter name lost_{number} fwd to "{_SINK}"')
    if fault.corruption:
        damage = "@th,80,16 set 0x0"  # bits 80 to 95 after the start of the UDP header
        lines.append(f"{add} ip protocol udp {_chance(fault.corruption)}{damage} counter name corrupted_{number}")
    if fault.waits:
        lines.append(f'{add} fwd to "{_tap(number)}"')
    elif cut and fault != LinkFault():
        lines.append(f'{add} meta mark set {MARK:#x} fwd to "{interface}"')
    return lines


def _tap(number: int) -> str:
    return f"delay-{number}"


def _cutter(number: int) -> str:
    return f"cut-{number}"


def _chance(part: float) -> str:
    """The condition for this part of all packets, with a space behind it. nft has no comparison that is always true."""
    parts = round(part * _PARTS)
    return f"numgen random mod {_PARTS} < {parts} " if parts < _PARTS else ""


@dataclass(slots=True)
class _Port:
    number: int
    fault: LinkFault
    rate_bps: int
    queue: VirtualQueue | None = None


@dataclass(slots=True)
class LinkFaults:
    """The faults of interfaces in one network namespace; none at the start.

    queue_bytes: length at which the queues of ports drop packets. bpffs: directory for a bpffs, which is mounted when
    marks are first asked for. enter: argv prefix that enters the network namespace, not a mount namespace. cut:
    programs of the namespace send batches of packets. Methods raise FabricError when the kernel, nft or tc refuses
    something.
    """

    queue_bytes: int
    bpffs: Path
    enter: Sequence[str] = ()
    cut: bool = False
    _ports: dict[str, _Port] = field(default_factory=dict, init=False)
    _delay: LinkDelay | None = field(default=None, init=False)

    def set(self, interface: str, fault: LinkFault, rate_bps: int) -> None:
        """Give an interface exactly these faults. rate_bps: the rate at which its queue drains, for marks."""
        if not self._ports:
            # Its other end stays down, so the kernel drops what is sent to it. (An ifb would send it on.)
            pair = f"link add {_SINK} mtu 65535 group {INTERFACE_GROUP} type veth peer name {_SINK}-end"
            commands.batch("ip", [pair, f"link set dev {_SINK} up"], self.enter)
        if interface not in self._ports:
            self._ports[interface] = _Port(len(self._ports), LinkFault(), rate_bps)
            if self.cut:
                self._add_cutter(_cutter(self._ports[interface].number))
        port = self._ports[interface]
        if fault.waits:
            self._delay = self._delay or LinkDelay(self.enter)
            self._delay.set(interface, _tap(port.number), fault.delay_s, fault.reorder, fault.late_by_s)
        commands.run([*self.enter, "nft", "-f", "-"], port_rules(port.number, interface, fault, self.cut))
        above, marked = fault.mark_above_bytes, port.fault.mark_above_bytes
        if above is not None and (above, rate_bps) != (marked, port.rate_bps):
            if port.queue is None:
                mount_bpffs(self.bpffs)
                port.queue = VirtualQueue(interface, self.bpffs, self.enter)
            port.queue.mark(rate_bps, above, self.queue_bytes)
        if above is None and marked is not None and port.queue is not None:
            port.queue.stop()
        port.fault, port.rate_bps = fault, rate_bps

    def set_rate(self, interface: str, rate_bps: int) -> None:
        """Follow a change of an interface's rate."""
        if (port := self._ports.get(interface)) is not None and port.rate_bps != rate_bps:
            self.set(interface, port.fault, rate_bps)

    def counts(self) -> Mapping[str, FaultCounts]:
        """The counts of every interface that has or had faults."""
        if not self._ports:
            return {}
        listed = json.loads(self._run("nft", "-j", "list", "counters", "table", *_TABLE.split()))
        packets = {
            listing["counter"]["name"]: listing["counter"]["packets"]
            for listing in listed["nftables"]
            if "counter" in listing
        }
        delays = {} if self._delay is None else self._delay.counts()
        never = DelayCounts(0, 0, 0)
        return {
            interface: FaultCounts(
                lost=packets[f"lost_{port.number}"],
                corrupted=packets[f"corrupted_{port.number}"],
                marked=0 if port.queue is None else port.queue.marked(),
                late=delays.get(interface, never).late,
                dropped=delays.get(interface, never).dropped
                + (self._tap_drops(port.number) if interface in delays else 0),
            )
            for interface, port in self._ports.items()
        }

    def remove(self) -> None:
        """Remove all faults. Packets that are delayed are lost."""
        if not self._ports:
            return
        if self._delay is not None:
            self._delay.close()
        for port in self._ports.values():
            if port.queue is not None:
                port.queue.close()
        self._run("nft", "delete", "table", *_TABLE.split())
        cutters = [_cutter(port.number) for port in self._ports.values() if self.cut]
        commands.batch("ip", [f"link delete {name}" for name in (_SINK, *cutters)], self.enter)
        if self.bpffs.is_mount():
            commands.run(["umount", str(self.bpffs)])
        self._ports.clear()

    def _add_cutter(self, name: str) -> None:
        """Add a veth that takes packets only one by one, so that the kernel cuts batches before it."""
        mtu = f"mtu 65535 group {INTERFACE_GROUP}"
        lines = [
            f"link add {name} {mtu} type veth peer name {name}-end {mtu}",
            f"link set dev {name} gso_max_segs 1 up",
            f"link set dev {name}-end up",
        ]
        commands.batch("ip", lines, self.enter)

    def _tap_drops(self, number: int) -> int:
        """Packets that found the tap full, because the program did not run."""
        (link,) = json.loads(self._run("ip", "-j", "-s", "link", "show", "dev", _tap(number)))
        return int(link["stats64"]["tx"]["dropped"])

    def _run(self, *argv: str) -> str:
        return commands.run([*self.enter, *argv])
