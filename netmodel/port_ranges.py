# SPDX-License-Identifier: Apache-2.0
"""Pinning by rules on ranges of UDP source ports, which most switches can match (policy-based routing). Pure.

The ports 49152 to 65535 are divided at leaves into as many ranges as these have ways, each of these again at the next
tier, and so on. So rules depend on the cabling, not on plans. `PortRanges` is an `EcmpHash`, so path prediction and the
search for ports work with rules as with hashes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from netmodel.fabric_tiers import tiers
from netmodel.flow import ENTROPY_PORTS, ROCE_PORT, FlowFields, address_array
from netmodel.next_hops import Forwarding
from netmodel.topology import PortRef, Topology


@dataclass(frozen=True, slots=True)
class _Digit:
    """The part of a port number that switches of a tier look at: which of `ways` ranges of `width` within `above`."""

    above: int
    width: int
    ways: int


@dataclass(frozen=True, slots=True)
class PortRanges:
    """The choice of the rules as an `EcmpHash`. `digits` has what a switch looks at, by its hash seed."""

    digits: Mapping[int, _Digit]

    @classmethod
    def of(cls, topology: Topology, routes: Forwarding) -> "PortRanges":
        """The ranges of a topology.

        Raises ValueError for more paths than ports, and when switches of two tiers have the same hash seed.
        """
        tier = tiers(topology)
        most: dict[int, int] = dict.fromkeys(sorted(set(tier.values())), 1)
        for name, at in tier.items():
            most[at] = max(most[at], *(len(ports) for ports in routes.groups[name].values()), 1)
        of_tier: dict[int, _Digit] = {}
        above = len(ENTROPY_PORTS)
        for at, ways in most.items():
            if ways > above:
                raise ValueError(f"{len(ENTROPY_PORTS)} source ports are too few ranges for the paths of this topology")
            of_tier[at] = _Digit(above, above // ways, ways)
            above //= ways
        digits: dict[int, _Digit] = {}
        for name, at in tier.items():
            seed = topology.switch(name).hash_seed
            if digits.setdefault(seed, of_tier[at]) != of_tier[at]:
                raise ValueError(
                    f"hash seed {seed} of switch {name!r} is also that of a switch of another tier; give them "
                    "different seeds"
                )
        return cls(MappingProxyType(digits))

    def select(self, fields: FlowFields, seed: int, members: int) -> npt.NDArray[np.intp]:
        """See `EcmpHash.select`. Raises KeyError for a seed that no switch has."""
        digit = self.digits[seed]
        place = (fields.sport.astype(np.intp) - ENTROPY_PORTS.start) % digit.above
        chosen = np.minimum(place // digit.width, digit.ways - 1) % members
        return np.broadcast_to(chosen, len(fields)).astype(np.intp)


@dataclass(frozen=True, slots=True)
class PortRule:
    """Packets to UDP port 4791 of a network, from source ports `first` to `last`, leave by `out`."""

    network: IPv4Network | IPv6Network
    first: int
    last: int
    out: PortRef


def port_rules(topology: Topology, routes: Forwarding) -> dict[str, list[PortRule]]:
    """The rules of every switch that has a choice. No packet matches two. Raises ValueError as `PortRanges.of` does."""
    ranges = PortRanges.of(topology, routes)
    every = FlowFields(
        src=address_array([IPv4Address(0)]),
        dst=address_array([IPv4Address(0)]),
        sport=np.array(ENTROPY_PORTS, dtype=np.uint16),
        dport=np.array([ROCE_PORT], dtype=np.uint16),
        proto=np.array([17], dtype=np.uint8),
    )
    rules: dict[str, list[PortRule]] = {}
    for name in tiers(topology):
        behind: dict[tuple[int, ...], list[IPv4Address | IPv6Address]] = {}
        for address, ports in routes.groups[name].items():
            if len(ports) > 1:
                behind.setdefault(tuple(sorted(ports)), []).append(address)
        for ports, addresses in behind.items():
            chosen = ranges.select(every, topology.switch(name).hash_seed, len(ports))
            ends = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), len(ENTROPY_PORTS)]
            for network in _networks(addresses):
                rules.setdefault(name, []).extend(
                    PortRule(
                        network,
                        ENTROPY_PORTS.start + begin,
                        ENTROPY_PORTS.start + end - 1,
                        PortRef(name, ports[int(chosen[begin])]),
                    )
                    for begin, end in pairwise(ends)
                )
    return rules


def _networks(addresses: list[IPv4Address | IPv6Address]) -> list[IPv4Network | IPv6Network]:
    """The fewest networks that contain exactly these addresses, which are of one family."""
    return [
        *collapse_addresses(IPv4Network(one) for one in addresses if isinstance(one, IPv4Address)),
        *collapse_addresses(IPv6Network(one) for one in addresses if isinstance(one, IPv6Address)),
    ]
