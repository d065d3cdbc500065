# SPDX-License-Identifier: Apache-2.0
"""Fabrics of routers as labs of containerlab (containerlab.dev), whose switches are FRR on Linux.

The routers are those of fabric `routed`: eBGP on every link, and the kernel's ECMP with the seed of each switch. Nodes
have no interfaces but those of the topology, so that no packet takes the management network.
"""

import yaml

from netmodel.containerlab import IMAGE
from netmodel.frr import address_configuration, bgpd_configuration, zebra_configuration
from netmodel.linux_routers import host_lines, router_sysctls
from netmodel.rates import format_rate
from netmodel.router_plan import RouterPlan
from netmodel.topology import PortRef, Topology

FRR_IMAGE = "quay.io/frrouting/frr:8.4.1"
"""The image of routers."""

_ALL = ("all", "default")
_DAEMONS = "bgpd=yes\nvtysh_enable=yes\n"


def write_router_lab(topology: Topology, unnumbered: bool = False) -> dict[str, str]:
    """The files of a lab by name: `NAME.clab.yml`, `daemons`, and `SWITCH.conf` for each switch.

    Port 5 of a node is its interface `eth5`. unnumbered: links have no addresses. Raises ValueError, as `RouterPlan`
    and `router_sysctls` do, for switches that cannot be routers.
    """
    plan = RouterPlan(topology, unnumbered)
    routers = {
        switch.name: {
            "kind": "linux",
            "image": FRR_IMAGE,
            "network-mode": "none",
            "binds": ["daemons:/etc/frr/daemons", f"{switch.name}.conf:/etc/frr/frr.conf"],
            "sysctls": router_sysctls(plan, switch.name),
        }
        for switch in topology.switches
    }
    hosts = {
        host.name: {
            "kind": "linux",
            "image": IMAGE,
            "network-mode": "none",
            **({"sysctls": {f"net.ipv6.conf.{name}.disable_ipv6": "0" for name in _ALL}} if topology.ipv6 else {}),
            "exec": [f"ip {line}" for line in host_lines(plan, host, _interface)],
        }
        for host in topology.hosts
    }
    links = [
        {"endpoints": [f"{end.node}:{_interface(end)}" for end in (link.a, link.b)], "mtu": topology.mtu_bytes}
        for link in topology.links
    ]
    document = {"name": topology.name, "topology": {"nodes": {**hosts, **routers}, "links": links}}
    rates = ", ".join(format_rate(rate) for rate in sorted({link.rate_bps for link in topology.links}))
    header = f"# Links here have {rates}; containerlab's have no limit (see containerlab tools netem).\n"
    return {
        f"{topology.name}.clab.yml": header + yaml.safe_dump(document, sort_keys=False, width=120),
        "daemons": _DAEMONS,
        **{f"{name}.conf": _configuration(plan, name) for name in routers},
    }


def _configuration(plan: RouterPlan, router: str) -> str:
    """All of a router's daemons in one text, as FRR's `frr.conf` has them."""
    parts = zebra_configuration, address_configuration, bgpd_configuration
    return "".join(part(plan, router, _interface) for part in parts)


def _interface(port: PortRef) -> str:
    return f"eth{port.port}"
