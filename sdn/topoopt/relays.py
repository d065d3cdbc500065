# SPDX-License-Identifier: Apache-2.0
"""Plans for forwarding by hosts: the circuits by which each address is reached (TopoOpt, appendix I). Pure.

An RDMA engine receives only packets to its NIC's own address. So a way from A to B begins with the circuit of A's
sending NIC and ends with the circuit into the NIC of the destination address. In between, packets are addressed to the
relays' second interfaces, which have a MAC but no address. Relays match source and destination, because the ways of
different sources may diverge.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from netmodel import Circuits, Nic, PortRef, Topology, far_end
from netmodel.flow import Address
from sdn.topoopt.least_load import lightest
from sdn.topoopt.routing import Unreachable

_TRIES = 16
"""The most routes of a pair that are tried, shortest first, until acknowledgements have a way back."""


class RelayDown(Unreachable):
    """A host that is needed as a relay is down; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Way:
    """The host ports by which a packet leaves, beginning with the sender's, and the port at which it arrives."""

    ports: tuple[PortRef, ...]
    arrival: PortRef

    @property
    def ends(self) -> tuple[PortRef, PortRef]:
        """The port of the sender, and that of the receiver."""
        return self.ports[0], self.arrival

    @property
    def hops(self) -> int:
        """The number of circuits that the way takes."""
        return len(self.ports)

    @property
    def relays(self) -> tuple[str, ...]:
        """The hosts that forward packets on the way, in order."""
        return tuple(port.node for port in self.ports[1:])


@dataclass(frozen=True, slots=True)
class Connection:
    """A logical RDMA connection between two addresses: the ways of its data and of their acknowledgements."""

    there: Way
    back: Way
    share: float = 1.0
    """The part of the data from one host to the other that this connection carries."""

    @property
    def local(self) -> PortRef:
        """The NIC that sends the data."""
        return self.there.ports[0]

    @property
    def remote(self) -> PortRef:
        """The NIC that receives the data."""
        return self.there.arrival


@dataclass(frozen=True, slots=True)
class RelayPlan:
    """`connections`: by source and destination host, one for each route; their shares add up to 1.

    `ways`: all ways in use, by the NICs whose addresses packets have. They begin and end there, unless a cable has died
    (`sdn.topoopt.healing`).
    """

    connections: Mapping[tuple[str, str], tuple[Connection, ...]]
    ways: Mapping[tuple[PortRef, PortRef], Way]


def relay_mac(nic: Nic) -> str:
    """The MAC of a NIC's second interface: the first MAC with another second byte; both are locally administered."""
    first, second, *rest = nic.mac.split(":")
    return ":".join([f"{int(first, 16) | 2:02x}", f"{int(second, 16) ^ 1:02x}", *rest])


def next_mac(topology: Topology, circuits: Circuits, port: PortRef, destination: Address) -> str:
    """The destination MAC of a packet to `destination` that leaves by `port`.

    It is the MAC of the NIC at the far end if it has the address, else that of the relay interface there. Raises
    Unreachable when the port has no circuit.
    """
    far = far_end(topology, circuits, port)
    if far is None or not topology.has_host(far.node):
        raise Unreachable(f"no circuit leads from {port} to another host")
    nic = topology.host(far.node).nics[far.port - 1]
    return nic.mac if nic.address == destination else relay_mac(nic)


def plan_relays(
    topology: Topology,
    circuits: Circuits,
    hosts: Sequence[str],
    *,
    routes: Mapping[tuple[str, str], Sequence[Sequence[str]]] | None = None,
    sent: Mapping[tuple[str, str], float] | None = None,
    same_nic: bool = False,
    down: Collection[str] = (),
) -> RelayPlan:
    """Logical connections between all pairs of `hosts`, both ways, over the present circuits.

    `routes` has preferred host sequences by source and destination, such as an algorithm's; other pairs use the
    shortest route. Of several circuits between two hosts, the first NIC's is used. `sent` has bytes of pairs that may
    have a connection for each pair of their NICs, with the shortest ways between these: their shares are such that the
    most loaded circuit carries least. With `same_nic` each NIC also has ways to the NICs of its number, which programs
    need that connect by TCP. `down` has hosts that do not relay.

    Raises RelayDown when all ways of a pair lead through a host that is down, Unreachable when there is none.
    """
    net = _Net(topology, circuits, frozenset(hosts), frozenset(down))
    alive = [host for host in hosts if host not in net.down]
    several = net.several({pair: size for pair, size in (sent or {}).items() if not net.down & set(pair)})
    ways = {
        way.ends: way for made in several.values() for connection in made for way in (connection.there, connection.back)
    }
    connections: dict[tuple[str, str], tuple[Connection, ...]] = {}
    for a, b in permutations(alive, 2):
        made = several.get((a, b)) or (net.connection(a, b, ways, (routes or {}).get((a, b), ())),)
        ways |= {way.ends: way for connection in made for way in (connection.there, connection.back)}
        connections[a, b] = made
    for a, b in permutations(alive, 2) if same_nic else ():
        ways = {way.ends: way for way in net.same_nic(a, b)} | ways
    return RelayPlan(connections, ways)


class _Net:
    """The graph of hosts and circuits."""

    def __init__(self, topology: Topology, circuits: Circuits, hosts: frozenset[str], down: frozenset[str]) -> None:
        import networkx as nx  # here and below, because every load of a spec would wait for it

        self.down = down
        self._far: dict[PortRef, PortRef] = {}
        self._near: dict[PortRef, PortRef] = {}
        self._lit: dict[str, list[PortRef]] = {host: [] for host in hosts}  # ports with a circuit
        for host in sorted(hosts):
            for number in range(1, len(topology.host(host).nics) + 1):
                port = PortRef(host, number)
                far = far_end(topology, circuits, port)
                if far is not None and far.node in hosts:
                    self._far[port] = far
                    self._near[far] = port
                    self._lit[host].append(port)
        self._whole: nx.DiGraph[str] = nx.DiGraph()
        self._whole.add_nodes_from(hosts)
        self._whole.add_edges_from((port.node, far.node) for port, far in self._far.items())
        self._graph = self._whole.subgraph(hosts - down)

    def connection(
        self,
        a: str,
        b: str,
        known: Mapping[tuple[PortRef, PortRef], Way],
        preferred: Sequence[Sequence[str]],
    ) -> Connection:
        import networkx as nx

        tried = 0
        candidates: list[Sequence[str]] = [route for route in preferred if not self.down & set(route)]
        shortest = nx.shortest_simple_paths(self._graph, a, b)
        while tried < _TRIES:
            try:
                route = candidates.pop(0) if candidates else next(shortest)
            except (nx.NetworkXNoPath, StopIteration):
                break
            tried += 1
            there = self._way(route)
            there = known.get(there.ends, there)
            back = known.get((there.arrival, there.ports[0])) or self._between(there.arrival, there.ports[0])
            if back is not None:
                return Connection(there, back)
        raise self._why(a, b)

    def several(self, sent: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], tuple[Connection, ...]]:
        """Connections of pairs over the NICs of both, as `plan_relays` says; the largest share first."""
        options = {
            (a, b): [connection for near in self._nics(a) for connection in self._over(near, b)] for a, b in sent
        }
        links = {pair: [connection.there.ports for connection in each] for pair, each in options.items() if each}
        shares = lightest(links, sent)
        found = {}
        for pair, parts in shares.items():
            used = [
                replace(connection, share=part)
                for connection, part in zip(options[pair], parts, strict=True)
                if part > 0
            ]
            found[pair] = tuple(sorted(used, key=lambda connection: -connection.share))
        return found

    def same_nic(self, a: str, b: str) -> list[Way]:
        """Ways between NICs of the same number, as far as circuits lead there."""
        found = [self._between(near, PortRef(b, near.port)) for near in self._nics(a)]
        return [way for way in found if way is not None]

    def _nics(self, host: str) -> list[PortRef]:
        return self._lit[host]

    def _over(self, near: PortRef, host: str) -> list[Connection]:
        """The shortest connections from one NIC to each NIC of a host, where there is one."""
        ends = [(self._between(near, far), self._between(far, near)) for far in self._nics(host)]
        return [Connection(there, back) for there, back in ends if there is not None and back is not None]

    def _way(self, route: Sequence[str]) -> Way:
        ports = [
            next(port for port in self._lit[host] if self._far[port].node == after) for host, after in pairwise(route)
        ]
        return Way(tuple(ports), self._far[ports[-1]])

    def _between(self, start: PortRef, goal: PortRef) -> Way | None:
        """The shortest way from one port to another, not through either of the two hosts."""
        avoided = {start.node, goal.node} | self.down
        if start not in self._far or goal not in self._near:
            return None
        if self._far[start] == goal:
            return Way((start,), goal)
        first, last = self._far[start].node, self._near[goal].node
        if {first, last} & avoided:
            return None
        found: dict[str, tuple[PortRef, ...]] = {first: (start,)}
        queue = deque([first])
        while queue:
            at = queue.popleft()
            if at == last:
                return Way((*found[at], self._near[goal]), goal)
            for port in self._lit[at]:
                host = self._far[port].node
                if host not in found and host not in avoided:
                    found[host] = (*found[at], port)
                    queue.append(host)
        return None

    def _why(self, a: str, b: str) -> Unreachable:
        import networkx as nx

        if self.down and nx.has_path(self._whole, a, b):
            route = nx.shortest_path(self._whole, a, b)
            missing = [host for host in route if host in self.down] or sorted(self.down)
            verb = "is" if len(missing) == 1 else "are"
            return RelayDown(
                f"{a} and {b} have no connection but through {', '.join(missing)}, which {verb} down; bring it up or "
                "set circuits that go round it"
            )
        return Unreachable(f"no circuits lead from {a} to {b} and back by the same interfaces")
