# SPDX-License-Identifier: Apache-2.0
"""Source routing: the port by which a packet enters its leaf determines the spine. Pure.

"vClos" is X. Han et al., "Isolated Scheduling for Distributed Training Tasks in GPU Clusters", 2023. Its section 5.2:
leaf m has a one-to-one mapping f_m from host ports to spine ports; a packet to another leaf that enters by host port i
leaves by spine port f_m(i), and a spine has one path to each leaf. There is no hash, so two hosts of a leaf never share
an uplink. No two flows share any link if

- every leaf sends to one other leaf, and no two leaves to the same one (Lemma 5.1; rings, pipelines), for any f_m; or
- it is a step of halving-doubling, and the hosts per leaf are a power of two: then Lemma 5.1 holds again. The paper
  leaves this condition out. Without it a leaf exchanges with two others in one step; `by_rank` is a mapping that serves
  any number of hosts per leaf; or
- every host sends to the host at a fixed distance, all f_m are equal, and the ranks fill whole leaves or none wraps
  around (pairwise all-to-all, pipelines). The paper proves this for f_m(i) = i and a job that has the whole cluster.
  With different mappings, or in an all-to-all whose last leaf is not full, a leaf can receive two flows from one spine.

A spine with parallel links acts as several spines: packets that enter by the k-th link of one leaf leave by the k-th
link of another.

On three tiers aggs have a mapping too: packets to another pod that enter by the j-th port to leaves leave by the j-th
port to cores, modulo their number. With as many cores of an agg as leaves of a pod, what the paper proves of equal
mappings holds for links to cores too, by the argument in `pods_vclos`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from netmodel import Forwarding, Link, Path, PortRef, Topology, forwarding
from netmodel.flow import Address


@dataclass(frozen=True, slots=True)
class SourceRouting:
    """`uplinks[leaf][host port]` is the spine port f_m(i); packets from other host ports use the groups."""

    uplinks: Mapping[str, Mapping[int, int]]
    kind: Literal["source_routing"] = "source_routing"

    def routes(self, topology: Topology, dead_links: frozenset[Link] = frozenset()) -> Forwarding:
        """`netmodel.forwarding` with tables for the mapped ports.

        Packets use the groups when the mapped port is dead or what it leads to does not reach the destination.

        Raises ValueError for an unknown leaf, host port or spine port, and for an uplink that two ports share.
        """
        _check(topology, self.uplinks)
        routes = forwarding(topology, dead_links)
        ingress: dict[PortRef, Mapping[Address, tuple[int, ...]]] = {
            PortRef(leaf, port): Preferring(routes.groups[leaf], frozenset({uplink}))
            for leaf, mapping in self.uplinks.items()
            for port, uplink in mapping.items()
        }
        for port, same in planes(topology).items():
            ingress[port] = Preferring(routes.groups[port.node], same)
        for port, core in _core_ports(topology).items():
            ingress[port] = Preferring(routes.groups[port.node], frozenset({core}))
        return Forwarding(routes.groups, routes.dead_links, ingress)


class Preferring(Mapping[Address, tuple[int, ...]]):
    """A switch's table that uses one of `ports` wherever a group has it."""

    __slots__ = ("_ports", "_table")

    def __init__(self, table: Mapping[Address, tuple[int, ...]], ports: frozenset[int]) -> None:
        self._table, self._ports = table, ports

    def __getitem__(self, address: Address) -> tuple[int, ...]:
        ways = self._table[address]
        return tuple(port for port in ways if port in self._ports) or ways

    def __iter__(self) -> Iterator[Address]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def in_order(topology: Topology) -> SourceRouting:
    """The mapping of the paper's proofs: on every leaf the i-th host port uses the i-th spine port.

    Raises ValueError for a leaf with more hosts than uplinks.
    """
    hosts, uplinks = host_ports(topology), uplink_ports(topology)
    for leaf, ports in hosts.items():
        if len(uplinks[leaf]) < len(ports):
            raise ValueError(
                f"source routing gives every host an uplink of its own, and {leaf} has {len(ports)} hosts and "
                f"{len(uplinks[leaf])} uplinks; take a topology with as many uplinks as hosts on each leaf"
            )
    return SourceRouting({leaf: dict(zip(ports, uplinks[leaf], strict=False)) for leaf, ports in hosts.items()})


def by_rank(topology: Topology) -> SourceRouting:
    """A mapping for halving-doubling where the hosts per leaf are no power of two.

    Let p be the smallest power of two that is not below the hosts of any leaf. Host number r of the fabric, from 0,
    uses spine port r mod p of its leaf, from 0. Ranks are hosts in order. Why no link has two flows of a step: ranks a
    and b that use one spine are equal mod p. Their partners at distance d, a xor d and b xor d, are equal mod p too,
    because p and d are powers of two. The hosts of a leaf all differ mod p, so the partners are on two leaves, and so
    are a and b. The same holds for partners a + t and b + t, and mod the number of ranks where p divides it. So rings
    and pipelines are free of collisions as well, and the pairwise all-to-all where p divides the number of ranks.

    Raises ValueError for a leaf with fewer than p uplinks.
    """
    hosts, spines = host_ports(topology), uplink_ports(topology)
    most = max(map(len, hosts.values()))
    p = 1 << (most - 1).bit_length()
    for leaf, uplinks in spines.items():
        if len(uplinks) < p:
            raise ValueError(
                f"source routing by rank takes {p} uplinks on each leaf, the power of two that is not below its {most} "
                f"hosts, and {leaf} has {len(uplinks)}; take a topology with more spines"
            )
    ranks = {topology.peer(PortRef(host.name, 1)): rank for rank, host in enumerate(topology.hosts)}
    return SourceRouting(
        {leaf: {port: spines[leaf][ranks[PortRef(leaf, port)] % p] for port in ports} for leaf, ports in hosts.items()}
    )


def path(topology: Topology, routing: SourceRouting, src: str, dst: str) -> Path:
    """The path from one host's first NIC to another's on a leaf-spine, while all links are alive.

    It equals `netmodel.path_of` with `routing.routes(topology)`, but needs no tables: for fabrics of thousands of
    hosts. Raises KeyError for an unknown host, and for a source whose port is not mapped.
    """
    origin, goal = PortRef(topology.host(src).name, 1), topology.peer(PortRef(topology.host(dst).name, 1))
    entry = topology.peer(origin)
    if entry.node == goal.node:
        return origin, goal
    up = PortRef(entry.node, routing.uplinks[entry.node][entry.port])
    spine = topology.peer(up)
    between: defaultdict[str, list[int]] = defaultdict(list)
    for port, peer in _peers(topology)[spine.node].items():
        between[peer].append(port)
    down = between[goal.node][between[entry.node].index(spine.port)]
    return origin, up, PortRef(spine.node, down), goal


def host_ports(topology: Topology) -> dict[str, list[int]]:
    """The ports to hosts of every leaf, ascending."""
    return _ports_by_leaf(topology, to_hosts=True)


def uplink_ports(topology: Topology) -> dict[str, list[int]]:
    """The ports to spines of every leaf, ascending."""
    return _ports_by_leaf(topology, to_hosts=False)


def planes(topology: Topology) -> dict[PortRef, frozenset[int]]:
    """For every port of a spine with parallel links: the ports of its plane, the k-th to each leaf."""
    result = {}
    for switch in topology.switches:
        if switch.role != "spine":
            continue
        between: defaultdict[str, list[int]] = defaultdict(list)
        for port, peer in _peers(topology)[switch.name].items():
            between[peer].append(port)
        for ports in between.values():
            for rank, port in enumerate(ports):
                if max(map(len, between.values())) > 1:
                    result[PortRef(switch.name, port)] = frozenset(
                        others[rank] for others in between.values() if rank < len(others)
                    )
    return result


def _core_ports(topology: Topology) -> dict[PortRef, int]:
    """For every port of an agg to a leaf: the port to a core that packets from there take."""
    roles = {switch.name: switch.role for switch in topology.switches}
    found: dict[PortRef, int] = {}
    for switch, role in roles.items():
        peers = _peers(topology)[switch] if role == "agg" else {}
        cores = [port for port, peer in peers.items() if roles.get(peer) == "core"]
        leaves = [port for port, peer in peers.items() if roles.get(peer) == "leaf"]
        if cores:
            found |= {PortRef(switch, port): cores[place % len(cores)] for place, port in enumerate(leaves)}
    return found


def _ports_by_leaf(topology: Topology, *, to_hosts: bool) -> dict[str, list[int]]:
    return {
        switch.name: [
            port for port, peer in _peers(topology)[switch.name].items() if topology.has_host(peer) == to_hosts
        ]
        for switch in topology.switches
        if switch.role == "leaf"
    }


def _check(topology: Topology, uplinks: Mapping[str, Mapping[int, int]]) -> None:
    hosts, spines = host_ports(topology), uplink_ports(topology)
    for leaf, mapping in uplinks.items():
        if leaf not in hosts:
            raise ValueError(f"source routing: topology {topology.name!r} has no leaf {leaf!r}")
        _check_ports(leaf, "host", mapping, hosts[leaf])
        _check_ports(leaf, "spine", mapping.values(), spines[leaf])
        if len(set(mapping.values())) < len(mapping):
            raise ValueError(f"source routing: two host ports of {leaf} share a spine port; give each its own")


def _check_ports(leaf: str, kind: str, ports: Iterable[int], known: list[int]) -> None:
    for port in ports:
        if port not in known:
            raise ValueError(f"source routing: port {port} of {leaf} is not a {kind} port; those are {known}")


@lru_cache(maxsize=8)
def _peers(topology: Topology) -> Mapping[str, Mapping[int, str]]:
    """The neighbour at every port of every switch; ports ascending."""
    peers: dict[str, dict[int, str]] = {switch.name: {} for switch in topology.switches}
    for link in topology.links:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if near.node in peers:
                peers[near.node][near.port] = far.node
    return {switch: dict(sorted(ports.items())) for switch, ports in peers.items()}
