# SPDX-License-Identifier: Apache-2.0
"""The configuration of routers: lines for `ip -batch`, and rules of nftables. Pure.

`netmodel.linux_routers` has that of kernels and hosts.
"""

from collections.abc import Iterator

from emul.layout import Layout
from emul.shaping import QUEUE_PACKETS
from netmodel import IPPROTO_TCP, IPPROTO_UDP, Link, PortRef
from netmodel.router_plan import RouterPlan
from netmodel.segments import SegmentAddresses

FLOWS_REMEMBERED_S = 3600
"""Seconds for which a router remembers a flow after its last packet."""

NOTED_PROTOCOLS = {"udp": IPPROTO_UDP, "tcp": IPPROTO_TCP}
"""The protocols whose flows routers note, each in a set named after it, with their numbers."""

SEGMENT_SETTINGS = {f"net.ipv6.conf.{of}.seg6_enabled": "1" for of in ("all", "default")}
"""Of a router's kernel, before it has interfaces other than lo: packets may have a routing header with its segments."""

_MOST_FLOWS = 1 << 18


def link_lines(layout: Layout, pids: dict[str, int]) -> list[str]:
    """Lines for `ip -batch` that make all links. pids: by node, the id of a process in its network namespace."""
    mtu = layout.topology.mtu_bytes
    return [
        f"link add {layout.interface(link.a)} mtu {mtu} netns {pids[link.a.node]} type veth "
        f"peer name {layout.interface(link.b)} mtu {mtu} netns {pids[link.b.node]}"
        for link in layout.topology.links
    ]


def router_lines(plan: RouterPlan, layout: Layout, router: str, segments: SegmentAddresses | None = None) -> list[str]:
    """Lines for `ip -batch` in a router's namespace: its addresses, its ports up, and its segments."""
    own = plan.loopbacks[router]
    lines = [f"address add {own}/{own.max_prefixlen} dev lo", "link set dev lo up"]
    for port in (port for port in layout.topology.linked_ports() if port.node == router):
        name, address = layout.interface(port), plan.link_addresses.get(port)
        lines.append(f"link set dev {name} txqueuelen {QUEUE_PACKETS}")
        if port.port in plan.hosts[router]:
            lines.append(f"address add {own}/{own.max_prefixlen} dev {name}")
        elif address is not None:
            lines.append(f"address add {address}/{address.max_prefixlen - 1} dev {name}")
        lines += port_up_lines(plan, layout, port, segments)
    return lines


def port_up_lines(
    plan: RouterPlan, layout: Layout, port: PortRef, segments: SegmentAddresses | None = None
) -> list[str]:
    """Lines for `ip -batch` that bring a router's port up, with the routes that the kernel drops when it goes down.

    These are that to the host at the port, if it is a host's, or else the port's segments.
    """
    name, host = layout.interface(port), plan.hosts[port.node].get(port.port)
    lines = [f"link set dev {name} up"]
    if host is not None:
        lines.append(f"route replace {host}/{host.max_prefixlen} dev {name}")
    elif segments is not None:
        far = plan.link_addresses[layout.topology.peer(port)]
        local = f"dev {name} encap seg6local action"
        lines += [
            f"route replace {segments.out[port]}/128 {local} End.X nh6 {far}",
            f"route replace {segments.pop[port]}/128 {local} End flavors psp",
        ]
    return lines


def flow_rules(version: int) -> list[str]:
    """Lines for `nft -f` in a router's namespace.

    They note the flows of UDP and TCP that the router forwards. What the router itself sends (BGP, ICMP) leaves before
    what it forwards, as a router's control traffic does: else full queues would end its sessions.
    """
    family, address = ("ip6", "ip6") if version == 6 else ("ip", "ip")
    kind = "ipv6_addr" if version == 6 else "ipv4_addr"
    table = f"{family} paralet_flows"
    destinations = {"": f"{address} daddr"}
    if version == 6:  # a routing header (RFC 8754) has the destination at the end of its list, which comes first
        destinations = {"exthdr rt missing ": "ip6 daddr", "exthdr rt exists ": "srh sid[1]"}
    lines = [
        f"add table {table}",
        f"add chain {table} forwarded {{ type filter hook forward priority 0; }}",
        f"add rule {table} forwarded meta priority set 0:0",
        f"add chain {table} own {{ type filter hook output priority 0; }}",
        f"add rule {table} own meta priority set 0:7",
    ]
    for name in NOTED_PROTOCOLS:  # a set each: nft 1.0.6 cannot list one whose keys have the protocol
        lines.append(
            f"add set {table} {name}_flows {{ type {kind} . {kind} . inet_service . inet_service . ifname; "
            f"flags dynamic,timeout; timeout {FLOWS_REMEMBERED_S}s; size {_MOST_FLOWS}; counter; }}"
        )
        for which, destination in destinations.items():
            key = f"{address} saddr . {destination} . {name} sport . {name} dport . oifname"
            lines.append(f"add rule {table} forwarded meta l4proto {name} {which}update @{name}_flows {{ {key} }}")
    return lines


def links_of(layout: Layout, node: str) -> Iterator[Link]:
    """The links of a node."""
    return (link for link in layout.topology.links if node in (link.a.node, link.b.node))
