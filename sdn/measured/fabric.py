# SPDX-License-Identifier: Apache-2.0
"""What answers of routers mean on a topology: the ways of each pair of NICs, and the links of each way.

A way is what the router of the topmost tier tells: the port at which a probe came in, or, where routers answer by a
loopback, port 0 of the router. On fabrics without parallel links beyond it, that is a whole path.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

from netmodel import NoRouteError, PortRef, Topology, equal_cost_paths
from netmodel.flow import Address
from sdn.measured.discovery import Sight

Way: TypeAlias = PortRef
Links: TypeAlias = tuple[PortRef, ...]
"""The links between switches that a path takes, each as the port by which the path leaves a switch."""

_EXAMINED = 4  # leaves from which pairs are examined
_MOST_PAIRS = 1 << 16
"""Pairs of leaves whose ways are kept; with more, all are found again."""


class MeasuredFabric:
    """A topology whose routers are known by the addresses by which they answer.

    `routers` has the switch of each address. `ports` has the port of each, or is empty where answers name routers only
    (`netmodel.probing.inference.FoundTopology` has both).
    """

    def __init__(self, topology: Topology, routers: Mapping[Address, str], ports: Mapping[Address, PortRef]) -> None:
        self.topology = topology
        self._routers = routers
        self._ports = ports
        self.nics = tuple(PortRef(host.name, n) for host in topology.hosts for n in range(1, len(host.nics) + 1))
        """The host port of each NIC, by the NIC's number."""
        self._leaf = [topology.peer(nic).node for nic in self.nics]
        self._known: dict[tuple[str, str], Mapping[Way, Links]] = {}

    def sight(self, src: int, dst: int) -> Sight[Way] | None:
        """What is known of two NICs before they are probed.

        None where there is nothing to choose: on one leaf, without a path, and where the topmost router does not tell
        the whole path, because parallel links lead on from it.
        """
        ways = self._ways(src, dst)
        if len(ways) < 2:
            return None
        middle = len(next(iter(ways.values()))) // 2
        routers = frozenset(way.node for way in ways)
        leaf = self._leaf[src]
        return Sight(middle + 1, (middle, min(routers)), len(routers), len(ways), (leaf, middle, len(ways)))

    def way(self, src: int, dst: int, answered: Address) -> Way | None:
        """The way of a probe that the router at `answered` answered; None for one that is on no way of these NICs."""
        node = self._routers.get(answered)
        if node is None:
            return None
        way = self._ports.get(answered) if self._ports else PortRef(node, 0)
        return way if way in self._ways(src, dst) else None

    def ways(self, src: int, dst: int) -> Iterable[Way]:
        """All ways of two NICs, whether ports take them or not, in the order of `paths`."""
        return self._ways(src, dst)

    def links(self, src: int, dst: int, way: Way) -> Links:
        """The links of a way. Raises KeyError for one that these NICs do not have."""
        return self._ways(src, dst)[way]

    def paths(self, src: int, dst: int) -> Iterable[Links]:
        """The links of all ways of two NICs, whether ports take them or not."""
        return self._ways(src, dst).values()

    def unmeasurable(self) -> str | None:
        """Why no pair at all can be measured, in one sentence; None where some can.

        One pair is examined for each leaf: how many paths answers tell does not depend on the addresses of hosts.
        """
        hosts: dict[str, dict[str, int]] = {}  # by leaf: a NIC of each of its first two hosts
        for nic, leaf in enumerate(self._leaf):
            some = hosts.setdefault(leaf, {})
            if len(some) < 2:
                some.setdefault(self.nics[nic].node, nic)
        first = [next(iter(some.values())) for some in hosts.values()]
        pairs = [
            (src, dst)
            for src in first[:_EXAMINED]
            for some in hosts.values()
            for dst in [nic for host, nic in some.items() if host != self.nics[src].node][:1]
            if self._leaf[src] != self._leaf[dst]
        ]
        if not pairs:
            return f"all hosts of {self.topology.name} are at one leaf, so there is no path to choose"
        reasons = []
        for src, dst in pairs:
            ways = self._ways(src, dst)
            if len(ways) > 1 and self._answering.issuperset(ways):
                return None
            reasons.append(self._reason(src, dst, ways))
        return (
            next((reason for reason in reasons if reason), None)
            or f"no two hosts of {self.topology.name} have two paths"
        )

    def _reason(self, src: int, dst: int, ways: Mapping[Way, Links]) -> str:
        hosts = self.nics[src].node, self.nics[dst].node
        if missing := sorted(str(way) if self._ports else way.node for way in ways if way not in self._answering):
            return f"{missing[0]} answers probes between {hosts[0]} and {hosts[1]}, and has no address"
        if ways:
            return ""
        return (
            f"from {hosts[0]} to {hosts[1]} the topmost router does not tell the path, because "
            "parallel links lead on from it, or to it where answers name routers only"
        )

    @cached_property
    def _answering(self) -> frozenset[Way]:
        """The ways whose routers have an address."""
        return frozenset(self._ports.values() if self._ports else (PortRef(node, 0) for node in self._routers.values()))

    def _ways(self, src: int, dst: int) -> Mapping[Way, Links]:
        key = near, far = self._leaf[src], self._leaf[dst]
        if near == far or self.nics[src].node == self.nics[dst].node:
            return {}
        ways = self._known.get(key)
        if ways is None:
            if len(self._known) >= _MOST_PAIRS:
                self._known.clear()
            ways = self._known[key] = self._found(self.nics[src], self.nics[dst])
        return ways

    def _found(self, src: PortRef, dst: PortRef) -> Mapping[Way, Links]:
        try:
            paths = equal_cost_paths(self.topology, src.node, dst.node, src_nic=src.port - 1, dst_nic=dst.port - 1)
        except NoRouteError:
            return {}
        ways: dict[Way, Links] = {}
        for path in paths:
            entered = self.topology.peer(path[len(path) // 2 - 1])
            way = entered if self._ports else PortRef(entered.node, 0)
            if way in ways:
                return {}
            ways[way] = path[1:-1]
        return ways
