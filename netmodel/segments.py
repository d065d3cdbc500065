# SPDX-License-Identifier: Apache-2.0
"""Segment routing over IPv6 (RFC 8754, RFC 8986): the segments of every router, and those that pin a path. Pure.

A segment is an address at which a router does something. Each router port has two: the router sends what comes to the
first out of that port, whatever its routes are (End.X), and takes the routing header off what comes to the second (End
with penultimate segment pop), so that the destination gets a packet without one.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address

from netmodel.next_hops import Forwarding, forwarding
from netmodel.paths import Path
from netmodel.routers import router_addresses
from netmodel.topology import PortRef, Topology, TopologyError

_PREFIX = int(IPv6Address("fd03::"))
_ROUTER_SHIFT, _POP_SHIFT = 64, 48


@dataclass(frozen=True, slots=True)
class SegmentAddresses:
    """The segments of the ports of all links between two routers. Routers know their own only: no route announces them.

    The packet is at the router already when its segment is the destination of the packet.
    """

    out: dict[PortRef, IPv6Address]
    """To leave by that port."""
    pop: dict[PortRef, IPv6Address]
    """To go on by the routes, without the routing header."""


def segment_addresses(topology: Topology) -> SegmentAddresses:
    """The segments of a topology over IPv6.

    Packet switch n of the topology, from 1, has fd03:0:0:<n>::<p> to leave by port p, and fd03:0:0:<n>:1::<p> to pop.
    Raises TopologyError for IPv4, and as `router_addresses` does.
    """
    if not topology.ipv6:
        raise TopologyError(f"topology {topology.name!r} has IPv4 addresses, and segment routing needs IPv6")
    addresses = router_addresses(topology)
    number = {name: n for n, name in enumerate(addresses.loopback, start=1)}
    out = {port: IPv6Address(_PREFIX | number[port.node] << _ROUTER_SHIFT | port.port) for port in addresses.port}
    return SegmentAddresses(out, {port: IPv6Address(int(one) | 1 << _POP_SHIFT) for port, one in out.items()})


def segments_of(topology: Topology, path: Path, routes: Forwarding | None = None) -> tuple[IPv6Address, ...]:
    """The segments with which packets take `path`, whatever routers hash. None where no router has a choice.

    They name the links up to the last one that is chosen; from there on the routes go one way. routes: by default
    `netmodel.forwarding`. Raises TopologyError as `segment_addresses` does.
    """
    own = segment_addresses(topology)
    last = topology.peer(path[-1])
    destination = topology.host(last.node).nics[last.port - 1].address
    groups = (routes or forwarding(topology)).groups
    links = list(path[1:-1])  # neither the first host's link nor the last router's to its host is chosen
    while links and len(groups[links[-1].node].get(destination, ())) < 2:
        links.pop()
    return (*(own.out[port] for port in links), *(own.pop[topology.peer(port)] for port in links[-1:]))
