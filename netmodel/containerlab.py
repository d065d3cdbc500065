# SPDX-License-Identifier: Apache-2.0
"""Topologies as containerlab's YAML (containerlab.dev/manual/topo-def-file).

Hosts are nodes of kind `linux`, switches of kind `ovs-bridge`. containerlab connects bridges, but does not make them:
`ovs-vsctl add-br NAME` for each switch comes first. Its links have no rates; a comment says what they are here.
"""

import yaml

from netmodel.rates import format_rate
from netmodel.topology import Topology

IMAGE = "ghcr.io/srl-labs/network-multitool"
"""The image of hosts, which has `ip`, `iperf3` and `tcpdump`."""
_LONGEST_NAME = 15
"""Characters of an interface's name: IFNAMSIZ in the kernel's `linux/if.h`, without the final zero."""


def write_containerlab(topology: Topology) -> str:
    """A topology of packet switches. Ports keep their numbers: port 5 of leaf1 is interface `leaf1p5`, NIC 1 `eth1`.

    Raises ValueError for optical switches, which nothing in containerlab is, and for names that are too long.
    """
    if any(switch.role == "ocs" for switch in topology.switches):
        raise ValueError(f"{topology.name} has optical switches, for which containerlab has no kind")
    switches = {switch.name for switch in topology.switches}

    def interface(node: str, port: int) -> str:
        name = f"{node}p{port}" if node in switches else f"eth{port}"
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"{name} is longer than the {_LONGEST_NAME} characters of an interface; shorten {node}")
        return name

    hosts = {
        host.name: {
            "kind": "linux",
            "image": IMAGE,
            "exec": [
                command
                for number, nic in enumerate(host.nics, start=1)
                for command in (
                    f"ip link set eth{number} address {nic.mac} mtu {topology.mtu_bytes} up",
                    f"ip addr add {nic.address}/8 dev eth{number}",
                )
            ],
        }
        for host in topology.hosts
    }
    links = [
        {"endpoints": [f"{end.node}:{interface(end.node, end.port)}" for end in (link.a, link.b)]}
        for link in topology.links
    ]
    document = {
        "name": topology.name,
        "topology": {"nodes": {**hosts, **{name: {"kind": "ovs-bridge"} for name in sorted(switches)}}, "links": links},
    }
    rates = ", ".join(format_rate(rate) for rate in sorted({link.rate_bps for link in topology.links}))
    header = (
        f"# Make the bridges first: for b in {' '.join(sorted(switches))}; do ovs-vsctl add-br $b; done\n"
        f"# Links here have {rates}; containerlab's have no limit (see containerlab tools netem).\n"
    )
    return header + yaml.safe_dump(document, sort_keys=False, width=120)
