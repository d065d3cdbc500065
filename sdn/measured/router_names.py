# SPDX-License-Identifier: Apache-2.0
"""The addresses by which routers answer, as operators write them: an address, and the port or router that has it."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import TypeAlias

from netmodel import PortRef, Topology, router_addresses
from netmodel.flow import Address
from sdn.measured.fabric import MeasuredFabric

RouterNames: TypeAlias = Mapping[str, str]
"""By IP address: a port of a switch ("leaf1:5"), or a switch ("leaf1") that answers by an address of its own."""


def names_of(topology: Topology, *, unnumbered: bool = False) -> dict[str, str]:
    """The names where routers have the addresses of `netmodel.router_addresses`. Raises TopologyError as it does.

    Routers whose links are `unnumbered` answer by their loopbacks.
    """
    if unnumbered:
        return {str(address): name for name, address in router_addresses(topology).loopback.items()}
    return {str(address): str(port) for port, address in router_addresses(topology).port.items()}


def fabric_with(topology: Topology, names: RouterNames) -> MeasuredFabric:
    """The fabric whose routers have these names.

    Names of ports tell more than those of switches, so the latter count only where there are no others. Raises
    ValueError, with a sentence, for what is no address, switch or port of the topology, and where no path can be
    measured.
    """
    if not names:
        raise ValueError("no router has an address: pinning by measured paths needs those by which routers answer")
    switches = {switch.name for switch in topology.switches}
    routers: dict[Address, str] = {}
    ports: dict[Address, PortRef] = {}
    linked = set(topology.linked_ports())
    for text, name in names.items():
        try:
            address = ip_address(text)
        except ValueError:
            raise ValueError(f"{text!r} of router {name!r} is not an IP address") from None
        if name in switches:
            routers[address] = name
            continue
        port = PortRef.parse(name) if ":" in name else None
        if port is None or port not in linked or port.node not in switches:
            raise ValueError(
                f"{name!r}, which has the address {text}, is neither a switch nor a port with a link of one"
            )
        routers[address], ports[address] = port.node, port
    fabric = MeasuredFabric(topology, routers, ports)
    if (why := fabric.unmeasurable()) is not None:
        raise ValueError(why)
    return fabric
