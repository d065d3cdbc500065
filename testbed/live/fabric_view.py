# SPDX-License-Identifier: Apache-2.0
"""The load that lanes put on the links of a fabric, by the paths that its switches' hash gives them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np
import numpy.typing as npt

from netmodel import EcmpHash, FlowFields, NoRouteError, PortRef, Topology, forwarding, tiers, top_switches, uplinks
from netmodel.flow import IPPROTO_TCP, IPPROTO_UDP, address_array
from sim.links import Links
from sim.paths import hashed_paths
from testbed.live.lane_rates import LaneRates
from testbed.live.link_counters import PortRates
from testbed.live.port_names import Interface, Mapped, mapped

_HEADER_BYTES = 38
"""Ethernet, UDP, BTH and ICRC of a full packet."""

_FLOWS_NAMED = 3
_FULL = 0.9
_SPARE = 0.5

_Floats = npt.NDArray[np.float64]
_Key = tuple[str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class FlowOnLink:
    """A lane that crosses a link."""

    src: str
    dst: str
    port: int
    bps: float


@dataclass(frozen=True, eq=False)
class FabricLoad:
    """Utilisation of every link of a view's fabric, and the lanes that cross it. `outside` counts other lanes."""

    utilisation: _Floats
    flows: dict[int, list[FlowOnLink]]
    outside: int


class FabricView:
    """The links between switches. `pairs` has those from tier to tier: lower switch, upper switch, links up and down.

    `leaves` are the switches with links up, `spines` those with links down; with three tiers aggs are among both.
    `ends` names the host of each address, and its NIC by number where it has several: h1 or h1:2.

    Paths of flows are computed once and kept, because lanes rarely move.
    """

    def __init__(self, topology: Topology, ecmp_hash: EcmpHash) -> None:
        self._links = Links(topology)
        self._hash = ecmp_hash
        self._header_bytes = _HEADER_BYTES + topology.ip_header_bytes
        self._forwarding = forwarding(topology)
        self._rows: dict[_Key, list[int]] = {}
        self._hosts = {str(nic.address): host.name for host in topology.hosts for nic in host.nics}
        self.ends = {
            str(nic.address): host.name if len(host.nics) == 1 else f"{host.name}:{number}"
            for host in topology.hosts
            for number, nic in enumerate(host.nics, start=1)
        }
        tier, top = tiers(topology), top_switches(topology)
        self.leaves = [name for name in tier if name not in top]
        self.spines = [name for name in tier if tier[name] > 1]
        ends = [(near, topology.peer(near)) for near in uplinks(topology)]
        self.pairs = [(near.node, far.node, self._links.number(near), self._links.number(far)) for near, far in ends]

    def load(self, lanes: Iterable[LaneRates]) -> FabricLoad:
        """The load of the sending lanes. Rates include the headers of full packets."""
        sending = [lane for lane in lanes if lane.tx_bps]
        inside = [lane for lane in sending if lane.device.address in self._hosts and lane.lane.peer in self._hosts]
        self._learn({_key(lane) for lane in inside} - self._rows.keys())
        bps = np.zeros(len(self._links))
        flows: dict[int, list[FlowOnLink]] = {}
        for lane in inside:
            mtu = lane.device.path_mtu
            rate = (lane.tx_bps or 0.0) * (mtu + self._header_bytes) / mtu
            flow = FlowOnLink(self._hosts[lane.device.address], self._hosts[lane.lane.peer], lane.lane.port, rate)
            for link in self._rows[_key(lane)]:
                bps[link] += rate
                flows.setdefault(link, []).append(flow)
        return FabricLoad(bps / self._links.rate_bps, flows, len(sending) - len(inside))

    def mapped(self, ports: Collection[PortRates]) -> Mapped:
        """Which ports of the fabric these are."""
        return mapped(self._links.topology, map(interface_of, ports))

    def measured(self, load: FabricLoad, ports: Collection[PortRates]) -> FabricLoad:
        """The load with the utilisation that was measured at these ports, as far as they are `mapped`."""
        utilisation = load.utilisation.copy()
        at = self.mapped(ports).ports
        for rates in ports:
            port = at.get(interface_of(rates))
            if port is None:
                continue
            link = self._links.number(port)
            if rates.tx_bps is not None:
                utilisation[link] = rates.tx_bps / self._links.rate_bps[link]
            if rates.rx_bps is not None:
                utilisation[Links.back(link)] = rates.rx_bps / self._links.rate_bps[link]
        return FabricLoad(utilisation, load.flows, load.outside)

    def _learn(self, keys: set[_Key]) -> None:
        """Compute the paths of flows that are new. A flow without a route has no links."""
        if not keys:
            return
        ordered = sorted(keys)
        fields = FlowFields(
            src=address_array(ip_address(key[0]) for key in ordered),
            dst=address_array(ip_address(key[1]) for key in ordered),
            sport=np.array([key[2] for key in ordered], dtype=np.uint16),
            dport=np.array([key[3] for key in ordered], dtype=np.uint16),
            proto=np.array([key[4] for key in ordered], dtype=np.uint8),
        )
        try:
            rows = hashed_paths(self._links, fields, self._hash, self._forwarding).tolist()
        except NoRouteError:
            rows = [[] for _ in ordered]
        self._rows |= {key: [link for link in row if link >= 0] for key, row in zip(ordered, rows, strict=True)}

    @property
    def ports(self) -> tuple[PortRef, ...]:
        """The egress port of every link."""
        return self._links.ports

    def link(self, port: PortRef) -> int:
        """The link that leaves by a port. Raises KeyError."""
        return self._links.number(port)

    def name(self, link: int) -> str:
        """A link's ends, as `leaf1 to spine2`."""
        port = self._links.ports[link]
        return f"{port.node} to {self._links.topology.peer(port).node}"

    def hottest(self, load: FabricLoad) -> int | None:
        """The busiest link between two tiers, None while all are idle."""
        links = np.array([link for _, _, up, down in self.pairs for link in (up, down)], dtype=np.int64)
        if not links.size or not load.utilisation[links].any():
            return None
        return int(links[np.argmax(load.utilisation[links])])

    def heat(self, load: FabricLoad) -> dict[str, list[tuple[float, float]]]:
        """By leaf: the utilisation up to and down from each spine. Of parallel links the busiest counts."""
        worst = {(leaf, spine): (0.0, 0.0) for leaf in self.leaves for spine in self.spines}
        for leaf, spine, up, down in self.pairs:
            before = worst[leaf, spine]
            worst[leaf, spine] = (
                max(before[0], float(load.utilisation[up])),
                max(before[1], float(load.utilisation[down])),
            )
        return {leaf: [worst[leaf, spine] for spine in self.spines] for leaf in self.leaves}

    def advice(self, load: FabricLoad) -> str:
        """One or two sentences: the busiest link, its flows, and what would help."""
        link = self.hottest(load)
        if link is None:
            return "No lane sends between leaves."
        flows = sorted(load.flows.get(link, ()), key=lambda flow: -flow.bps)
        named = ", ".join(f"{flow.src} to {flow.dst} port {flow.port}" for flow in flows[:_FLOWS_NAMED])
        named = named or "no lane seen here"
        more = f" and {len(flows) - _FLOWS_NAMED} more" if len(flows) > _FLOWS_NAMED else ""
        busy = load.utilisation[link]
        said = f"Busiest: {self.name(link)}, {busy:.0%}, with {named}{more}."
        if busy < _FULL or len(flows) < 2:
            return said
        return f"{said} {self._remedy(load, link)}"

    def _remedy(self, load: FabricLoad, link: int) -> str:
        leaf, up = next((leaf, link == up) for leaf, _, up, down in self.pairs if link in (up, down))
        beside = [up_link if up else down for other, _, up_link, down in self.pairs if other == leaf]
        least = min(beside, key=lambda other: load.utilisation[other])
        if load.utilisation[least] > _SPARE:
            return f"All links of {leaf} in this direction are busy: other paths would not help."
        return (
            f"{self.name(least)} carries {load.utilisation[least]:.0%}: more lanes, policy adaptive or a path service "
            "would use it."
        )


def interface_of(rates: PortRates) -> Interface:
    """The interface to which measured rates belong."""
    return Interface(rates.switch, rates.port, rates.neighbour)


def _key(lane: LaneRates) -> _Key:
    protocol = IPPROTO_TCP if lane.device.protocol == "tcp" else IPPROTO_UDP
    return lane.device.address, lane.lane.peer, lane.lane.port, lane.device.udp_port, protocol
