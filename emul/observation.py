# SPDX-License-Identifier: Apache-2.0
"""Observations of switches: flows of the datapath, traced flows, dropped strays."""

from collections import Counter
from collections.abc import Iterator, Mapping

from emul.flow_dump import ObservedFlow, counted_by_port, observed_flows, traced_output
from emul.ovs import OPENFLOW, Datapath, PrivateOvs
from netmodel import IPPROTO_TCP, Circuits, Flow, Link, PortRef, Topology, forwarding, with_circuits
from sdn.openflow.hash_check import flows_to_trace, judge
from sdn.openflow.messages import STRAY_COOKIE
from sdn.openflow.source_rules import Pinning, ecmp_hash_of

HASH_TRACES = 32
"""Number of flows traced to verify that OVS hashes as predicted."""

_DATAPATH_NAMES: Mapping[Datapath, str] = {"user": "netdev@ovs-netdev", "kernel": "system@ovs-system"}


class SwitchObserver:
    """Asks Open vSwitch what its switches do. It sends no packets.

    interfaces: the interface name of every linked switch port.
    """

    def __init__(
        self, topology: Topology, interfaces: Mapping[PortRef, str], ovs: PrivateOvs, datapath: Datapath
    ) -> None:
        self._topology = topology
        self._ports = {name: port for port, name in interfaces.items()}
        self._ovs = ovs
        self._datapath = _DATAPATH_NAMES[datapath]

    def observed_ports(self, switch_name: str) -> dict[Flow, int]:
        """See `MininetFabric.observed_ports`."""
        self._topology.switch(switch_name)
        return {seen.flow: out.port for node, out, seen in self._observed() if node == switch_name}

    def crossing(self, link: Link, within_s: float) -> list[ObservedFlow]:
        """See `MininetFabric.crossing`."""
        return [seen for _, out, seen in self._observed() if out in (link.a, link.b) and seen.idle_s <= within_s]

    def traced_port(self, switch_name: str, flow: Flow) -> int | None:
        """See `MininetFabric.traced_port`."""
        self._topology.switch(switch_name)
        # The trace starts at the bridge's own port, because a switch never sends a packet back by its ingress port.
        ends = f"nw_src={flow.src},nw_dst={flow.dst}"
        if flow.src.version == 6:
            ends = f"ipv6_src={flow.src},ipv6_dst={flow.dst}"
        name = "tcp" if flow.protocol == IPPROTO_TCP else "udp"
        kind = f"{name}6" if flow.src.version == 6 else name
        packet = f"in_port=LOCAL,{kind},{ends},{name}_src={flow.src_port},{name}_dst={flow.dst_port}"
        out = traced_output(self._ovs.appctl("ofproto/trace", "--names", switch_name, packet))
        port = self._ports.get(out or "")
        return None if port is None else port.port

    def strays(self) -> dict[PortRef, int]:
        """See `MininetFabric.strays`."""
        self._ovs.appctl("revalidator/wait")  # otherwise the counters would lack the last half second
        cookie = f"cookie={STRAY_COOKIE:#x}/-1"
        counts: Counter[PortRef] = Counter()  # a closed port has a rule for each IP version
        for switch in self._topology.switches:
            dump = self._ovs.command("ovs-ofctl", "--no-names", "-O", OPENFLOW, "dump-flows", switch.name, cookie)
            for port, packets in counted_by_port(dump):
                counts[PortRef(switch.name, port)] += packets
        return dict(counts)

    def check_hash(self, circuits: Circuits, pinning: Pinning) -> None:
        """Compare OVS's choices of ports with the predicted ones, for `HASH_TRACES` flows.

        Raises HashMismatchError where they differ, and OvsError.
        """
        routed = with_circuits(self._topology, circuits)
        traces = flows_to_trace(routed, forwarding(routed), ecmp_hash_of(routed, pinning), HASH_TRACES)
        judge(traces, [self.traced_port(trace.switch, trace.flow) for trace in traces])

    def _observed(self) -> Iterator[tuple[str, PortRef, ObservedFlow]]:
        """Every flow of the datapath's flow table, with its switch and egress port."""
        for seen in observed_flows(self._ovs.appctl("dpctl/dump-flows", "--names", self._datapath)):
            incoming, outgoing = self._ports.get(seen.in_interface), self._ports.get(seen.out_interface)
            if incoming is not None and outgoing is not None:
                yield incoming.node, outgoing, seen
