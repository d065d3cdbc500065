# SPDX-License-Identifier: Apache-2.0
"""The addresses of routers: a loopback for each switch, and the two ends of each link between switches.

Where switches are routers (BGP, RFC 7938), hosts keep the addresses that the topology gives them. All else that a
routed fabric needs follows from the topology's order, so that every reader of a topology derives the same.
"""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from netmodel.fabric_tiers import CORE, LEAF, pods, tiers
from netmodel.flow import Address
from netmodel.topology import PortRef, Topology, TopologyError

_LOOPBACKS = {4: int(IPv4Address("192.168.0.0")), 6: int(IPv6Address("fd01::"))}
_LINKS = {4: int(IPv4Address("172.16.0.0")), 6: int(IPv6Address("fd02::"))}
_LOOPBACKS_MAX = 2**16 - 1
_LINKS_MAX = 2**19
_PRIVATE_ASN = 4_200_000_000  # the first private number of 32 bits (RFC 6996)


@dataclass(frozen=True, slots=True)
class RouterAddresses:
    """What `router_addresses` gives to switches. Addresses are of the family of the topology's hosts."""

    loopback: dict[str, Address]
    """By switch: the address of its loopback interface, a /32 or /128."""
    port: dict[PortRef, Address]
    """By port of a link between two switches: its address in the link's /31 (RFC 3021) or /127 (RFC 6164)."""
    asn: dict[str, int]
    """By switch: its autonomous system number for eBGP, a private one of 32 bits."""


@lru_cache(maxsize=8)
def router_addresses(topology: Topology) -> RouterAddresses:
    """The addresses and AS numbers of the packet switches of `topology`.

    Packet switch n of the topology, from 1, has the loopback 192.168.<n // 256>.<n % 256> (fd01::<n>). Link k between
    two of them, from 0, has 172.16.0.0 + 2 k at its end `a` and the next address at its end `b` (fd02::<2 k>). Each
    leaf has an AS number of its own. The aggs or spines of a pod share one, and so do all cores: a path that goes down
    and up again is then a loop of AS numbers, which BGP refuses (RFC 7938, section 5.2.1). The number of a switch, or
    of the first of those that share one, is 4200000000 + n.

    Raises TopologyError for more than 65,535 switches or 524,288 links between switches, and for a host with an address
    that a router gets.
    """
    family = 6 if topology.ipv6 else 4
    address: type[IPv4Address] | type[IPv6Address] = IPv6Address if topology.ipv6 else IPv4Address
    tier, pod = tiers(topology), pods(topology)
    links = [link for link in topology.links if link.a.node in tier and link.b.node in tier]
    for what, count, most in (("switches", len(tier), _LOOPBACKS_MAX), ("links between them", len(links), _LINKS_MAX)):
        if count > most:
            raise TopologyError(
                f"topology {topology.name!r} has {count:,} {what}, and there are addresses for {most:,}"
            )
    loopback: dict[str, Address] = {name: address(_LOOPBACKS[family] + n) for n, name in enumerate(tier, start=1)}
    ends = [end for link in links for end in (link.a, link.b)]
    port: dict[PortRef, Address] = {end: address(_LINKS[family] + n) for n, end in enumerate(ends)}
    owner = {nic.address: host.name for host in topology.hosts for nic in host.nics}
    for router, given in [*loopback.items(), *((end.node, address) for end, address in port.items())]:
        if given in owner:
            raise TopologyError(f"host {owner[given]!r} has the address {given}, which router {router!r} gets")
    first: dict[tuple[int, int], int] = {}
    asn = {}
    for n, (name, at) in enumerate(tier.items(), start=1):
        shared = n if at == LEAF else 0 if at == CORE else pod[name]
        asn[name] = _PRIVATE_ASN + first.setdefault((at, shared), n)
    return RouterAddresses(loopback, port, asn)
