# SPDX-License-Identifier: Apache-2.0
"""What commands show of a fabric, as data that JSON can carry."""

from collections.abc import Iterable
from typing import Any

from emul import LinkFault
from emul.link_states import LinkState
from netmodel import PortRef, Topology, format_rate
from testbed.run.console.fabric import ConsoleFabric, node_names
from testbed.spec import LinkSettings


def nodes_of(fabric: ConsoleFabric) -> list[dict[str, Any]]:
    """Every host and switch: `name`, `role`, `addresses` by NIC, and the `pid` of a process in its namespaces."""
    topology = fabric.topology
    hosts = [(host.name, "host", {nic.name: str(nic.address) for nic in host.nics}) for host in topology.hosts]
    switches: list[tuple[str, str, dict[str, str]]] = [(switch.name, switch.role, {}) for switch in topology.switches]
    return [
        {"name": name, "role": role, "addresses": addresses, "pid": fabric.node_pid(name)}
        for name, role, addresses in (*hosts, *switches)
    ]


def links_of(states: Iterable[LinkState]) -> list[dict[str, Any]]:
    """Every link: its ends `a` and `b`, whether it is `up`, its `rate`, the `part` of it that it has, and `faults`."""
    return [
        {
            "a": str(state.link.a),
            "b": str(state.link.b),
            "up": state.up,
            "rate": format_rate(state.link.rate_bps),
            "part": state.part,
            "faults": {str(port): in_words(fault) for port, fault in state.faults.items()},
        }
        for state in states
    ]


def neighbours_of(topology: Topology) -> dict[str, list[str]]:
    """By node, in the order of its ports: each linked port's number and the port at the other end, as `5 spine1:1`."""
    found: dict[str, list[PortRef]] = {name: [] for name in node_names(topology)}
    for port in topology.linked_ports():
        found[port.node].append(port)
    return {
        node: [f"{port.port} {topology.peer(port)}" for port in sorted(ports, key=lambda port: port.port)]
        for node, ports in found.items()
    }


def in_words(fault: LinkFault) -> str:
    """Faults as reports have them."""
    return LinkSettings(
        loss=fault.loss,
        corruption=fault.corruption,
        mark_above=fault.mark_above_bytes,
        delay=fault.delay_s,
        reorder=fault.reorder,
        late_by=fault.late_by_s,
    ).what
