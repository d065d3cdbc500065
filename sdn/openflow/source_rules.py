# SPDX-License-Identifier: Apache-2.0
"""Pinning by rules on masked source ports, for switches whose hash cannot be predicted. Pure.

The bits of the source port choose the path: of its 14 free bits the lower seven choose at leaves, the upper seven at
spines. A switch with k ways to an address looks at as many bits as distinguish k ways, and has one rule for each of
their values. So rules depend on the cabling and on dead links, not on plans: hosts carry out a plan by their choice of
source ports, and switches do not change when flows begin or end. Flows with random ports are spread as evenly as by a
hash. Packets other than RoCEv2 use the groups.

`SourcePortRules` is an `EcmpHash`, so path prediction and the search for ports work with rules as with hashes.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from netmodel import EcmpHash, FlowFields, Forwarding, OvsHash, Topology
from netmodel.flow import Address
from sdn.openflow.networks import Network, networks_of

Pinning = Literal["hash", "rules"]
"""How a source port pins a path: by the switches' hash, which is predicted, or by rules."""

_FIELD_BITS = 7
_SHIFTS = {"leaf": 0, "spine": _FIELD_BITS}
# Bits beyond the least number that distinguishes the ways, unless their number is a power of two. Shares then differ by
# a fifth.
_SPARE_BITS = 2

MOST_WAYS = 1 << _FIELD_BITS
"""The most ways that a switch can distinguish."""


@dataclass(frozen=True, slots=True, order=True)
class SourceMatch:
    """Matches packets of lanes to `network` whose source port equals `src_port` in the bits of `mask`.

    Those are packets to UDP port 4791 (RoCEv2) and to TCP port 4791.
    """

    network: Network
    src_port: int
    mask: int


@dataclass(frozen=True, slots=True)
class SourcePortRules:
    """The choice of the rules as an `EcmpHash`. `shifts` has the first bit that a switch uses, by its hash seed."""

    shifts: Mapping[int, int]

    @classmethod
    def of(cls, topology: Topology) -> "SourcePortRules":
        """The rules of a topology.

        Raises ValueError for three tiers, and when a leaf and a spine have the same hash seed.
        """
        shifts: dict[int, int] = {}
        for switch in topology.switches:
            if switch.role == "ocs":
                continue
            if switch.role not in _SHIFTS:
                raise ValueError(
                    f"rules choose at leaves and spines, and switch {switch.name!r} has the role {switch.role!r}; use "
                    "pinning hash"
                )
            shift = _SHIFTS[switch.role]
            if shifts.setdefault(switch.hash_seed, shift) != shift:
                raise ValueError(
                    f"hash seed {switch.hash_seed} of switch {switch.name!r} is also that of a switch of another role; "
                    "give them different seeds"
                )
        return cls(shifts)

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`. Raises KeyError for a seed that no switch has."""
        value = (fields.sport >> np.uint16(self.shifts[seed])) & np.uint16((1 << _bits(members)) - 1)
        return np.broadcast_to(value % np.uint16(members), len(fields)).astype(np.intp)


def ecmp_hash_of(topology: Topology, pinning: Pinning) -> EcmpHash:
    """How Open vSwitch chooses with this pinning. Raises ValueError as `SourcePortRules.of` does."""
    return OvsHash() if pinning == "hash" else SourcePortRules.of(topology)


def source_rules(topology: Topology, routes: Forwarding) -> dict[str, dict[SourceMatch, int]]:
    """The rules of every switch that forwards by address: the output port for each match.

    They cover exactly the addresses to which a switch has several ways, with as few networks as possible. No packet
    matches two rules. Raises ValueError for a switch with more than `MOST_WAYS` ways, and as `SourcePortRules.of` does.
    """
    SourcePortRules.of(topology)
    rules: dict[str, dict[SourceMatch, int]] = {}
    for switch in topology.switches:
        if switch.role == "ocs":
            continue
        behind: defaultdict[tuple[int, ...], list[Address]] = defaultdict(list)
        for address, ports in routes.groups[switch.name].items():
            if len(ports) > 1:
                behind[ports].append(address)
        shift = _SHIFTS[switch.role]
        rules[switch.name] = {
            SourceMatch(network, value << shift, ((1 << _bits(len(ports))) - 1) << shift): ports[value % len(ports)]
            for ports, addresses in behind.items()
            for network in networks_of(addresses)
            for value in range(1 << _bits(len(ports)))
        }
    return rules


def _bits(members: int) -> int:
    """The number of bits of the port that a switch with this many ways uses."""
    if not 1 <= members <= MOST_WAYS:
        raise ValueError(f"rules on source ports tell 1 to {MOST_WAYS} ways apart, not {members}")
    least = (members - 1).bit_length()
    return least if members & (members - 1) == 0 else min(least + _SPARE_BITS, _FIELD_BITS)
