# SPDX-License-Identifier: Apache-2.0
"""The kernel interfaces of a topology: their names and their configuration. Pure.

Port P of a switch is the interface SWITCH-ethP in the sandbox's main network namespace. A host's NIC keeps its name
("nic0") in the host's namespace. Hosts without a namespace of their own have HOST-nic0 in the main namespace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from emul.shaping import HOST_QUEUE_PACKETS, QUEUE_PACKETS, shape_lines
from netmodel import Host, Link, PortRef, Topology
from netmodel.flow import Address
from netmodel.linux_routers import FIRST_NIC_TABLE

INTERFACE_NAME_MAX = 15
"""Largest length of a Linux interface name in bytes, without the terminating zero (IFNAMSIZ - 1)."""

INTERFACE_GROUP = "4791"
"""Group number of all switch interfaces of a fabric. One command deletes a whole group."""

# Prefix of an address whose network needs routes of its own. IPv6 would look for duplicates first, for a second.
_ALONE = {4: "/32", 6: "/128 nodad"}
_IPV6_MTU_BYTES_MIN = 1280
"""RFC 8200, section 5. The kernel turns IPv6 off below it."""

_FIRST_METRIC = 100


class LayoutError(ValueError):
    """A topology that this kind of fabric cannot carry. The text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Interface names and configuration of a topology's linked ports.

    shared: hosts have no namespaces of their own (`emul.shared_hosts`). Raises LayoutError for a topology that Mininet
    and OVS cannot carry.
    """

    topology: Topology
    shared: bool = False

    def __post_init__(self) -> None:
        names: dict[str, PortRef] = {}
        if self.topology.ipv6:
            self._check_ipv6()
        for switch in self.topology.switches:
            if self.shared and switch.role == "ocs":
                raise LayoutError(
                    f"switch {switch.name!r} is an optical circuit switch, behind which hosts relay for one another; "
                    "hosts that share a namespace cannot; use fabric mininet"
                )
            if len(switch.name) > INTERFACE_NAME_MAX:  # OVS gives the bridge an interface of its name
                raise LayoutError(f"switch name {switch.name!r} is longer than {INTERFACE_NAME_MAX} characters")
        for port in self.topology.linked_ports():
            name = self.interface(port)
            if len(name) > INTERFACE_NAME_MAX:
                raise LayoutError(
                    f"port {port} would be the interface {name!r}, longer than {INTERFACE_NAME_MAX} characters; "
                    f"shorten the name {port.node!r}"
                )
            if self.shared or self.is_switch(port):
                if name in names:
                    raise LayoutError(f"ports {names[name]} and {port} would both be the interface {name!r}")
                names[name] = port

    def _check_ipv6(self) -> None:
        if self.shared:
            raise LayoutError("hosts that share a namespace have IPv4 addresses only; use fabric mininet")
        if self.topology.mtu_bytes < _IPV6_MTU_BYTES_MIN:
            raise LayoutError(f"mtu_bytes is {self.topology.mtu_bytes}, but IPv6 needs at least {_IPV6_MTU_BYTES_MIN}")
        roles = {switch.name: switch.role for switch in self.topology.switches}
        for link in self.topology.links:
            if {roles.get(link.a.node), roles.get(link.b.node)} == {None, "ocs"}:
                raise LayoutError(f"link {link.a} to {link.b} needs a host that relays, which hosts do for IPv4 only")

    def is_switch(self, port: PortRef) -> bool:
        """Whether `port` belongs to a switch."""
        return not self.topology.has_host(port.node)

    def interface(self, port: PortRef) -> str:
        """Kernel name of a port's interface in the namespace of its node."""
        if self.is_switch(port):
            return f"{port.node}-eth{port.port}"
        nic = self.topology.host(port.node).nics[port.port - 1].name
        return f"{port.node}-{nic}" if self.shared else nic

    def switch_interfaces(self) -> dict[PortRef, str]:
        """The interface names of all linked switch ports."""
        return {port: self.interface(port) for port in self.topology.linked_ports() if self.is_switch(port)}

    def switch_link_lines(self) -> list[str]:
        """Lines for `ip -batch` in the main namespace: MTU and group of all switch interfaces."""
        mtu = self.topology.mtu_bytes
        return [
            f"link set dev {name} mtu {mtu} group {INTERFACE_GROUP} up" for name in self.switch_interfaces().values()
        ]

    def switch_shape_lines(self) -> list[str]:
        """Lines for `tc -batch` in the main namespace: shaping of what leaves the switches."""
        mtu = self.topology.mtu_bytes
        return [
            line
            for port, name in self.switch_interfaces().items()
            for line in shape_lines(name, self.topology.link_at(port).rate_bps, mtu, QUEUE_PACKETS)
        ]

    def host_shape_lines(self, host: Host) -> list[str]:
        """Lines for `tc -batch` in a host's namespace: shaping of what leaves its NICs."""
        mtu = self.topology.mtu_bytes
        return [
            line
            for port, name in self.linked_nics(host)
            for line in shape_lines(name, self.topology.link_at(port).rate_bps, mtu, HOST_QUEUE_PACKETS)
        ]

    def host_lines(self, host: Host) -> list[str]:
        """Lines for `ip -batch` in a host's namespace: addresses, MTU, routes and neighbours.

        A host sees the whole fabric as one subnet. A packet leaves by the NIC that owns its source address. Neighbour
        entries are permanent, so that no ARP packet changes a counter; the switches answer ARP nevertheless.
        """
        subnet = common_network([nic.address for other in self.topology.hosts for nic in other.nics])
        linked = list(self.linked_nics(host))
        lines = ["link set dev lo up"]
        for number, (port, name) in enumerate(linked):
            nic = host.nics[port.port - 1]
            lines += [
                f"link set dev {name} address {nic.mac} mtu {self.topology.mtu_bytes} up",
                f"address add {nic.address}{_ALONE[nic.address.version]} dev {name}",
            ]
            if not self.shared:
                # Sockets that are bound to no address use the first NIC, whose route has the lowest metric.
                lines.append(f"route add {subnet} dev {name} src {nic.address} metric {_FIRST_METRIC + number}")
            if len(linked) > 1 and not self.shared:
                table = FIRST_NIC_TABLE + number
                lines += [
                    f"route add {subnet} dev {name} src {nic.address} table {table}",
                    f"rule add from {nic.address} lookup {table}",
                ]
            lines += [
                f"neighbour replace {other.address} lladdr {other.mac} nud permanent dev {name}"
                for peer in self.topology.hosts
                if peer != host
                for other in peer.nics
            ]
        return lines

    def linked_nics(self, host: Host) -> Iterator[tuple[PortRef, str]]:
        """The ports and interface names of a host's NICs that have a link."""
        linked = set(self.topology.linked_ports())
        for number in range(1, len(host.nics) + 1):
            port = PortRef(host.name, number)
            if port in linked:
                yield port, self.interface(port)


def common_network(addresses: list[Address]) -> IPv4Network | IPv6Network:
    """The smallest network that contains all `addresses` of one family, with four addresses at the smallest."""
    numbers = [int(address) for address in addresses]
    differing = (min(numbers) ^ max(numbers)).bit_length()
    return ip_network((min(addresses, key=int).packed, addresses[0].max_prefixlen - max(differing, 2)), strict=False)


def switch_end(layout: Layout, link: Link) -> PortRef:
    """The end of `link` at a switch; end `a` where both are. Every link has one."""
    return link.a if layout.is_switch(link.a) else link.b
