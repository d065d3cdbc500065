# SPDX-License-Identifier: Apache-2.0
"""Hosts that forward packets of other hosts, as `sdn.topoopt.relays` plans, on kernel interfaces.

A NIC that is partitioned in hardware (TopoOpt, appendix I) is emulated by a second interface "nicNr" beside "nicN": a
macvlan with a MAC of its own and no IP address. The host's kernel forwards frames that are sent to this MAC, by rules
on source and destination and by permanent neighbour entries. The RDMA engine at "nicN" never sees them.
"""

import json
from collections.abc import Callable, Iterator, Sequence

from emul.netlink import InterfaceCounters, interface_counters
from netmodel import Circuits, Host, PortRef, Topology
from netmodel.flow import Address
from sdn.topoopt.relays import RelayPlan, next_mac, relay_mac

RULE_PREFERENCE = 1000
"""Preference of the rules for relayed packets. They precede the rules for the host's own packets."""

_PER_INTERFACE = ("rp_filter", "send_redirects")
_DROP_PREFERENCE = 2000
_FIRST_TABLE = 300

# A relay must accept source addresses that it reaches by another interface, and must not send ICMP redirects.
FORWARDING = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.default.send_redirects=0",
)


def relay_interface(nic: str) -> str:
    """Name of the relay interface of a NIC."""
    return f"{nic}r"


def interface_lines(topology: Topology, host: Host) -> list[str]:
    """Lines for `ip -batch` in a host's namespace that make its relay interfaces. They are run once.

    A packet that enters by a relay interface and matches no rule is dropped.
    """
    lines = []
    for nic in host.nics:
        name = relay_interface(nic.name)
        lines += [
            f"link add link {nic.name} name {name} address {relay_mac(nic)} type macvlan mode private",
            f"link set dev {name} mtu {topology.mtu_bytes} up",
            f"rule add pref {_DROP_PREFERENCE} iif {name} blackhole",
        ]
    return lines


def plan_lines(topology: Topology, circuits: Circuits, plan: RelayPlan, host: Host) -> list[str]:
    """Lines for `ip -batch` in a host's namespace: its part in the paths of a plan, as sender and as relay."""
    return [*dict.fromkeys(_lines(topology, circuits, plan, host))]


class RelayError(Exception):
    """A host that should relay does not. The text is one sentence for the user."""


class Relays:
    """The relays of a running fabric.

    run: runs a command in a host's network namespace with lines as its input, returns its output, and raises when the
    command fails.
    """

    def __init__(self, topology: Topology, run: Callable[[str, Sequence[str], Sequence[str] | None], str]) -> None:
        self._topology = topology
        self._run = run
        self._rules: dict[str, int] = {}

    def set(self, circuits: Circuits, plan: RelayPlan) -> None:
        """Configure every host to send and forward as planned. This replaces an earlier plan."""
        for host in self._topology.hosts:
            lines = [f"rule delete pref {RULE_PREFERENCE}"] * self._rules.get(host.name, 0)
            if host.name not in self._rules:
                self._run(host.name, ["sysctl", "-q", "-w", *FORWARDING], None)
                interfaces = [f"net.ipv4.conf.{nic.name}.{key}=0" for nic in host.nics for key in _PER_INTERFACE]
                self._run(host.name, ["sysctl", "-q", "-w", *interfaces], None)
                lines = interface_lines(self._topology, host)
            planned = plan_lines(self._topology, circuits, plan, host)
            self._run(host.name, ["ip", "-batch", "-"], [*lines, *planned])
            self._rules[host.name] = sum(line.startswith("rule add") for line in planned)

    def counters(self) -> dict[PortRef, InterfaceCounters]:
        """By NIC: frames and bytes that its relay interface received and sent, without the frame check sequence."""
        found = {}
        for name in self._rules:
            seen = interface_counters(self._run(name, ["cat", "/proc/net/dev"], None))
            for number, nic in enumerate(self._topology.host(name).nics, start=1):
                if relay_interface(nic.name) in seen:
                    found[PortRef(name, number)] = seen[relay_interface(nic.name)]
        return found

    def check(self, plan: RelayPlan) -> None:
        """Raises RelayError when a relay interface that `plan` uses is down or missing."""
        up: dict[str, set[str]] = {}
        for (source, target), way in plan.ways.items():
            for port in way.ports[1:]:
                if port.node not in up:
                    shown = json.loads(self._run(port.node, ["ip", "-json", "link", "show"], None))
                    up[port.node] = {link["ifname"] for link in shown if "UP" in link["flags"]}
                interface = relay_interface(self._topology.host(port.node).nics[port.port - 1].name)
                if interface not in up[port.node]:
                    raise RelayError(
                        f"{port.node} does not relay, its interface {interface} is down, so packets of {source.node} "
                        f"do not reach {target.node}; bring it up or plan without {port.node}"
                    )


def _lines(topology: Topology, circuits: Circuits, plan: RelayPlan, host: Host) -> Iterator[str]:
    for (near, end), way in plan.ways.items():
        source, destination = _address(topology, near), _address(topology, end)
        for port in way.ports:
            if port.node != host.name:
                continue
            nic = host.nics[port.port - 1].name
            mac = next_mac(topology, circuits, port, destination)
            if port == near:  # a sender whose own circuit is dead relays for itself, over another NIC
                yield f"neighbour replace {destination} lladdr {mac} nud permanent dev {nic}"
                if port.port == end.port:  # for programs that bind no address, as NCCL's TCP connections
                    yield f"route replace {destination} dev {nic} src {source}"
                continue
            out, table = relay_interface(nic), _FIRST_TABLE + port.port - 1
            # Replaced, because the kernel removed the route if the interface was down in the meantime.
            yield f"route replace default dev {out} table {table}"
            yield f"neighbour replace {destination} lladdr {mac} nud permanent dev {out}"
            yield f"rule add pref {RULE_PREFERENCE} from {source} to {destination} lookup {table}"


def _address(topology: Topology, port: PortRef) -> Address:
    return topology.host(port.node).nics[port.port - 1].address
