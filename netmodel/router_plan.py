# SPDX-License-Identifier: Apache-2.0
"""What each switch of a topology does as a router: its BGP sessions, its hosts, the addresses that it has. Pure.

The design is that of large data centres (RFC 7938): eBGP on every link, with the AS numbers and addresses of
`netmodel.router_addresses`. Hosts are routes of one address behind their leaf.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address

from netmodel.flow import Address
from netmodel.routers import RouterAddresses, router_addresses
from netmodel.topology import Link, PortRef, Topology

_FIRST_ROUTER_ID = IPv4Address("192.168.0.0")


@dataclass(frozen=True, slots=True)
class Session:
    """One end of a BGP session over a link between two routers.

    `address` is that of the other end, None where links have no addresses.
    """

    port: PortRef
    peer: PortRef
    peer_as: int
    address: Address | None


@dataclass(frozen=True)
class RouterPlan:
    """The switches of a topology as routers.

    unnumbered: links have no addresses; sessions use link-local IPv6 addresses (RFC 8950). Raises ValueError for
    optical switches, which do not route, and for neighbours of one AS, between which BGP would not be eBGP, and
    TopologyError, a ValueError, as `router_addresses` does.
    """

    topology: Topology
    unnumbered: bool = False

    def __post_init__(self) -> None:
        for switch in self.topology.switches:
            if switch.role == "ocs":
                raise ValueError(f"switch {switch.name!r} is an optical circuit switch, which is no router")
        for link in self.links:
            if self.as_numbers[link.a.node] == self.as_numbers[link.b.node]:
                raise ValueError(
                    f"link {link.a} to {link.b} joins two routers of one tier, which have the same AS; leave it out"
                )

    @property
    def version(self) -> int:
        """4 or 6: the IP version of all addresses."""
        return 6 if self.topology.ipv6 else 4

    @property
    def as_numbers(self) -> Mapping[str, int]:
        """The AS number of each router."""
        return self._addresses.asn

    @property
    def loopbacks(self) -> Mapping[str, Address]:
        """The address of each router itself. It is the gateway of the router's hosts."""
        return self._addresses.loopback

    @property
    def link_addresses(self) -> Mapping[PortRef, Address]:
        """The address of each port of a link between routers; none where links are unnumbered."""
        return {} if self.unnumbered else self._addresses.port

    @cached_property
    def router_ids(self) -> Mapping[str, IPv4Address]:
        """The BGP identifier of each router: 32 bits also where all addresses are IPv6."""
        return {name: _FIRST_ROUTER_ID + (int(address) & 0xFFFF) for name, address in self.loopbacks.items()}

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links between routers, in the order of the topology."""
        return tuple(link for link in self.topology.links if link.a in self._addresses.port)

    @cached_property
    def hosts(self) -> Mapping[str, Mapping[int, Address]]:
        """By router: the address of the host NIC at each of its ports to hosts."""
        found: dict[str, dict[int, Address]] = {switch.name: {} for switch in self.topology.switches}
        for link in self.topology.links:
            for near, far in ((link.a, link.b), (link.b, link.a)):
                if self.topology.has_host(far.node):
                    found[near.node][near.port] = self.topology.host(far.node).nics[far.port - 1].address
        return found

    @cached_property
    def sessions(self) -> Mapping[str, tuple[Session, ...]]:
        """By router: its sessions, by ascending ports."""
        found: dict[str, list[Session]] = {switch.name: [] for switch in self.topology.switches}
        for link in self.links:
            for near, far in ((link.a, link.b), (link.b, link.a)):
                session = Session(near, far, self.as_numbers[far.node], self.link_addresses.get(far))
                found[near.node].append(session)
        return {name: tuple(sorted(own, key=lambda session: session.port)) for name, own in found.items()}

    @property
    def _addresses(self) -> RouterAddresses:
        return router_addresses(self.topology)
