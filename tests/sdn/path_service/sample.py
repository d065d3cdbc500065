# SPDX-License-Identifier: Apache-2.0
"""Small fabrics, hosts that record their assignments, and the invariants after every event."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from netmodel import (
    EcmpHash,
    Link,
    NoRouteError,
    OvsHash,
    PortRef,
    Topology,
    clos,
    equal_cost_paths,
    forwarding,
    leaf_spine,
    paths_of_ports,
    pods,
)
from sdn.path_service.messages import Announce, Assign, Error, Hello, Release
from sdn.path_service.pinning import Sends
from sdn.path_service.service import PathService

RATE = 10**9
TOKEN = "only for tests 0123456789"
SERVICE = "127.0.0.1"
"""The address that a path service's certificate is for."""
LANES = 3


def fabric(leaves: int = 3, spines: int = 3, hosts: int = 2, parallel: int = 1) -> Topology:
    return leaf_spine(leaves, spines, hosts, RATE, parallel_links=parallel)


def three_tiers(in_pods: int = 2, leaves: int = 2, aggs: int = 2, hosts: int = 2, parallel: int = 1) -> Topology:
    return clos(in_pods, leaves, aggs, 2, hosts, RATE, parallel_links=parallel)


def address(topology: Topology, host: int) -> str:
    return str(topology.hosts[host].nics[0].address)


def hello(topology: Topology, host: int, instance: int = 0, lanes: int = LANES, **said: Any) -> Hello:
    """`said` has other fields, such as `fixed`."""
    return Hello(1, TOKEN, address(topology, host), f"{instance:016x}", lanes, **said)


class Hosts:
    """All hosts of a path service: they send messages, and record assignments as a host does."""

    def __init__(self, service: PathService, ecmp_hash: EcmpHash | None = None) -> None:
        self.service = service
        self.topology = service.topology
        self.hash = ecmp_hash or OvsHash()
        self.now_s = 0.0
        self.connections = 0
        self.device: dict[int, str] = {}  # of each connection
        self.generation: dict[int, int] = {}
        self.ports: dict[tuple[int, str], list[int]] = {}  # last told, towards each peer
        self.open: dict[tuple[int, int], str] = {}  # peer of each open elephant
        self.answered: dict[tuple[int, int], Assign] = {}
        self.dead: set[Link] = set()
        self._followed: dict[tuple[object, ...], set[tuple[object, ...]]] = {}

    def connect(self, host: int, instance: int = 0, lanes: int = LANES, **said: Any) -> int:
        self.connections += 1
        conn = self.connections
        sends, replaced = self.service.connect(self.now_s, conn, hello(self.topology, host, instance, lanes, **said))
        if replaced is not None:
            self._forget(replaced)
        self.device[conn], self.generation[conn] = address(self.topology, host), 0
        self.hear(sends)
        return conn

    def disconnect(self, conn: int) -> None:
        self._forget(conn)
        self.hear(self.service.disconnect(self.now_s, conn))

    def announce(
        self,
        conn: int,
        number: int,
        peer: int | str,
        size: int = 1 << 20,
        job: str = "",
        after: Sequence[int] = (),
    ) -> Assign:
        """Releases `after` by the same messages."""
        to = peer if isinstance(peer, str) else address(self.topology, peer)
        for ended in after:
            self.open.pop((conn, ended), None)
        if self.service.knows(to) and to != self.device[conn]:
            self.open[conn, number] = to
        else:
            self.open.pop((conn, number), None)
        said = [*map(Release, after), Announce(number, to, size, job)]
        self.hear(self.service.handle(self.now_s, conn, said))
        return self.answered[conn, number]

    def release(self, conn: int, number: int) -> None:
        self.open.pop((conn, number), None)
        self.hear(self.service.handle(self.now_s, conn, [Release(number)]))

    def link(self, links: list[Link], up: bool) -> None:
        self.dead = self.dead - set(links) if up else self.dead | set(links)
        self.hear(self.service.link(self.now_s, links, up))
        while self.service.busy:
            self.tick()

    def tick(self) -> None:
        self.hear(self.service.tick(self.now_s))

    def hear(self, sends: Sends) -> None:
        for conn, message in sends:
            assert not isinstance(message, Error)
            if isinstance(message, Assign):
                assert message.generation > self.generation[conn], "generations grow"
                self.generation[conn] = message.generation
                self.ports[conn, message.peer] = message.ports
                if message.id is not None:
                    self.answered[conn, message.id] = message

    def path(self, conn: int, peer: str) -> set[tuple[object, ...]]:
        """The paths of this host's traffic to a peer with its assigned ports."""
        dead, ports = frozenset(self.dead), tuple(self.ports[conn, peer])
        key = (dead, self.device[conn], peer, ports)
        if key not in self._followed:  # else it was followed by an earlier check
            names = [self.topology.host_of(IPv4Address(at)).name for at in (self.device[conn], peer)]
            routes = forwarding(self.topology, dead)
            paths, index = paths_of_ports(self.topology, *names, self.hash, ports, routes=routes)
            self._followed[key] = {paths[place] for place in index}
        return self._followed[key]

    def check(self) -> None:
        """Every open elephant is on one live path, by as many ports as there are lanes; and so is the way back."""
        routes = forwarding(self.topology, frozenset(self.dead))
        open_ = {(self.device[conn], peer) for (conn, _), peer in self.open.items()}
        for (conn, _), peer in self.open.items():
            names = [self.topology.host_of(IPv4Address(at)).name for at in (self.device[conn], peer)]
            try:
                paths = equal_cost_paths(self.topology, names[0], names[1], routes=routes)
            except NoRouteError:
                paths = ()
            if not paths or len(paths[0]) > self._most_links(names):  # down and up again
                assert self.ports[conn, peer] == []
                continue
            ports = self.ports[conn, peer]
            assert len(set(ports)) == len(ports) == LANES
            assert ports == sorted(ports)
            (path,) = self.path(conn, peer)
            for other, device in self.device.items():
                if device == peer and (device, self.device[conn]) not in open_:
                    (back,) = self.path(other, self.device[conn])
                    switches = [{end.node for end in way[1:]} for way in (path, back)]  # type: ignore[attr-defined]
                    assert switches[0] == switches[1], "acknowledgements return over the links of their data"

    def _most_links(self, hosts: list[str]) -> int:
        """The links of a path that goes up once and then down."""
        leaves = [self.topology.peer(PortRef(host, 1)).node for host in hosts]
        pod = pods(self.topology)
        return 6 if pod[leaves[0]] != pod[leaves[1]] else 4

    def _forget(self, conn: int) -> None:
        del self.device[conn]
        for key in [key for key in self.open if key[0] == conn]:
            del self.open[key]
