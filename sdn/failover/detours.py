# SPDX-License-Identifier: Apache-2.0
"""Ways around a dead rail switch: over another rail, through the HB domains of both ends. Pure.

A GPU whose rail is dead sends to another GPU of its HB domain, which forwards over its own rail to a GPU of the
destination's domain, and that one to the end. Rail-only (arXiv 2307.12169v5), section IV-B, forwards all-to-alls so.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from netmodel import Path, PortRef, Topology

_Hosts = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Detours:
    """`ways`: the sender, two hosts that forward, and the receiver, by the names of sender and receiver.

    `nic` is the index of the NICs on rails, `local_nic` of those in HB domains.
    """

    nic: int = 0
    local_nic: int = 1
    ways: Mapping[tuple[str, str], _Hosts] = field(default_factory=dict)

    def path(self, topology: Topology, source: str, destination: str) -> Path:
        """The egress ports from one host's NIC on a dead rail to the other's. Raises KeyError where there is no way."""
        hosts = self.ways[source, destination]
        found: list[PortRef] = []
        for (here, there), nic in zip(pairwise(hosts), (self.local_nic, self.nic, self.local_nic), strict=True):
            found += [PortRef(here, nic + 1), topology.peer(PortRef(there, nic + 1))]
        return tuple(found)


def detours(topology: Topology, dead: Collection[str], nic: int, local_nic: int) -> Detours:
    """Ways between all hosts of different HB domains whose NICs are on one of these dead switches.

    Pairs of domains are spread over the other rails; both directions of a pair take the same rail. Raises ValueError
    where no live rail joins two domains.
    """
    rail_of = {host.name: topology.peer(PortRef(host.name, nic + 1)).node for host in topology.hosts}
    members: defaultdict[str, list[str]] = defaultdict(list)
    for host in topology.hosts:
        members[topology.peer(PortRef(host.name, local_nic + 1)).node].append(host.name)
    ways: dict[tuple[str, str], _Hosts] = {}
    for i, here in enumerate(members.values()):
        for j, there in enumerate(members.values()):
            ends = [(a, b) for a in here for b in there if i != j and rail_of[a] in dead and rail_of[a] == rail_of[b]]
            live = [(x, y) for x in here for y in there if rail_of[x] == rail_of[y] and rail_of[x] not in dead]
            for number, (a, b) in enumerate(ends):
                if not live:
                    raise ValueError(f"no live rail joins {a} and {b} while {', '.join(sorted(dead))} is dead")
                x, y = live[(i + j + number) % len(live)]
                ways[a, b] = a, x, y, b
    return Detours(nic, local_nic, ways)
