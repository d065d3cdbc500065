# SPDX-License-Identifier: Apache-2.0
"""Links that lose and damage packets, by nftables rules where packets leave switches.

Kernels without netem have these means. Rules see a packet before the queue of its port, in a chain of the netdev family
at the egress hook. A lost packet is forwarded to an interface that nobody reads: a drop would make sendmmsg(2) fail,
and OVS's userspace datapath would then discard the rest of its batch (see `emul.shaping`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from emul import commands
from emul.layout import INTERFACE_GROUP

_TABLE = "paralet_faults"
_SINK = "fault-sink"
_PARTS = 1_000_000_000
"""Probabilities are multiples of one billionth."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Probabilities, from 0 to 1, with which a packet that leaves by a port is lost or damaged."""

    loss: float = 0.0
    corruption: float = 0.0
    """Of UDP packets. The P_Key of the BTH becomes 0, so that the ICRC is wrong."""


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """Packets that a port has lost and damaged since the rules were set."""

    lost: int
    corrupted: int


def ruleset(faults: Mapping[str, LinkFault]) -> list[str]:
    """Lines for `nft -f` with the faults of interfaces by name. Raises ValueError for no probability. Pure."""
    lines = [f"table netdev {_TABLE} {{"]
    for number, (interface, fault) in enumerate(faults.items()):
        for part in (fault.loss, fault.corruption):
            if not 0 <= part <= 1:
                raise ValueError(f"{part} is no probability")
        lines += [
            f"counter lost_{number} {{ }}",
            f"counter corrupted_{number} {{ }}",
            f"chain port_{number} {{",
            f'type filter hook egress device "{interface}" priority 0; policy accept;',
        ]
        if fault.loss:
            lines.append(f'{_chance(fault.loss)} counter name lost_{number} fwd to "{_SINK}"')
        if fault.corruption:
            damage = "@th,80,16 set 0x0"  # bits 80 to 95 after the start of the UDP header
            lines.append(f"ip protocol udp {_chance(fault.corruption)} {damage} counter name corrupted_{number}")
        lines.append("}")
    return [*lines, "}"]


def _chance(part: float) -> str:
    return f"numgen random mod {_PARTS} < {round(part * _PARTS)}"


class LinkFaults:
    """The faults of interfaces in this network namespace. Raises FabricError when the kernel or nft refuses them."""

    def __init__(self, faults: Mapping[str, LinkFault]) -> None:
        self._interfaces = list(faults)
        if faults:
            # Its other end stays down, so the kernel drops what is sent to it. (An ifb would send it on.)
            pair = f"link add {_SINK} mtu 65535 group {INTERFACE_GROUP} type veth peer name {_SINK}-end"
            commands.batch("ip", [pair, f"link set dev {_SINK} up"])
            commands.run(["nft", "-f", "-"], ruleset(faults))

    def counts(self) -> dict[str, FaultCounts]:
        """The counts of every interface with faults. Raises FabricError."""
        if not self._interfaces:
            return {}
        listed = json.loads(commands.run(["nft", "-j", "list", "counters", "table", "netdev", _TABLE]))
        packets = {one["counter"]["name"]: one["counter"]["packets"] for one in listed["nftables"] if "counter" in one}
        return {
            interface: FaultCounts(packets[f"lost_{number}"], packets[f"corrupted_{number}"])
            for number, interface in enumerate(self._interfaces)
        }

    def remove(self) -> None:
        """Remove all faults. The interface that takes lost packets goes with the fabric's links. Raises FabricError."""
        if self._interfaces:
            commands.run(["nft", "delete", "table", "netdev", _TABLE])
            self._interfaces = []
