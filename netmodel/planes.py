# SPDX-License-Identifier: Apache-2.0
"""Fabrics of several planes: equal networks without a link between them, one NIC of each host in each."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

from netmodel.fabric_addresses import LEAVES_MAX
from netmodel.flow import Address
from netmodel.topology import (
    Host,
    Nic,
    PortRef,
    Switch,
    Topology,
    TopologyError,
    check_links,
    derived_hash_seed,
    derived_mac,
)

_PLANES_MAX = 64


def in_planes(topology: Topology, planes: int, *, name: str | None = None) -> Topology:
    """The hosts of `topology`, which have one NIC each, with a NIC in each of `planes` copies of its network.

    `topology` is by `leaf_spine`, `clos` or `fat_tree`. NIC nic<p - 1> of every host is in plane p, whose switch
    leaf3 is p<p>leaf3. Leaves have numbers through all planes, so that addresses of plane 2 follow those of plane 1,
    and so do datapath identifiers, from which hash seeds are derived. One plane is `topology` itself.

    Raises TopologyError (a ValueError) for a number of planes outside 1..64, and where there are more leaves than
    addresses or more than a million links.
    """
    if not 1 <= planes <= _PLANES_MAX:
        raise TopologyError(f"planes is {planes}, but must lie in 1..{_PLANES_MAX}", ("planes",))
    if planes == 1:
        return topology
    leaves = sum(switch.role == "leaf" for switch in topology.switches)
    if planes * leaves > LEAVES_MAX:
        raise TopologyError(
            f"{planes} planes have {planes * leaves} leaves, and there are addresses for {LEAVES_MAX}",
            ("planes",),
        )
    check_links(planes * len(topology.links))
    hosts = {host.name for host in topology.hosts}

    def end(port: PortRef, plane: int) -> PortRef:
        if port.node in hosts:
            return PortRef(port.node, plane + 1)
        return PortRef(f"p{plane + 1}{port.node}", port.port)

    def switch(original: Switch, plane: int) -> Switch:
        dpid = original.dpid + plane * len(topology.switches)
        return Switch(f"p{plane + 1}{original.name}", original.role, dpid, derived_hash_seed(dpid))

    def nic(address: Address, plane: int) -> Nic:
        number = int(address) + 256 * leaves * plane
        there = IPv6Address(number) if address.version == 6 else IPv4Address(number)
        return Nic(f"nic{plane}", there, derived_mac(there))

    return replace(
        topology,
        name=f"{topology.name}-{planes}-planes" if name is None else name,
        hosts=tuple(
            Host(host.name, tuple(nic(host.nics[0].address, plane) for plane in range(planes)))
            for host in topology.hosts
        ),
        switches=tuple(switch(original, plane) for plane in range(planes) for original in topology.switches),
        links=tuple(
            replace(link, a=end(link.a, plane), b=end(link.b, plane))
            for plane in range(planes)
            for link in topology.links
        ),
    )
