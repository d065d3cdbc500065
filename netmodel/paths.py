# SPDX-License-Identifier: Apache-2.0
"""Equal-cost paths, the path of a flow, and the source ports that take a given path.

A path is the tuple of egress ports from the source host to the last switch, that is, the links of a flow in order. All
predictions use the `Forwarding` with which switches are programmed. The keyword `routes` passes one with dead links;
the default has none. Hosts are given by name; `src_nic` and `dst_nic` are NIC indices for hosts
with several NICs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from netmodel.flow import ENTROPY_PORTS, IPPROTO_UDP, ROCE_PORT, Address, Flow, FlowFields, check_ports
from netmodel.hashes.base import EcmpHash
from netmodel.next_hops import Forwarding, forwarding
from netmodel.topology import PortRef, Topology

Path: TypeAlias = tuple[PortRef, ...]


class NoRouteError(ValueError):
    """There is no path between two addresses, or the routes do not lead to the destination. The text says where."""


def equal_cost_paths(
    topology: Topology,
    src_host: str,
    dst_host: str,
    *,
    src_nic: int = 0,
    dst_nic: int = 0,
    routes: Forwarding | None = None,
) -> tuple[Path, ...]:
    """All shortest paths from one host to another, in lexicographic order of their ports.

    Raises KeyError for an unknown host, NoRouteError when there is no path, and ValueError when source and destination
    are the same host or a NIC does not exist.
    """
    src, dst = _addresses(topology, src_host, dst_host, src_nic, dst_nic)
    walk = _Walk(topology, routes, src, dst)
    paths: list[Path] = []
    pending: list[Path] = [(walk.origin,)]
    while pending:
        path = pending.pop()
        stop = walk.next_stop(path)
        if stop is None:
            paths.append(path)
        else:
            pending.extend((*path, PortRef(stop.switch, port)) for port in reversed(stop.ports))
    return tuple(paths)


def path_of(topology: Topology, flow: Flow, ecmp_hash: EcmpHash, *, routes: Forwarding | None = None) -> Path:
    """The path of `flow` when every switch chooses by `ecmp_hash` with its own seed.

    Raises KeyError for an address that no host owns, NoRouteError when there is no path, and ValueError when source and
    destination are on the same host.
    """
    walk = _Walk(topology, routes, flow.src, flow.dst)
    fields = flow.fields()
    path: Path = (walk.origin,)
    while (stop := walk.next_stop(path)) is not None:
        member = int(ecmp_hash.select(fields, stop.seed, len(stop.ports))[0]) if len(stop.ports) > 1 else 0
        path = (*path, PortRef(stop.switch, stop.ports[member]))
    return path


def paths_of_ports(
    topology: Topology,
    src_host: str,
    dst_host: str,
    ecmp_hash: EcmpHash,
    ports: npt.ArrayLike | None = None,
    dst_port: int = ROCE_PORT,
    *,
    protocol: int = IPPROTO_UDP,
    src_nic: int = 0,
    dst_nic: int = 0,
    routes: Forwarding | None = None,
) -> tuple[tuple[Path, ...], npt.NDArray[np.intp]]:
    """The path of each source port of an IP protocol, as (paths, index): port k of `ports` takes `paths[index[k]]`.

    `paths` are all of `equal_cost_paths`, including those that no port takes. `ports` is a one-dimensional array of
    port numbers, by default 0xC000..0xFFFF ascending; `index` has the same shape. Raises as `equal_cost_paths` does,
    and ValueError unless `ports` is such an array with numbers in 0..65535.
    """
    src, dst = _addresses(topology, src_host, dst_host, src_nic, dst_nic)
    walk = _Walk(topology, routes, src, dst)
    every_flow = FlowFields.over_ports(src, dst, _port_array(ports), dst_port, protocol)
    index = np.zeros(len(every_flow.sport), dtype=np.intp)
    paths: list[Path] = []
    # Depth-first in the order of equal_cost_paths. At each switch the flows are divided among the branches.
    pending: list[tuple[Path, npt.NDArray[np.intp]]] = [((walk.origin,), np.arange(len(index)))]
    while pending:
        path, flows = pending.pop()
        stop = walk.next_stop(path)
        if stop is None:
            index[flows] = len(paths)
            paths.append(path)
            continue
        shares = [flows]
        if len(stop.ports) > 1:
            member = ecmp_hash.select(every_flow.take(flows), stop.seed, len(stop.ports)) if flows.size else flows
            shares = _dealt(flows, member, len(stop.ports))
        for port, share in zip(reversed(stop.ports), reversed(shares), strict=True):
            pending.append(((*path, PortRef(stop.switch, port)), share))
    return tuple(paths), index


def ports_for_path(
    topology: Topology,
    src_host: str,
    dst_host: str,
    path: Path,
    ecmp_hash: EcmpHash,
    dst_port: int = ROCE_PORT,
    *,
    protocol: int = IPPROTO_UDP,
    src_nic: int = 0,
    dst_nic: int = 0,
    routes: Forwarding | None = None,
) -> npt.NDArray[np.uint16]:
    """The source ports in 0xC000..0xFFFF, ascending, whose flows of `protocol` from one host to another take `path`.

    The array is empty when no port takes it. Raises as `equal_cost_paths` does, and ValueError when `path` is not one
    of the equal-cost paths.
    """
    src, dst = _addresses(topology, src_host, dst_host, src_nic, dst_nic)
    walk = _Walk(topology, routes, src, dst)
    fields = FlowFields.over_ports(src, dst, _port_array(None), dst_port, protocol)
    stops = [] if path[:1] != (walk.origin,) else list(walk.stops_along(path))
    if len(stops) != len(path) - 1 or walk.next_stop(path) is not None:
        raise ValueError(
            f"{' '.join(map(str, path)) or 'an empty path'} is not an equal-cost path from {src_host!r} to {dst_host!r}"
        )
    for stop, egress in zip(stops, path[1:], strict=True):
        if len(stop.ports) > 1 and fields.sport.size:
            member = ecmp_hash.select(fields, stop.seed, len(stop.ports))
            keep = np.flatnonzero(member == stop.ports.index(egress.port))
            fields = FlowFields.over_ports(src, dst, fields.sport[keep], dst_port, protocol)
    return fields.sport


@dataclass(frozen=True, slots=True)
class _Stop:
    """A switch on a path, with the ports that it may use towards the destination."""

    switch: str
    seed: int
    ports: tuple[int, ...]


class _Walk:
    """Follows the routes from one address to another. The caller chooses among equal ports."""

    def __init__(self, topology: Topology, routes: Forwarding | None, src: Address, dst: Address) -> None:
        self._topology = topology
        self._routes = forwarding(topology) if routes is None else routes
        self._dst = dst
        self._goal = topology.port_of(dst)
        self.origin = topology.port_of(src)
        if self.origin.node == self._goal.node:
            raise ValueError(f"{src} and {dst} are both on host {self.origin.node!r}: a flow between them has no path")

    def next_stop(self, path: Path) -> _Stop | None:
        """The switch at the end of the last link of `path`; None at the destination. Raises NoRouteError."""
        try:
            reached = self._topology.peer(path[-1])
        except KeyError as error:
            raise NoRouteError(f"no path to {self._dst}: {error.args[0]}") from None
        dead = self._routes.dead_links
        if dead and self._topology.link_at(path[-1]) in dead:  # such as the source's own link
            raise NoRouteError(f"no path from {self.origin.node!r} to {self._dst}: the link at {path[-1]} is dead")
        if reached == self._goal:
            return None
        if self._topology.has_host(reached.node):
            raise NoRouteError(f"the routes to {self._dst} end at host {reached.node!r}, which does not own it")
        if len(path) > len(self._topology.switches):
            raise NoRouteError(f"the routes to {self._dst} loop: {' '.join(map(str, path))}")
        table = self._routes.ingress.get(reached)
        if table is not None and self._dst not in table:
            raise NoRouteError(
                f"no path from {self.origin.node!r} to {self._dst}: {reached.node!r} drops it where it comes in, at "
                f"port {reached.port}"
            )
        try:
            ports = (self._routes.groups[reached.node] if table is None else table)[self._dst]
        except KeyError as error:
            raise NoRouteError(f"no path from {self.origin.node!r} to {self._dst}: {error.args[0]}") from None
        return _Stop(reached.node, self._topology.switch(reached.node).hash_seed, ports)

    def stops_along(self, path: Path) -> Iterator[_Stop]:
        """The switches on `path`, up to the first that deviates from the routes."""
        for length, egress in enumerate(path[1:], start=1):
            stop = self.next_stop(path[:length])
            if stop is None or stop.switch != egress.node or egress.port not in stop.ports:
                return
            yield stop


def _addresses(topology: Topology, src_host: str, dst_host: str, src_nic: int, dst_nic: int) -> tuple[Address, Address]:
    addresses = []
    for name, nic in ((src_host, src_nic), (dst_host, dst_nic)):
        host = topology.host(name)
        if not 0 <= nic < len(host.nics):
            raise ValueError(f"host {name!r} has no NIC {nic}: it has {len(host.nics)}")
        addresses.append(host.nics[nic].address)
    return addresses[0], addresses[1]


def _port_array(ports: npt.ArrayLike | None) -> npt.NDArray[np.uint16]:
    if ports is None:
        return np.arange(ENTROPY_PORTS.start, ENTROPY_PORTS.stop, dtype=np.uint16)
    array = np.asarray(ports)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError("source ports must be a one-dimensional array of integers")
    if array.size:
        check_ports((int(array.min()), int(array.max())))
    return array.astype(np.uint16)


def _dealt(flows: npt.NDArray[np.intp], member: npt.NDArray[np.intp], members: int) -> list[npt.NDArray[np.intp]]:
    """The flows of each group member: `member[k]` is the member that flow `flows[k]` takes, of `members` in all."""
    # 16 bits hold any member index, and numpy sorts 16-bit integers by radix sort.
    order = np.argsort(member.astype(np.uint16), kind="stable")
    return np.split(flows[order], np.cumsum(np.bincount(member, minlength=members))[:-1])
