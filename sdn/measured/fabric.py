# SPDX-License-Identifier: Apache-2.0
"""What answers of routers mean on a topology: the ways of each pair of NICs, and the links of each way.

A router tells the port at which a probe came in, or, where it answers by a loopback, only itself. That of the topmost
tier tells a whole path, unless parallel links lead to or from other routers on it: then these are asked too.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from netmodel import NoRouteError, Path, PortRef, Topology, equal_cost_paths
from netmodel.flow import Address
from sdn.measured.discovery import Hop, Sight

Links: TypeAlias = tuple[PortRef, ...]
"""The links between switches that a path takes, each as the port by which the path leaves a switch."""

_EXAMINED = 4  # leaves from which pairs are examined
_MOST_PAIRS = 1 << 16
"""Pairs of leaves whose ways are kept; with more, all are found again."""


class Way(NamedTuple):
    """A path, named so that pairs behind the same leaf share its name up to the topmost router."""

    port: PortRef
    """Where it enters the topmost router; port 0 of the router where it answers by a loopback."""
    number: int = 0
    """Among the paths of a pair that enter there."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways of a pair of leaves. There are none where answers do not tell them apart."""

    links: Mapping[Way, Links]
    hops: tuple[Hop, ...] = ()
    entered: Mapping[tuple[PortRef, ...], Way] = field(default_factory=dict)
    """By the port at which a probe comes in at each of the `hops`."""
    other: Hop | None = None
    """A further hop whose routers tell ways each by itself."""
    entered_other: Mapping[tuple[PortRef, ...], Way] = field(default_factory=dict)
    """By the port at which a probe comes in there."""


_NO_WAYS = _Ways({})
_NOWHERE = PortRef("", 0)  # of an address that no router has


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
        self._known: dict[tuple[str, str], _Ways] = {}

    def sight(self, src: int, dst: int) -> Sight[Way] | None:
        """What is known of two NICs before they are probed.

        None where there is nothing to choose: on one leaf, without a path, and where no answers tell which of parallel
        links a path takes, because they name routers only.
        """
        ways = self._ways(src, dst)
        count = len(ways.links)
        if count < 2:
            return None
        return Sight(ways.hops, count, (self._leaf[src], ways.hops[0].ttl, count), ways.other)

    def router(self, address: Address) -> str:
        """The router at an address; empty for an address that none has."""
        return self._routers.get(address, "")

    def sought(self, way: Hashable) -> Sequence[Address]:
        """The addresses by which the topmost router of a way answers for it."""
        return self._addresses.get(way.port, ()) if isinstance(way, Way) else ()

    def answering(self, src: int, dst: int, way: Way) -> Sequence[Address]:
        """An address by which each router answers for a way of two NICs, at the hops of their `sight`.

        None where a router has no address. One that has several may answer by another.
        """
        entered = next((ports for ports, its in self._ways(src, dst).entered.items() if its == way), ())
        found = [next(iter(self._addresses.get(port, ())), None) for port in entered]
        return [address for address in found if address is not None] if all(found) else []

    def way(self, src: int, dst: int, answered: Sequence[Address]) -> Way | None:
        """The way of which these routers have `answered`, at the hops of the `sight` of two NICs, or at its other hop.

        None for no way.
        """
        ways, entered = self._ways(src, dst), tuple(map(self._entered, answered))
        return ways.entered.get(entered) or ways.entered_other.get(entered)

    def contradicts(self, src: int, dst: int, answered: Sequence[Address]) -> bool:
        """Whether each of these answers is on a way of two NICs, but not all of them on one.

        Routes have changed in between, or routers do not name the port at which a probe came in.
        """
        ways, entered = self._ways(src, dst), tuple(map(self._entered, answered))
        if entered in ways.entered:
            return False
        each = [set(at) for at in zip(*ways.entered, strict=True)]
        return all(one in at for one, at in zip(entered, each, strict=True))

    def ways(self, src: int, dst: int) -> Iterable[Way]:
        """All ways of two NICs, whether ports take them or not, in the order of `paths`."""
        return self._ways(src, dst).links

    def links(self, src: int, dst: int, way: Way) -> Links:
        """The links of a way. Raises KeyError for one that these NICs do not have."""
        return self._ways(src, dst).links[way]

    def paths(self, src: int, dst: int) -> Iterable[Links]:
        """The links of all ways of two NICs, whether ports take them or not."""
        return self._ways(src, dst).links.values()

    def whole(self, src: int, dst: int, paths: Iterable[Links]) -> list[Path]:
        """Paths between the switches of two NICs with the links of both hosts."""
        first, last = self.nics[src], self.topology.peer(self.nics[dst])
        return [(first, *path, last) for path in paths]

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
            entered = dict.fromkeys(port for ports in ways.entered for port in ports)
            if len(ways.links) > 1 and self._answering.issuperset(entered):
                return None
            reasons.append(self._reason(src, dst, entered))
        return (
            next((reason for reason in reasons if reason), None)
            or f"no two hosts of {self.topology.name} have two paths"
        )

    def _reason(self, src: int, dst: int, entered: Iterable[PortRef]) -> str:
        hosts = self.nics[src].node, self.nics[dst].node
        if missing := sorted(str(at) if self._ports else at.node for at in entered if at not in self._answering):
            return f"{missing[0]} answers probes between {hosts[0]} and {hosts[1]}, and has no address"
        if entered:
            return ""
        return (
            f"from {hosts[0]} to {hosts[1]} there are parallel links, and answers that name routers but not their "
            "ports do not tell which of these a path takes"
        )

    @cached_property
    def _answering(self) -> frozenset[PortRef]:
        """What has an address, as `_Ways.entered` has it."""
        return frozenset(self._ports.values() if self._ports else (PortRef(node, 0) for node in self._routers.values()))

    @cached_property
    def _addresses(self) -> dict[PortRef, list[Address]]:
        found: dict[PortRef, list[Address]] = {}
        for address in self._ports or self._routers:
            found.setdefault(self._entered(address), []).append(address)
        return found

    def _entered(self, answered: Address) -> PortRef:
        """What the router at an address tells of a probe."""
        if self._ports:
            return self._ports.get(answered, _NOWHERE)
        node = self._routers.get(answered)
        return _NOWHERE if node is None else PortRef(node, 0)

    def _ways(self, src: int, dst: int) -> _Ways:
        key = near, far = self._leaf[src], self._leaf[dst]
        if near == far or self.nics[src].node == self.nics[dst].node:
            return _NO_WAYS
        ways = self._known.get(key)
        if ways is None:
            if len(self._known) >= _MOST_PAIRS:
                self._known.clear()
            ways = self._known[key] = self._found(self.nics[src], self.nics[dst])
        return ways

    def _found(self, src: PortRef, dst: PortRef) -> _Ways:
        try:
            paths = equal_cost_paths(self.topology, src.node, dst.node, src_nic=src.port - 1, dst_nic=dst.port - 1)
        except NoRouteError:
            return _NO_WAYS
        top = len(paths[0]) // 2
        ttls = [top]
        entered: list[tuple[PortRef, ...]] = [(self._port_of(path, top),) for path in paths]
        for ttl in (*range(top + 1, len(paths[0])), *range(top - 1, 0, -1)):
            apart = len(set(entered))
            if apart == len(paths):
                break
            more = [(*before, self._port_of(path, ttl)) for before, path in zip(entered, paths, strict=True)]
            if len(set(more)) > apart:
                ttls, entered = [*ttls, ttl], more
        if len(set(entered)) < len(paths):
            return _NO_WAYS
        links: dict[Way, Links] = {}
        ways: dict[tuple[PortRef, ...], Way] = {}
        numbers = Counter[PortRef]()
        for path, at in zip(paths, entered, strict=True):
            ways[at] = way = Way(at[0], numbers[at[0]])
            numbers[at[0]] += 1
            links[way] = path[1:-1]
        hops = tuple(_hop(ttl, (at[place] for at in entered)) for place, ttl in enumerate(ttls))
        for ttl in range(top + 1, len(paths[0]) if len(hops) == 1 else 0):
            others = [self._port_of(path, ttl) for path in paths]
            if len(set(others)) == len(paths):
                told: dict[tuple[PortRef, ...], Way] = {(port,): way for port, way in zip(others, links, strict=True)}
                return _Ways(links, hops, ways, _hop(ttl, others), told)
        return _Ways(links, hops, ways)

    def _port_of(self, path: Path, ttl: int) -> PortRef:
        """What the router at which a probe of a path ends tells of it."""
        port = self.topology.peer(path[ttl - 1])
        return port if self._ports else PortRef(port.node, 0)


def _hop(ttl: int, entered: Iterable[PortRef]) -> Hop:
    """The hop at which probes of this time to live come in at these ports."""
    routers = {port.node for port in entered}
    return Hop(ttl, min(routers), len(routers))
