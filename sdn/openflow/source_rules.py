# SPDX-License-Identifier: Apache-2.0
"""Pinning by rules on masked UDP source ports, for switches whose hash nobody can predict. Pure.

A source port then says its way itself: of its 14 free bits the lower seven choose at leaves, the upper seven at spines.
A switch with k ways to an address looks at just enough of its bits to tell them apart, with one rule for each value
of these. So rules depend on the cabling and on dead links alone, not on plans: a plan reaches the switches by the ports
that hosts take, and switches need not be told anything when flows come and go. Flows of random ports are spread by
their bits as evenly as a hash would, and what is not RoCEv2 goes by the groups as ever.

`SourcePortRules` is the same as an `EcmpHash`, so all that predicts paths, or looks for ports that take one, works
with rules as it does with hashes.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Literal

import numpy as np
import numpy.typing as npt

from netmodel import EcmpHash, FlowFields, Forwarding, OvsHash, Topology

Pinning = Literal["hash", "rules"]
"""How a source port pins a path: by the switches' hash, predicted, or by rules."""

_FIELD_BITS = 7
_SHIFTS = {"leaf": 0, "spine": _FIELD_BITS}
_SPARE_BITS = 2  # beyond the least that tells ways apart, where they are no power of two: shares differ by a fifth then

MOST_WAYS = 1 << _FIELD_BITS
"""A switch can tell so many ways apart."""


@dataclass(frozen=True, slots=True, order=True)
class SourceMatch:
    """RoCEv2 packets to `network` whose UDP source port has the bits of `mask` as in `udp_src`."""

    network: IPv4Network
    udp_src: int
    mask: int


@dataclass(frozen=True, slots=True)
class SourcePortRules:
    """What the rules choose, as an `EcmpHash`. `shifts`: the first bit that a switch looks at, by its hash seed."""

    shifts: Mapping[int, int]

    @classmethod
    def of(cls, topology: Topology) -> "SourcePortRules":
        """Raises ValueError where a leaf and a spine have one hash seed, by which choices are told apart."""
        shifts: dict[int, int] = {}
        for switch in topology.switches:
            if switch.role == "ocs":
                continue
            shift = _SHIFTS[switch.role]
            if shifts.setdefault(switch.hash_seed, shift) != shift:
                raise ValueError(
                    f"hash seed {switch.hash_seed} of switch {switch.name!r} is also that of a switch of another role; "
                    "give them different seeds"
                )
        return cls(shifts)

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`. Raises KeyError for a seed of no switch."""
        value = (fields.sport >> np.uint16(self.shifts[seed])) & np.uint16((1 << _bits(members)) - 1)
        return np.broadcast_to(value % np.uint16(members), len(fields)).astype(np.intp)


def ecmp_hash_of(topology: Topology, pinning: Pinning) -> EcmpHash:
    """What Open vSwitch chooses by on a fabric that is pinned so. Raises ValueError as `SourcePortRules.of` does."""
    return OvsHash() if pinning == "hash" else SourcePortRules.of(topology)


def source_rules(topology: Topology, routes: Forwarding) -> dict[str, dict[SourceMatch, int]]:
    """The rules of every switch that forwards by address: which port for which packets.

    They cover every address to which a switch has several ways, and no other, by as few networks as can be. No two
    match one packet. Raises ValueError for a switch with more than `MOST_WAYS` ways, and as `SourcePortRules.of` does.
    """
    SourcePortRules.of(topology)
    rules: dict[str, dict[SourceMatch, int]] = {}
    for switch in topology.switches:
        if switch.role == "ocs":
            continue
        behind: defaultdict[tuple[int, ...], list[IPv4Address]] = defaultdict(list)
        for address, ports in routes.groups[switch.name].items():
            if len(ports) > 1:
                behind[ports].append(address)
        shift = _SHIFTS[switch.role]
        rules[switch.name] = {
            SourceMatch(network, value << shift, ((1 << _bits(len(ports))) - 1) << shift): ports[value % len(ports)]
            for ports, addresses in behind.items()
            for network in collapse_addresses(IPv4Network(address) for address in addresses)
            for value in range(1 << _bits(len(ports)))
        }
    return rules


def _bits(members: int) -> int:
    """How many bits of the port a switch with so many ways looks at."""
    if not 1 <= members <= MOST_WAYS:
        raise ValueError(f"rules on source ports tell 1 to {MOST_WAYS} ways apart, not {members}")
    least = (members - 1).bit_length()
    return least if members & (members - 1) == 0 else min(least + _SPARE_BITS, _FIELD_BITS)
