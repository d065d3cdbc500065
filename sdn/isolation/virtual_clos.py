# SPDX-License-Identifier: Apache-2.0
"""Virtual leaves and spines on switches: the ports of each job, and the tables that isolate them. Pure.

A packet belongs to the job of the port by which it enters. It is forwarded only by ports of that job and only to its
hosts. Other packets are dropped and counted where they enter. Within a job, hosts are source-routed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Literal

import numpy as np

from netmodel import Forwarding, Link, PortRef, Topology, forwarding
from netmodel.flow import Address
from sdn.isolation import vclos
from sdn.isolation.cluster import Allocation, Cluster
from sdn.isolation.idle_gpus import Gpu, IdleGpus
from sdn.isolation.source_routing import host_ports, uplink_ports

_Table = Mapping[Address, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SubClos:
    """A job's part of a fabric: its hosts, and the leaf ports of its links to spines, or of its circuits to leaves."""

    job: str
    hosts: tuple[str, ...]
    uplinks: tuple[PortRef, ...] = ()


@dataclass(frozen=True, slots=True)
class VirtualClos:
    """A steering that isolates jobs. Hosts without a job cannot send."""

    jobs: tuple[SubClos, ...]
    kind: Literal["virtual_clos"] = "virtual_clos"

    def routes(self, topology: Topology, dead_links: frozenset[Link] = frozenset()) -> Forwarding:
        """Forwarding in which every port of a leaf or spine has a table of its own, empty by default.

        A host's place on its leaf determines its uplink, and with the destination's place the link from the spine to
        the destination's leaf (see `_Seats`). When a link dies, the job's other links carry its traffic. A job without
        another link stops; it never uses links of other jobs.

        Raises ValueError for a host or an uplink that the topology lacks or that two jobs have.
        """
        _check(topology, self.jobs)
        routes = forwarding(topology, dead_links)
        switches = {switch.name for switch in topology.switches if switch.role in ("leaf", "spine")}
        ingress: dict[PortRef, _Table] = {port: {} for port in topology.linked_ports() if port.node in switches}
        for job in self.jobs:
            ingress |= _tables(topology, job, routes)
        return Forwarding(routes.groups, routes.dead_links, ingress)


def sub_clos(topology: Topology, jobs: Mapping[str, Sequence[str]]) -> VirtualClos:
    """Virtual Clos for jobs with given hosts, placed in the order of `jobs`, on links that no two jobs share.

    Raises ValueError when there are too few spines, and when a host has two jobs; KeyError for an unknown host.
    """
    cluster, leaves, spines = cluster_of(topology)
    gpus = {host: gpu for gpu, host in hosts_by_gpu(topology).items()}
    for job, hosts in jobs.items():
        for host in hosts:
            if topology.has_host(host) and host not in gpus:
                raise ValueError(f"job {job!r}: host {host} is not plugged into a leaf; place the job otherwise")
    free = {pair: list(ports) for pair, ports in _links(topology, leaves, spines).items()}
    made = []
    for job, hosts in jobs.items():
        allocation = vclos.spines_for(cluster, job, [gpus[host] for host in hosts])
        cluster = cluster.take(allocation)
        made.append(_realised(allocation, tuple(hosts), free))
    return VirtualClos(tuple(made))


def placed(topology: Topology, jobs: Mapping[str, int]) -> VirtualClos:
    """Virtual Clos for jobs given by their numbers of hosts, one after the other; vClos chooses hosts and links.

    Raises ValueError for a job that is larger than the cluster, or that has to wait until others have ended.
    """
    cluster, leaves, spines = cluster_of(topology)
    hosts = hosts_by_gpu(topology)
    free = {pair: list(ports) for pair, ports in _links(topology, leaves, spines).items()}
    made: list[SubClos] = []
    for job, size in jobs.items():
        allocation = vclos.place(cluster, job, size)
        if allocation is None:
            raise must_wait(job, size, len(cluster.idle))
        cluster = cluster.take(allocation)
        made.append(_realised(allocation, tuple(hosts[gpu] for gpu in allocation.gpus[:size]), free))
    return VirtualClos(tuple(made))


def must_wait(job: str, size: int, idle: int) -> ValueError:
    """The error for a job that cannot be placed now."""
    return ValueError(
        f"job {job!r} of {size} hosts would have to wait: {idle} are idle, but there is no virtual Clos for it among "
        "them and the links that are free; make it smaller, or leave out a job before it"
    )


def hosts_by_gpu(topology: Topology) -> dict[Gpu, str]:
    """The host that each GPU of `cluster_of` stands for."""
    at = {topology.peer(PortRef(host.name, 1)): host.name for host in topology.hosts}
    return {
        Gpu(number, server, 0): at[PortRef(leaf, port)]
        for number, (leaf, ports) in enumerate(host_ports(topology).items())
        for server, port in enumerate(ports)
        if PortRef(leaf, port) in at
    }


def cluster_of(topology: Topology) -> tuple[Cluster, list[str], list[str]]:
    """The cluster of a leaf-spine, each host a server of one GPU, and the names of its leaves and spines.

    A leaf with fewer hosts than others has servers that are never idle. Raises ValueError for a topology without leaves
    and one that links leaves.
    """
    hosts = host_ports(topology)
    if not hosts:
        raise ValueError(f"topology {topology.name!r} has no virtual Clos: it has no leaf")
    leaves = list(hosts)
    spines = [switch.name for switch in topology.switches if switch.role == "spine"]
    servers = max(map(len, hosts.values()))
    there = (Gpu(n, server, 0) for n, leaf in enumerate(leaves) for server in range(len(hosts[leaf])))
    free = np.zeros((len(leaves), len(spines)), dtype=np.int32)
    for pair, ports in _links(topology, leaves, spines).items():
        free[pair] = len(ports)
    idle = IdleGpus.of(len(leaves), servers, 1, there)
    return Cluster(len(leaves), len(spines), servers, 1, idle, free), leaves, spines


def _links(topology: Topology, leaves: list[str], spines: list[str]) -> dict[tuple[int, int], list[PortRef]]:
    """The leaf ports of the links between each leaf and each spine."""
    links: defaultdict[tuple[int, int], list[PortRef]] = defaultdict(list)
    for leaf, ports in uplink_ports(topology).items():
        for port in ports:
            reference = PortRef(leaf, port)
            far = topology.peer(reference)
            if far.node not in spines:
                said = f"link {reference} to {far} does not join a leaf to a spine"
                raise ValueError(f"topology {topology.name!r} has no virtual Clos: {said}")
            links[leaves.index(leaf), spines.index(far.node)].append(reference)
    return dict(links)


def _realised(allocation: Allocation, hosts: tuple[str, ...], free: dict[tuple[int, int], list[PortRef]]) -> SubClos:
    """Chooses links for an allocation, and removes them from `free`."""
    taken = [free[pair].pop(0) for pair, count in allocation.links.items() for _ in range(count)]
    return SubClos(allocation.job, hosts, tuple(sorted(taken)))


def _tables(topology: Topology, job: SubClos, routes: Forwarding) -> dict[PortRef, _Table]:
    """The table of each port of a job."""
    homes: dict[Address, PortRef] = {}
    for name in job.hosts:
        address, home = topology.host(name).nics[0].address, topology.peer(PortRef(name, 1))
        if address in routes.groups[home.node]:
            homes[address] = home
    places = {
        home: place
        for leaf in {home.node for home in homes.values()}
        for place, home in enumerate(sorted(home for home in homes.values() if home.node == leaf))
    }
    seats = _Seats(topology, job)
    up: defaultdict[str, list[PortRef]] = defaultdict(list)  # by leaf
    down: defaultdict[tuple[str, str], list[PortRef]] = defaultdict(list)  # the spine's ports, by spine and leaf
    for port in job.uplinks:
        if topology.link_at(port) not in routes.dead_links:
            far = topology.peer(port)
            up[port.node].append(port)
            if topology.switch(far.node).role == "spine":
                down[far.node, port.node].append(far)
    tables: dict[PortRef, _Table] = {}
    for leaf in {home.node for home in homes.values()}:
        local: _Table = {address: (home.port,) for address, home in homes.items() if home.node == leaf}
        for entry, place in places.items():
            if entry.node != leaf:
                continue
            table = dict(local)
            for address, home in homes.items():
                ways = [
                    port
                    for port in up[leaf]
                    for beyond in (topology.peer(port).node,)
                    if beyond == home.node or (beyond, home.node) in down
                ]
                if home.node != leaf and ways:
                    own = seats.uplink(leaf, place)
                    table[address] = ((own if own in ways else ways[place % len(ways)]).port,)
            tables[entry] = table
        tables |= dict.fromkeys(up[leaf], local)
    for (spine, leaf), entries in down.items():
        for rank, entry in enumerate(entries):
            table = {}
            for address, home in homes.items():
                exits = down.get((spine, home.node))
                if home.node != leaf and exits:
                    own = seats.exit(entry, home.node, places[home])
                    table[address] = ((own if own in exits else exits[rank % len(exits)]).port,)
            tables[entry] = table
    return tables


class _Seats:
    """The links that a job's hosts use while all are alive: no two flows of a step of an all-to-all then share a link.

    A leaf's hosts and its uplinks, in the order of spines, form virtual leaves of s each, s being the greatest common
    divisor of the leaves' uplinks. Each has equally many links to a spine, which are that spine's virtual spines. The
    i-th host of a virtual leaf sends by its i-th uplink, to virtual spine i. A virtual spine has one link to each
    virtual leaf. In an all-to-all of equal shifts a virtual leaf receives from hosts with s different i. Where a job
    has one spine, s is 1: each host receives by a link of its own, whatever the pattern.
    """

    def __init__(self, topology: Topology, job: SubClos) -> None:
        order = {switch.name: number for number, switch in enumerate(topology.switches)}
        fars = {port: topology.peer(port) for port in job.uplinks}
        self._uplinks: defaultdict[str, list[PortRef]] = defaultdict(list)
        self._between: defaultdict[tuple[str, str], list[PortRef]] = defaultdict(list)  # by far switch and leaf
        for port in sorted(job.uplinks, key=lambda port: (order[fars[port].node], port)):
            self._uplinks[port.node].append(port)
            self._between[fars[port].node, port.node].append(fars[port])
        spines = {far.node for far in fars.values() if topology.switch(far.node).role == "spine"}
        self._size = 1 if len(spines) == 1 else gcd(*map(len, self._uplinks.values()))
        self._rank = {port: rank for ports in self._between.values() for rank, port in enumerate(ports)}
        self._near = {far: near.node for near, far in fars.items()}
        self._order = {
            leaf: [topology.peer(far) for far in self._by_virtual_leaf(leaf)] for leaf in list(self._uplinks)
        }

    def _by_virtual_leaf(self, leaf: str) -> list[PortRef]:
        """The far ports of the leaf's uplinks, virtual leaf after virtual leaf, in each in the order of spines."""
        found = []
        for virtual in range(len(self._uplinks[leaf]) // self._size):
            for (far, near), ports in self._between.items():
                if near == leaf:
                    share = self._share(far, leaf)
                    found += ports[virtual * share : (virtual + 1) * share]
        return found

    def _share(self, far: str, leaf: str) -> int:
        """The links of one of the leaf's virtual leaves to a switch."""
        return len(self._between[far, leaf]) * self._size // len(self._uplinks[leaf])

    def uplink(self, leaf: str, place: int) -> PortRef | None:
        """The uplink of the host at this place of a leaf."""
        order = self._order.get(leaf)
        return order[place % len(order)] if order else None

    def exit(self, entry: PortRef, leaf: str, place: int) -> PortRef | None:
        """The spine's port by which packets leave that came by `entry`, for the host at this place of a leaf."""
        ports, share = self._between[entry.node, leaf], self._share(entry.node, leaf)
        if not ports or not share:
            return None
        source = max(1, self._share(entry.node, self._near[entry]))
        return ports[(place // self._size * share + self._rank[entry] % source) % len(ports)]


def _check(topology: Topology, jobs: Sequence[SubClos]) -> None:
    known = {PortRef(leaf, port) for leaf, ports in uplink_ports(topology).items() for port in ports}
    for job in jobs:
        for host in job.hosts:
            if not topology.has_host(host):
                raise ValueError(f"virtual Clos of {job.job!r}: topology {topology.name!r} has no host {host!r}")
        for port in job.uplinks:
            if port not in known:
                raise ValueError(f"virtual Clos of {job.job!r}: {port} is not a leaf's port to a spine or leaf")
    counts = Counter(str(what) for job in jobs for what in (*job.hosts, *job.uplinks))
    for what, count in counts.items():
        if count > 1:
            raise ValueError(f"virtual Clos: {what} is given {count} times; a host or a link belongs to one job")
