# SPDX-License-Identifier: Apache-2.0
"""The topology of a fabric, from the probes of several hosts.

Where routers answer by the address of the port at which a probe came in, each answer names a link: its other end has
the partner address of the same /31 (RFC 3021) or /127 (RFC 6164), or /30. So the router before it on the path has
that partner address, and addresses that belong to one router are joined. Where routers answer by a loopback, each
address is a router, and parallel links cannot be told apart.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from typing import TypeAlias

from netmodel.flow import Address
from netmodel.paths import Path, equal_cost_paths
from netmodel.probing.observations import ProbeFile
from netmodel.probing.paths import Hops, Pair, PairPaths, paths_of
from netmodel.probing.simulated import Naming
from netmodel.topology import (
    Host,
    Link,
    Nic,
    PortRef,
    Role,
    Switch,
    Topology,
    TopologyError,
    derived_hash_seed,
    derived_mac,
)

_ROLES: dict[int, tuple[Role, ...]] = {1: ("leaf",), 2: ("leaf", "spine"), 3: ("leaf", "agg", "core")}
_MOST_ROUTERS = 5
"""On a path: up to a core and down again."""
_NAMED = 4
"""Routers that a sentence names, at most."""

_Chain: TypeAlias = tuple[Address, tuple[Address | None, ...], Address]
"""Source, the addresses that answered by TTL, destination: all routers of the way."""


class InferenceError(ValueError):
    """Observations from which no topology follows, in one sentence."""


@dataclass(frozen=True, slots=True)
class FoundTopology:
    """A topology as inferred. Names of switches and numbers of ports are made up; hosts have the names of the files."""

    topology: Topology
    naming: Naming
    """Whether answers named a port or only a router."""
    routers: Mapping[Address, str]
    """The switch that has each address seen, and each address that follows from one."""
    ports: Mapping[Address, PortRef]
    """The port of each such address; empty where answers named routers only."""
    notes: tuple[str, ...]
    """What the topology lacks and why, a sentence each."""

    def ways(self, found: PairPaths) -> tuple[tuple[Path, ...], dict[Path, tuple[int, ...]]]:
        """The equal-cost paths of a pair, and the ports that were found on each path that ports take.

        A found path that fits several of them, because too few TTLs were probed, counts for none. Raises KeyError for
        hosts that the topology lacks.
        """
        ends = [self.topology.port_of(ip_address(address)) for address in (found.pair.source, found.pair.destination)]
        source, destination = ends
        paths = equal_cost_paths(
            self.topology, source.node, destination.node, src_nic=source.port - 1, dst_nic=destination.port - 1
        )
        taken: dict[Path, tuple[int, ...]] = {}
        for seen in found.paths:
            fitting = [path for path in paths if self._fits(path, seen.hops)]
            if len(fitting) == 1:
                taken[fitting[0]] = tuple(sorted((*taken.get(fitting[0], ()), *seen.ports)))
        return paths, taken

    def _fits(self, path: Path, hops: Hops) -> bool:
        for ttl, (egress, seen) in enumerate(zip(path, hops, strict=False)):
            entered = self.topology.peer(egress)
            if seen is None:
                continue
            address = ip_address(seen)
            if self.routers.get(address) != entered.node:
                return False
            if ttl and self.ports and self.ports.get(address) != entered:
                return False
        return len(hops) < len(path)


@dataclass(frozen=True, slots=True)
class Polarised:
    """A pair whose ports do not take every path, although the other ones exist."""

    pair: Pair
    reached: int
    ways: int
    narrow: tuple[Address, ...]
    """An address of each router at which they part less than they could, in the order of the way."""

    @property
    def statement(self) -> str:
        """What was seen and how to mend it, in one sentence."""
        routers = ", ".join(map(str, self.narrow[:_NAMED])) + (", .." if len(self.narrow) > _NAMED else "")
        return (
            f"the switches' hash is polarised: ports from {self.pair} reach {self.reached} of {self.ways} paths, since "
            f"some routers choose as those before them did ({routers}); plans use these paths only, and another hash "
            "function on that tier, or an offset of its hash bits, mends it"
        )


def polarised(found: FoundTopology, pairs: Iterable[PairPaths]) -> tuple[Polarised, ...]:
    """The pairs whose ports miss paths of the topology, which the probes of all pairs have shown together.

    A pair counts only if so many of its ports are known that with equal shares a path would be missed with a
    probability below 1 %.
    """
    missing = []
    for each in pairs:
        if not each.pinnable:
            continue
        paths, taken = found.ways(each)
        ports = sum(map(len, taken.values()))
        if 0 < len(taken) < len(paths) and len(paths) * (1 - 1 / len(paths)) ** ports < 0.01:
            missing.append(Polarised(each.pair, len(taken), len(paths), _narrow(found, paths, taken)))
    return tuple(missing)


def _narrow(found: FoundTopology, paths: Iterable[Path], taken: Iterable[Path]) -> tuple[Address, ...]:
    """The least address of each switch that flows leave by fewer ports than they could, of those that they pass."""
    address: dict[str, Address] = {}
    for each, switch in sorted(found.routers.items(), key=lambda item: int(item[0]), reverse=True):
        address[switch] = each
    used, all_of = (_by_switch(some) for some in (taken, paths))
    return tuple(address[switch] for switch, ports in used.items() if len(ports) < len(all_of[switch]))


def _by_switch(paths: Iterable[Path]) -> dict[str, set[PortRef]]:
    """The ports by which paths leave each switch, in the order of the way."""
    leaving: defaultdict[str, set[PortRef]] = defaultdict(set)
    for hop in zip(*paths, strict=True):
        for port in hop:
            leaving[port.node].add(port)
    return leaving


def infer(files: Sequence[ProbeFile], *, rate_bps: int, mtu_bytes: int = 9000, name: str = "found") -> FoundTopology:
    """The topology that the observations of `files` show, one file per host.

    Probes tell no rates: every link gets `rate_bps`. Only paths on which a probe reached the destination are used, and
    links that no such path shows are missing. A router is counted twice if no path joins what was seen of it: let
    every host probe several others, in both directions. Raises InferenceError.
    """
    names = _host_names(files)
    pairs = [each for file in files for each in paths_of(file.observations)]
    chains = [chain for each in pairs for chain in _chains(each)]
    notes = []
    if unreached := sum(each.routers is None for each in pairs):
        notes.append(f"{unreached} of {len(pairs)} pairs were left out, because no probe reached their destination")
    if not chains:
        raise InferenceError("no path is known up to its destination: probe all TTLs up to that at which probes arrive")
    naming = _naming(chains)
    if naming == "router":
        notes.append("routers seem to answer by one address each, so parallel links count as one")
    joined = _Joined()
    links = _links(chains, naming, joined)
    leaf_of = _leaves(chains, joined, naming)
    tier = _tiers(chains, joined)
    for one, other in links:
        if tier[joined.root(one)] == tier[joined.root(other)]:
            raise InferenceError(
                f"a link joins two switches of one tier, those with the addresses {one} and {other}: this is no fabric "
                "of tiers"
            )
    if naming == "interface" and _is_one_router(tier, links, joined):
        notes.append(
            "only one topmost router was seen, with several links to one below: if there are more, routers name the "
            "port by which an answer leaves, and this topology is wrong; on Linux set "
            "net.ipv4.icmp_errors_use_inbound_ifaddr=1, and probe again"
        )
    return _built(names, leaf_of, tier, links, joined, naming, rate_bps, mtu_bytes, name, tuple(notes))


def _host_names(files: Sequence[ProbeFile]) -> dict[Address, str]:
    """The name of each address's host: that of the file that probes from it, or one made from the address."""
    names: dict[Address, str] = {}
    for file in files:
        for source in map(ip_address, {observation.source for observation in file.observations}):
            if names.setdefault(source, file.host) != file.host:
                raise InferenceError(f"{source} is an address of two hosts, {names[source]} and {file.host}")
    for destination in map(
        ip_address, {observation.destination for file in files for observation in file.observations}
    ):
        names.setdefault(destination, f"host-{destination}")
    if len({address.version for address in names}) > 1:
        raise InferenceError("some hosts have IPv4 addresses and others IPv6 addresses: infer one family at a time")
    return {address: _as_name(host) for address, host in names.items()}


def _as_name(text: str) -> str:
    """A name that a topology accepts."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:60]
    return name if name[:1].isalpha() else f"h-{name}"


def _chains(found: PairPaths) -> list[_Chain]:
    routers = found.routers
    if routers is None or not routers or not found.pinnable:
        return []
    if routers % 2 == 0 or routers > _MOST_ROUTERS:
        raise InferenceError(
            f"the way from {found.pair} has {routers} routers, and a fabric of up to three tiers has 1, 3 or 5"
        )
    ends = ip_address(found.pair.source), ip_address(found.pair.destination)
    chains = []
    for path in found.paths:
        hops = [None if hop is None else ip_address(hop) for hop in path.hops[:routers]]
        hops += [None] * (routers - len(hops))
        chains.append((ends[0], tuple(hops), ends[1]))
    return chains


def _naming(chains: Iterable[_Chain]) -> Naming:
    """Whether answers name ports or, where a router answers alike whichever way it is entered, routers."""
    first: defaultdict[Address, set[Address]] = defaultdict(set)  # by host: what answers first on paths from it
    last: defaultdict[Address, set[Address]] = defaultdict(set)  # and last on paths to it
    before_last: defaultdict[Address, set[Address | None]] = defaultdict(set)
    for source, hops, destination in chains:
        if len(hops) == 1:
            continue
        if hops[0] is not None:
            first[source].add(hops[0])
        if hops[-1] is not None:
            last[destination].add(hops[-1])
            before_last[destination].add(hops[-2])
    both_ways = first.keys() & last.keys()
    if both_ways:  # its leaf is entered from the host on the one way, and from above on the other one
        return "router" if any(first[host] & last[host] for host in both_ways) else "interface"
    # Several routers lead to the leaf, by a port each.
    return "interface" if any(len(each) > 1 for each in last.values()) else "router"


class _Joined:
    """Addresses that belong to one router (union-find). The least address stands for the router."""

    def __init__(self) -> None:
        self._above: dict[Address, Address] = {}

    def root(self, address: Address) -> Address:
        above = self._above.setdefault(address, address)
        while above != self._above[above]:
            self._above[address] = above = self._above[above]
        return above

    def join(self, one: Address, other: Address) -> None:
        low, high = sorted((self.root(one), self.root(other)), key=int)
        self._above[high] = low

    def addresses(self) -> list[Address]:
        return sorted(self._above, key=int)


def _links(chains: Iterable[_Chain], naming: Naming, joined: _Joined) -> list[tuple[Address, Address]]:
    """The links between routers as pairs of addresses, lower one first; those of one router are joined."""
    steps = [
        (near, far) for _, hops, _ in chains for near, far in pairwise(hops) if near is not None and far is not None
    ]
    for _, hops, _ in chains:
        for hop in hops:
            if hop is not None:
                joined.root(hop)
    if naming == "router":
        return sorted({(min(step, key=int), max(step, key=int)) for step in steps}, key=_in_order)
    mask = _subnet_mask({far for _, far in steps})
    links = set()
    for near, far in steps:
        partner = type(far)(int(far) ^ mask)
        joined.join(near, partner)
        links.add((min(far, partner, key=int), max(far, partner, key=int)))
    return sorted(links, key=_in_order)


def _in_order(link: tuple[Address, Address]) -> tuple[int, int]:
    return int(link[0]), int(link[1])


def _subnet_mask(addresses: set[Address]) -> int:
    """The bits in which the two ends of a link differ: 1 in a /31 or /127; 3 in a /30, whose hosts are 1 and 2."""
    both_ends = Counter(
        mask for address in addresses for mask in (1, 3) if type(address)(int(address) ^ mask) in addresses
    )
    is_host = all(int(address) & 3 in (1, 2) for address in addresses)
    return 3 if is_host and both_ends[3] > both_ends[1] else 1


def _leaves(chains: Iterable[_Chain], joined: _Joined, naming: Naming) -> dict[Address, Address]:
    """An address of the leaf of each host. What answers first or last on the paths of a host is its leaf."""
    leaf_of: dict[Address, Address] = {}
    for source, hops, destination in chains:
        for host, leaf in ((source, hops[0]), (destination, hops[-1])):
            if leaf is None:
                continue
            if host not in leaf_of:
                leaf_of[host] = leaf
            elif naming == "interface":
                joined.join(leaf_of[host], leaf)
            elif leaf_of[host] != leaf:
                raise InferenceError(
                    f"host {host} is behind two leaves, {leaf_of[host]} and {leaf}; in a topology a NIC has one link"
                )
    return leaf_of


def _tiers(chains: Iterable[_Chain], joined: _Joined) -> dict[Address, int]:
    """The tier of each router, from 1, by the address that stands for it."""
    tier: dict[Address, int] = {}
    for _, hops, _ in chains:
        for ttl, hop in enumerate(hops, start=1):
            if hop is not None:
                height = min(ttl, len(hops) + 1 - ttl)
                if tier.setdefault(joined.root(hop), height) != height:
                    raise InferenceError(
                        f"the router that answers from {hop} is in tier {height} of one path and in tier "
                        f"{tier[joined.root(hop)]} of another: this is no fabric of tiers"
                    )
    return tier


def _is_one_router(tier: dict[Address, int], links: list[tuple[Address, Address]], joined: _Joined) -> bool:
    """Whether the topmost tier is one router with parallel links, as routers seem that are taken for each other."""
    top = max(tier.values())
    below = [joined.root(end) for link in links for end in link if tier[joined.root(end)] == top - 1]
    return top > 1 and list(tier.values()).count(top) == 1 and len(set(below)) < len(below)


def _built(
    names: dict[Address, str],
    leaf_of: dict[Address, Address],
    tier: dict[Address, int],
    links: list[tuple[Address, Address]],
    joined: _Joined,
    naming: Naming,
    rate_bps: int,
    mtu_bytes: int,
    name: str,
    notes: tuple[str, ...],
) -> FoundTopology:
    addresses: defaultdict[str, list[Address]] = defaultdict(list)
    for address in sorted(leaf_of, key=int):
        addresses[names[address]].append(address)
    if lost := sorted({names[address] for address in names if address not in leaf_of}):
        notes = (*notes, f"{len(lost)} hosts are left out, because their leaf did not answer: {', '.join(lost[:5])}")
    switch_of = _switch_names(leaf_of, tier, links, joined)
    hosts = [
        Host(host, tuple(Nic(f"nic{n}", address, derived_mac(address)) for n, address in enumerate(own)))
        for host, own in addresses.items()
    ]
    used: Counter[str] = Counter()
    ports: dict[Address, PortRef] = {}
    cables = []

    def port(switch: str) -> PortRef:
        used[switch] += 1
        return PortRef(switch, used[switch])

    for host in hosts:
        for number, nic in enumerate(host.nics, start=1):
            leaf = switch_of[joined.root(leaf_of[nic.address])]
            cables.append(Link(PortRef(host.name, number), port(leaf), rate_bps))
    for link in links:
        low, high = sorted(link, key=lambda end: tier[joined.root(end)])
        ends = [port(switch_of[joined.root(end)]) for end in (low, high)]
        if naming == "interface":
            ports |= {low: ends[0], high: ends[1]}
        cables.append(Link(ends[0], ends[1], rate_bps))
    roles = {switch: _ROLES[max(tier.values())][tier[root] - 1] for root, switch in switch_of.items()}
    switches = [
        Switch(switch, role, dpid, derived_hash_seed(dpid))
        for dpid, (switch, role) in enumerate(roles.items(), start=1)
    ]
    try:
        topology = Topology(name, tuple(hosts), tuple(switches), tuple(cables), mtu_bytes)
    except TopologyError as error:
        raise InferenceError(f"what was seen is no topology: {error}") from None
    routers = {
        address: switch_of[joined.root(address)] for address in joined.addresses() if joined.root(address) in switch_of
    }
    return FoundTopology(topology, naming, routers, ports, notes)


def _switch_names(
    leaf_of: dict[Address, Address], tier: dict[Address, int], links: list[tuple[Address, Address]], joined: _Joined
) -> dict[Address, str]:
    """A name for each router, tier by tier; neighbours of the first switches below come first."""
    rank: dict[Address, tuple[int, int]] = {}
    for host in sorted(leaf_of, key=int, reverse=True):
        rank[joined.root(leaf_of[host])] = int(host), 0
    below: defaultdict[Address, list[Address]] = defaultdict(list)
    for link in links:
        low, high = sorted(map(joined.root, link), key=lambda root: tier[root])
        below[high].append(low)
    found: dict[Address, str] = {}
    number: dict[Address, int] = {}
    for height in range(1, max(tier.values()) + 1):
        own = [root for root, at in tier.items() if at == height]
        if height > 1:
            rank |= {root: (min((number[low] for low in below[root]), default=0), int(root)) for root in own}
        role = _ROLES[max(tier.values())][height - 1]
        for place, root in enumerate(sorted(own, key=lambda root: rank.get(root, (0, int(root)))), start=1):
            number[root] = place
            found[root] = f"{role}{place}"
    return found
