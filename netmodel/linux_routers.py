# SPDX-License-Identifier: Apache-2.0
"""Linux kernels as routers of a fabric, and as their hosts: settings and routes. Pure.

A host's gateway is its leaf, at the leaf's own address. The leaf has a route to the host.
"""

from collections.abc import Callable

from netmodel.router_plan import RouterPlan
from netmodel.topology import Host, PortRef

FIRST_NIC_TABLE = 100
"""The routing table of a host's first NIC, where it has several; those of the others follow."""


def router_sysctls(plan: RouterPlan, router: str) -> dict[str, str]:
    """The kernel's settings (sysctl) in a router's namespace, before it has interfaces other than lo.

    Both IP versions hash with the seed of IPv4. Its 32 bits are the low half of the switch's; 0 would be a random one.
    Raises ValueError for that.
    """
    seed = plan.topology.switch(router).hash_seed & 0xFFFFFFFF
    if seed == 0:
        raise ValueError(f"the low 32 bits of the hash_seed of {router!r} are 0, which Linux takes for no seed")
    link_local = plan.unnumbered or plan.version == 6
    return {
        "net.ipv4.ip_forward": "1",
        "net.ipv4.fib_multipath_hash_policy": "1",
        "net.ipv4.fib_multipath_hash_seed": str(seed),
        "net.ipv4.icmp_errors_use_inbound_ifaddr": "1",
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
        "net.ipv6.conf.all.disable_ipv6": str(int(not link_local)),
        "net.ipv6.conf.default.disable_ipv6": str(int(not link_local)),
        "net.ipv6.conf.all.forwarding": str(int(link_local)),
        "net.ipv6.fib_multipath_hash_policy": "1",
        "net.ipv6.conf.all.keep_addr_on_down": "1",
        "net.ipv6.conf.default.keep_addr_on_down": "1",
        "net.ipv6.conf.default.accept_dad": "0",
    }


def host_lines(plan: RouterPlan, host: Host, interface: Callable[[PortRef], str]) -> list[str]:
    """Arguments of `ip` in a host's namespace, a command a line: addresses, and a default route by each linked NIC.

    A packet leaves by the NIC that owns its source address. Sockets that are bound to no address use the first NIC.
    """
    topology, lines = plan.topology, ["link set dev lo up"]
    cabled = set(topology.linked_ports())
    linked = [port for number in range(1, len(host.nics) + 1) if (port := PortRef(host.name, number)) in cabled]
    for number, port in enumerate(linked):
        nic, gateway, name = host.nics[port.port - 1], plan.loopbacks[topology.peer(port).node], interface(port)
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
