# SPDX-License-Identifier: Apache-2.0
"""The configuration of routers: lines for `ip -batch`, and rules of nftables. Pure.

`netmodel.linux_routers` has that of kernels and hosts.
"""

from collections.abc import Iterator

from emul.layout import Layout
from emul.shaping import QUEUE_PACKETS
from netmodel import IPPROTO_TCP, IPPROTO_UDP, Link, PortRef
from netmodel.router_plan import RouterPlan

FLOWS_REMEMBERED_S = 3600
"""Seconds for which a router remembers a flow after its last packet."""

NOTED_PROTOCOLS = {"udp": IPPROTO_UDP, "tcp": IPPROTO_TCP}
"""The protocols whose flows routers note, each in a set named after it, with their numbers."""

_MOST_FLOWS = 1 << 18


def link_lines(layout: Layout, pids: dict[str, int]) -> list[str]:
    """Lines for `ip -batch` that make all links. pids: by node, the id of a process in its network namespace."""
    mtu = layout.topology.mtu_bytes
    return [
        f"link add {layout.interface(link.a)} mtu {mtu} netns {pids[link.a.node]} type veth "
        f"peer name {layout.interface(link.b)} mtu {mtu} netns {pids[link.b.node]}"
        for link in layout.topology.links
    ]


def router_lines(plan: RouterPlan, layout: Layout, router: str) -> list[str]:
    """Lines for `ip -batch` in a router's namespace: its addresses, and its ports up."""
    own = plan.loopbacks[router]
    lines = [f"address add {own}/{own.max_prefixlen} dev lo", "link set dev lo up"]
    for port in (port for port in layout.topology.linked_ports() if port.node == router):
        name, address = layout.interface(port), plan.link_addresses.get(port)
        lines.append(f"link set dev {name} txqueuelen {QUEUE_PACKETS}")
        if port.port in plan.hosts[router]:
            lines.append(f"address add {own}/{own.max_prefixlen} dev {name}")
        elif address is not None:
            lines.append(f"address add {address}/{address.max_prefixlen - 1} dev {name}")
        lines += port_up_lines(plan, layout, port)
    return lines


def port_up_lines(plan: RouterPlan, layout: Layout, port: PortRef) -> list[str]:
    """Lines for `ip -batch` that bring a router's port up, with the route to the host there, if it is one's.

    The kernel has dropped that route when the port went down.
    """
    name, host = layout.interface(port), plan.hosts[port.node].get(port.port)
    route = [] if host is None else [f"route replace {host}/{host.max_prefixlen} dev {name}"]
    return [f"link set dev {name} up", *route]


def flow_rules(version: int) -> list[str]:
    """Lines for `nft -f` in a router's namespace.

    They note the flows of UDP and TCP that the router forwards. What the router itself sends (BGP, ICMP) leaves before
    what it forwards, as a router's control traffic does: else full queues would end its sessions.
    """
    family, address = ("ip6", "ip6") if version == 6 else ("ip", "ip")
    kind = "ipv6_addr" if version == 6 else "ipv4_addr"
    table = f"{family} paralet_flows"
    lines = [
        f"add table {table}",
        f"add chain {table} forwarded {{ type filter hook forward priority 0; }}",
        f"add rule {table} forwarded meta priority set 0:0",
        f"add chain {table} own {{ type filter hook output priority 0; }}",
        f"add rule {table} own meta priority set 0:7",
    ]
    for name in NOTED_PROTOCOLS:  # a set each: nft 1.0.6 cannot list one whose keys have the protocol
        key = f"{address} saddr . {address} daddr . {name} sport . {name} dport . oifname"
        lines += [
            f"add set {table} {name}_flows {{ type {kind} . {kind} . inet_service . inet_service . ifname; "
            f"flags dynamic,timeout; timeout {FLOWS_REMEMBERED_S}s; size {_MOST_FLOWS}; counter; }}",
            f"add rule {table} forwarded meta l4proto {name} update @{name}_flows {{ {key} }}",
        ]
    return lines


def links_of(layout: Layout, node: str) -> Iterator[Link]:
    """The links of a node."""
    return (link for link in layout.topology.links if node in (link.a.node, link.b.node))
