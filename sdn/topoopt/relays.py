# SPDX-License-Identifier: Apache-2.0
"""Plans for forwarding by hosts: the circuits by which each address is reached (TopoOpt, appendix I). Pure.

An RDMA engine receives only packets to its NIC's own address. So a way from A to B begins with the circuit of A's
sending NIC and ends with the circuit into the NIC of the destination address. In between, packets are addressed to the
relays' second interfaces, which have a MAC but no address. Relays match source and destination, because the ways of
different sources may diverge.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from netmodel import Circuits, Nic, PortRef, Topology, far_end
from netmodel.flow import Address
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
    def hops(self) -> int:
        """The number of circuits."""
        return len(self.ports)

    @property
    def relays(self) -> tuple[str, ...]:
        """The relays, in order."""
        return tuple(port.node for port in self.ports[1:])


@dataclass(frozen=True, slots=True)
class Connection:
    """A logical RDMA connection between two addresses: the ways of its data and of their acknowledgements."""

    there: Way
    back: Way

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
    """`connections`: by source and destination host. `ways`: all ways in use, by the ports at their ends."""

    connections: Mapping[tuple[str, str], Connection]
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
    down: Collection[str] = (),
) -> RelayPlan:
    """Logical connections between all pairs of `hosts`, both ways, over the present circuits.

    `routes` has preferred host sequences by source and destination, such as an algorithm's; other pairs use the
    shortest route. `down` has hosts that do not relay. Of several circuits between two hosts, the first NIC's is used.

    Raises RelayDown when all ways of a pair lead through a host that is down, Unreachable when there is none.
    """
    net = _Net(topology, circuits, frozenset(hosts), frozenset(down))
    ways: dict[tuple[PortRef, PortRef], Way] = {}
    connections: dict[tuple[str, str], Connection] = {}
    alive = [host for host in hosts if host not in net.down]
    for a, b in permutations(alive, 2):
        connections[a, b] = net.connection(a, b, ways, (routes or {}).get((a, b), ()))
        for way in (connections[a, b].there, connections[a, b].back):
            ways[way.ports[0], way.arrival] = way
    return RelayPlan(connections, ways)


class _Net:
    """The graph of hosts and circuits."""

    def __init__(self, topology: Topology, circuits: Circuits, hosts: frozenset[str], down: frozenset[str]) -> None:
        import networkx as nx  # here and below, because every load of a spec would wait for it

        self.down = down
        self._far: dict[PortRef, PortRef] = {}
        self._near: dict[PortRef, PortRef] = {}
        for host in sorted(hosts):
            for number in range(1, len(topology.host(host).nics) + 1):
                port = PortRef(host, number)
                far = far_end(topology, circuits, port)
                if far is not None and far.node in hosts:
                    self._far[port] = far
                    self._near[far] = port
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
            held = known.get((there.ports[0], there.arrival))
            if held is not None:
                there = held
            back = known.get((there.arrival, there.ports[0])) or self._back(there)
            if back is not None:
                return Connection(there, back)
        raise self._why(a, b)

    def _way(self, route: Sequence[str]) -> Way:
        ports = [min(port for port, far in self._far.items() if (port.node, far.node) == hop) for hop in _hops(route)]
        return Way(tuple(ports), self._far[ports[-1]])

    def _back(self, way: Way) -> Way | None:
        """The shortest way from the port of arrival back to the first port, not through either of the two hosts."""
        start, goal = way.arrival, way.ports[0]
        ends = {start.node, goal.node}
        if start not in self._far or goal not in self._near:
            return None
        if self._far[start] == goal:
            return Way((start,), goal)
        first, last = self._far[start].node, self._near[goal].node
        if {first, last} & (ends | self.down):
            return None
        found: dict[str, tuple[PortRef, ...]] = {first: (start,)}
        queue = deque([first])
        while queue:
            at = queue.popleft()
            if at == last:
                return Way((*found[at], self._near[goal]), goal)
            for port, far in self._far.items():
                if port.node == at and far.node not in found and far.node not in ends | self.down:
                    found[far.node] = (*found[at], port)
                    queue.append(far.node)
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


def _hops(route: Sequence[str]) -> list[tuple[str, str]]:
    return list(pairwise(route))
