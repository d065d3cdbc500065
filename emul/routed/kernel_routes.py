# SPDX-License-Identifier: Apache-2.0
"""The routes in a router's kernel. Pure.

The kernel numbers the next hops of a route in the order in which they were given to it, which FRR chooses anew whenever
a session comes up. So the order is read, not computed: the member that a hash selects is the one with that number.
"""

import json
from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from netmodel.flow import Address


def routes_of(listed: str, ports: Mapping[str, int]) -> dict[Address, tuple[int, ...]]:
    """By address: the ports of the next hops, in the kernel's order.

    listed: the output of `ip -j route show`. ports: the number of each interface. Routes of networks with several
    addresses are left out.
    """
    found: dict[Address, tuple[int, ...]] = {}
    for route in json.loads(listed or "[]"):
        if "dst" not in route or route["dst"] == "default" or not _is_live(route):
            continue
        network = ip_network(route["dst"])
        hops = [hop for hop in route.get("nexthops", [route]) if _is_live(hop)]
        members = tuple(ports[hop["dev"]] for hop in hops if hop.get("dev") in ports)
        if network.num_addresses == 1 and members:
            address = ip_address(network.network_address)
            found[address] = found.get(address, ()) + members
    return found


def _is_live(hop: Mapping[str, object]) -> bool:
    flags = hop.get("flags")
    return not isinstance(flags, list) or not {"dead", "linkdown"} & set(flags)
