# SPDX-License-Identifier: Apache-2.0
"""Rules on source ports as switches take them: SONiC's configuration database, and Linux. Pure.

A rule sends packets to the address of the router at the other end of a link.
"""

import json
from collections.abc import Mapping, Sequence

from netmodel.flow import ENTROPY_PORTS, IPPROTO_UDP, ROCE_PORT, Address
from netmodel.port_ranges import PortRule
from netmodel.topology import PortRef, Topology

_FIRST_TABLE = 20_000
_PREFERENCE = 1_000
_FIRST_PRIORITY = 9_000


def sonic_acl(
    topology: Topology, rules: Mapping[str, Sequence[PortRule]], addresses: Mapping[PortRef, Address]
) -> dict[str, str]:
    """By switch: JSON that SONiC adds to its configuration (`sudo config load FILE`).

    It is an access list with redirection (`REDIRECT_ACTION` in orchagent/aclorch.cpp of sonic-swss). The ports of a
    topology are numbers, so the list names them Ethernet1, Ethernet2, ..: put the switch's own names there.
    """
    table = "PARALET6" if topology.ipv6 else "PARALET"
    text = {}
    for switch, own in rules.items():
        ports = sorted(port.port for port in topology.linked_ports() if port.node == switch)
        rows = {
            f"{table}|RULE{number}": {
                "PRIORITY": str(_FIRST_PRIORITY - number),
                "DST_IPV6" if topology.ipv6 else "DST_IP": str(rule.network),
                "NEXT_HEADER" if topology.ipv6 else "IP_PROTOCOL": str(IPPROTO_UDP),
                "L4_DST_PORT": str(ROCE_PORT),
                "L4_SRC_PORT_RANGE": f"{rule.first}-{rule.last}",
                "REDIRECT_ACTION": str(addresses[topology.peer(rule.out)]),
            }
            for number, rule in enumerate(own, start=1)
        }
        listed = {
            "type": "L3V6" if topology.ipv6 else "L3",
            "stage": "ingress",
            "policy_desc": "paths of RoCEv2 by source port",
            "ports": [f"Ethernet{port}" for port in ports],
        }
        text[switch] = json.dumps({"ACL_TABLE": {table: listed}, "ACL_RULE": rows}, indent=1) + "\n"
    return text


def linux_rules(
    topology: Topology, rules: Mapping[str, Sequence[PortRule]], addresses: Mapping[PortRef, Address]
) -> dict[str, str]:
    """By switch: lines for `ip -batch FILE` (with -6 for IPv6).

    A table for each port sends all to the router there. Where its link is down, the table is empty, and packets go by
    the main table. Linux matches no range with port 65535, so the last range of a network is what the others leave.
    """
    text = {}
    for switch, own in rules.items():
        outs = sorted({rule.out for rule in own})
        lines = [
            f"route add default via {addresses[topology.peer(out)]} table {_FIRST_TABLE + out.port}" for out in outs
        ]
        for rule in own:
            is_last = rule.last == ENTROPY_PORTS[-1]
            lines.append(
                f"rule add preference {_PREFERENCE + is_last} to {rule.network} ipproto udp dport {ROCE_PORT} "
                + ("" if is_last else f"sport {rule.first}-{rule.last} ")
                + f"lookup {_FIRST_TABLE + rule.out.port}"
            )
        text[switch] = "\n".join(lines) + "\n"
    return text
