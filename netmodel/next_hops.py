# SPDX-License-Identifier: Apache-2.0
"""Forwarding: the ports that each switch may use for each address. It programs switches and predicts paths.

Routes are shortest paths by hop count over the live links, as in a converged link-state or BGP fabric: a switch's group
for an address has every port whose link is on a shortest path. No route leads through a host. Optical circuit
switches do not forward by address; `forwarding(with_circuits(topology, circuits))` gives the routes through them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel.flow import Address
from netmodel.topology import Link, PortRef, Topology


class SwitchRoutes(Mapping[Address, tuple[int, ...]]):
    """One switch's routes: address -> egress ports, ascending. Unreachable addresses are absent.

    All addresses behind one switch share a group, so memory grows with the pairs of switches, not with the pairs of
    switch and host.
    """

    __slots__ = ("_homes", "_local", "_residents", "_switch", "_towards")

    def __init__(
        self,
        switch: str,
        local: Mapping[Address, int],
        towards: Mapping[str, tuple[int, ...]],
        homes: Mapping[Address, str],
    ) -> None:
        self._switch = switch
        self._local = local  # addresses attached to this switch -> its port
        self._towards = towards  # home switch -> egress ports
        self._homes = homes  # every attached address of the fabric -> the switch it is attached to

    def __getitem__(self, address: Address) -> tuple[int, ...]:
        home = self._homes.get(address)
        if home is None:
            raise KeyError(f"no NIC with address {address} is attached to the fabric")
        if home == self._switch:
            return (self._local[address],)
        ports = self._towards.get(home)
        if ports is None:
            raise KeyError(f"switch {self._switch!r} has no path to {address}, which is behind {home!r}")
        return ports

    def __iter__(self) -> Iterator[Address]:
        return (a for a, home in self._homes.items() if home == self._switch or home in self._towards)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"SwitchRoutes({self._switch!r}, {dict(self)!r})"


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The routes of every switch: `groups[switch name][address]` is a tuple of out ports.

    A tuple of one port is a plain output. Several ports are the members of an ECMP group; member k is the k-th port.
    They are ascending in what `forwarding` computes, and in another order where that of a running switch was read.
    Unreachable addresses are absent (KeyError). `dead_links` are the links that the routes avoid. `ingress` has tables
    like those of `groups` for packets that enter by a certain switch port. Such packets use that table only; a packet
    whose address it lacks is dropped. `by_address`: addresses behind one switch may have different groups elsewhere,
    as those that were read of running routers.
    """

    groups: Mapping[str, Mapping[Address, tuple[int, ...]]]
    dead_links: frozenset[Link] = frozenset()
    ingress: Mapping[PortRef, Mapping[Address, tuple[int, ...]]] = field(default_factory=dict)
    by_address: bool = False


def forwarding(topology: Topology, dead_links: frozenset[Link] = frozenset()) -> Forwarding:
    """Shortest-path routes of `topology` without its `dead_links`. Pure; the last eight results are cached.

    It works for any number of tiers and for parallel links, each of which is a group member. Raises ValueError for a
    dead link that the topology does not have.
    """
    return _forwarding(topology, frozenset(dead_links))


@lru_cache(maxsize=8)
def _forwarding(topology: Topology, dead_links: frozenset[Link]) -> Forwarding:
    strangers = dead_links.difference(topology.links)
    if strangers:
        stranger = min(strangers, key=lambda link: (link.a, link.b))
        raise ValueError(f"dead link {stranger.a} to {stranger.b} is not a link of topology {topology.name!r}")

    names = [switch.name for switch in topology.switches if switch.role != "ocs"]
    number = {name: i for i, name in enumerate(names)}
    homes: dict[Address, str] = {}
    local: defaultdict[str, dict[Address, int]] = defaultdict(dict)
    neighbours: list[list[tuple[int, int]]] = [[] for _ in names]  # per switch: (port, neighbour's number)
    for link in topology.links:
        if link in dead_links:
            continue
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if near.node not in number:
                continue
            if far.node in number:
                neighbours[number[near.node]].append((near.port, number[far.node]))
            elif topology.has_host(far.node):
                address = topology.host(far.node).nics[far.port - 1].address
                homes[address] = near.node
                local[near.node][address] = near.port

    home_names = [name for name in names if name in local]
    distance = _hops([number[name] for name in home_names], neighbours)
    groups: dict[str, Mapping[Address, tuple[int, ...]]] = {
        switch.name: SwitchRoutes(switch.name, {}, {}, {}) for switch in topology.switches if switch.role == "ocs"
    }
    for name in names:
        towards = _groups_of(number[name], sorted(neighbours[number[name]]), distance, home_names)
        groups[name] = SwitchRoutes(name, local.get(name, {}), towards, homes)
    return Forwarding(groups, dead_links)


WrittenNextHops: TypeAlias = Mapping[str, Mapping[str, Sequence[int]]]
"""As files have them, by switch and address: the ports of a group in the order by which hashes select."""


def in_order_of(next_hops: WrittenNextHops, routes: Forwarding) -> Forwarding:
    """The same routes, with the groups of `next_hops` instead of those for the same addresses.

    Raises ValueError for what is not an address.
    """
    groups: dict[str, Mapping[Address, tuple[int, ...]]] = {}
    for name, own in routes.groups.items():
        read = {ip_address(address): tuple(ports) for address, ports in next_hops.get(name, {}).items()}
        groups[name] = {**own, **read}
    return replace(routes, groups=groups, by_address=True)


_UNREACHABLE = -1


def _hops(homes: list[int], neighbours: list[list[tuple[int, int]]]) -> npt.NDArray[np.int32]:
    """Hop counts between switches, shape (homes, switches), -1 where there is no path: one BFS of all homes at once."""
    switches = len(neighbours)
    adjacent = np.zeros((switches, switches), dtype=np.float32)
    for i, ports in enumerate(neighbours):
        adjacent[i, [peer for _, peer in ports]] = 1
    distance = np.full((len(homes), switches), _UNREACHABLE, dtype=np.int32)
    frontier = np.zeros((len(homes), switches), dtype=bool)
    frontier[np.arange(len(homes)), homes] = True
    hops = 0
    while frontier.any():
        distance[frontier] = hops
        hops += 1
        # float32 products run in BLAS; the sums, at most the number of switches, are exact
        frontier = (frontier.astype(np.float32) @ adjacent > 0) & (distance == _UNREACHABLE)
    return distance


def _groups_of(
    switch: int, ports: list[tuple[int, int]], distance: npt.NDArray[np.int32], home_names: list[str]
) -> dict[str, tuple[int, ...]]:
    """Per home switch that `switch` reaches (itself left out): the ports one hop nearer to it, ascending."""
    if not ports or not home_names:
        return {}
    peers = np.array([peer for _, peer in ports])
    nearer = distance[:, peers] == distance[:, [switch]] - 1
    nearer &= distance[:, [switch]] > 0
    # Most home switches share one group (all uplinks of a leaf), so each distinct row is made into a tuple only once.
    seen: dict[bytes, tuple[int, ...]] = {}
    groups: dict[str, tuple[int, ...]] = {}
    for home, row, key in zip(home_names, nearer, np.packbits(nearer, axis=1), strict=True):
        group = seen.get(key.tobytes())
        if group is None:
            group = seen[key.tobytes()] = tuple(ports[i][0] for i in np.flatnonzero(row))
        if group:
            groups[home] = group
    return groups
