# SPDX-License-Identifier: Apache-2.0
"""The configuration of routers and their hosts: lines for `ip -batch`, settings of the kernel, rules of nftables. Pure.

A host's gateway is its leaf, at the leaf's own address. The leaf has a route to the host.
"""

from collections.abc import Iterator

from emul.layout import FIRST_NIC_TABLE, Layout
from emul.shaping import QUEUE_PACKETS
from netmodel import IPPROTO_TCP, IPPROTO_UDP, Host, Link, PortRef
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


def router_sysctls(plan: RouterPlan, router: str) -> list[str]:
    """NAME=VALUE for `sysctl -w` in a router's namespace, before it has interfaces other than lo.

    Both IP versions hash with the seed of IPv4. Its 32 bits are the low half of the switch's; 0 would be a random one.
    """
    seed = plan.topology.switch(router).hash_seed & 0xFFFFFFFF
    if seed == 0:
        raise ValueError(f"the low 32 bits of the hash_seed of {router!r} are 0, which Linux takes for no seed")
    link_local = plan.unnumbered or plan.version == 6
    return [
        "net.ipv4.ip_forward=1",
        "net.ipv4.fib_multipath_hash_policy=1",
        f"net.ipv4.fib_multipath_hash_seed={seed}",
        "net.ipv4.icmp_errors_use_inbound_ifaddr=1",
        "net.ipv4.conf.all.rp_filter=0",
        "net.ipv4.conf.default.rp_filter=0",
        f"net.ipv6.conf.all.disable_ipv6={int(not link_local)}",
        f"net.ipv6.conf.default.disable_ipv6={int(not link_local)}",
        f"net.ipv6.conf.all.forwarding={int(link_local)}",
        "net.ipv6.fib_multipath_hash_policy=1",
        "net.ipv6.conf.all.keep_addr_on_down=1",
        "net.ipv6.conf.default.keep_addr_on_down=1",
        "net.ipv6.conf.default.accept_dad=0",
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


def host_lines(plan: RouterPlan, layout: Layout, host: Host) -> list[str]:
    """Lines for `ip -batch` in a host's namespace: addresses, and a default route by each NIC.

    A packet leaves by the NIC that owns its source address. Sockets that are bound to no address use the first NIC.
    """
    lines = ["link set dev lo up"]
    linked = list(layout.linked_nics(host))
    for number, (port, name) in enumerate(linked):
        nic, gateway = host.nics[port.port - 1], plan.loopbacks[layout.topology.peer(port).node]
        nodad = " nodad" if plan.version == 6 else ""
        route = f"default via {gateway} dev {name} onlink src {nic.address}"
        lines += [
            f"link set dev {name} address {nic.mac} up",
            f"address add {nic.address}/{nic.address.max_prefixlen}{nodad} dev {name}",
            f"route add {route} metric {FIRST_NIC_TABLE + number}",
        ]
        if len(linked) > 1:
            table = FIRST_NIC_TABLE + number
            lines += [f"route add {route} table {table}", f"rule add from {nic.address} lookup {table}"]
    return lines


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
