# SPDX-License-Identifier: Apache-2.0
"""What to call an address: as the topology does, as the DNS does, or itself."""

import socket
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netmodel import Topology


def names_of(topology: "Topology") -> dict[str, str]:
    """By address: the name of a host, or of a router with the number of its port.

    Routers have the addresses of `netmodel.router_addresses`, as on fabric `routed`. Raises ValueError for a topology
    whose switches cannot be routers.
    """
    from netmodel.router_plan import RouterPlan

    plan = RouterPlan(topology)
    found = {str(address): name for name, address in plan.loopbacks.items()}
    found |= {str(address): str(port) for port, address in plan.link_addresses.items()}
    return found | {str(nic.address): host.name for host in topology.hosts for nic in host.nics}


@lru_cache(maxsize=4096)
def dns_name(address: str) -> str:
    """The name of an address by the DNS, or the address where it has none."""
    try:
        return socket.gethostbyaddr(address)[0]
    except OSError:
        return address
