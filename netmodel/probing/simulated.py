# SPDX-License-Identifier: Apache-2.0
"""What probes would see on a fabric of routers whose topology and hash are known."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from netmodel.flow import ROCE_PORT
from netmodel.hashes.base import EcmpHash
from netmodel.next_hops import Forwarding
from netmodel.paths import Path, paths_of_ports
from netmodel.probing.observations import Observation
from netmodel.routers import router_addresses
from netmodel.topology import Topology

Naming: TypeAlias = Literal["interface", "router"]
"""The address that answers: that of the port at which the probe came in (`net.ipv4.icmp_errors_use_inbound_ifaddr=1`,
and most switches), or the router's loopback."""

_HOP_S = 10e-6  # the round trip to the first router; each further hop adds as much


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric of routers with the addresses of `router_addresses`. A leaf answers by its loopback to its own hosts."""

    topology: Topology
    ecmp_hash: EcmpHash
    naming: Naming = "interface"
    routes: Forwarding | None = None
    """With dead links, or with the order of next hops that routers have; None: as `netmodel.forwarding`."""

    def probes(
        self,
        source: str,
        destination: str,
        ports: Sequence[int],
        ttls: Iterable[int],
        *,
        destination_port: int = ROCE_PORT,
        at_s: float = 0.0,
        every_s: float = 0.001,
    ) -> Iterator[Observation]:
        """Probes by UDP from NIC 0 of one host to NIC 0 of another: each port at each TTL, one every `every_s` seconds.

        Raises as `netmodel.paths_of_ports` does.
        """
        topology = self.topology
        begin, end = (str(topology.host(name).nics[0].address) for name in (source, destination))
        paths, taken = paths_of_ports(
            topology, source, destination, self.ecmp_hash, list(ports), destination_port, routes=self.routes
        )
        routers = [self.routers(path) for path in paths]
        ttls = list(ttls)
        for port, index in zip(ports, taken.tolist(), strict=True):
            hops = routers[index]
            for ttl in ttls:
                arrives = ttl > len(hops)
                yield Observation(
                    begin,
                    end,
                    "udp",
                    port,
                    destination_port,
                    ttl,
                    "destination" if arrives else "hop",
                    end if arrives else hops[ttl - 1],
                    _HOP_S * min(ttl, len(hops) + 1),
                    at_s,
                )
                at_s += every_s

    def routers(self, path: Path) -> list[str]:
        """The addresses that answer for a path of `netmodel.equal_cost_paths`, by TTL from 1."""
        addresses = router_addresses(self.topology)
        entered = [self.topology.peer(port) for port in path[:-1]]
        if self.naming == "router":
            return [str(addresses.loopback[port.node]) for port in entered]
        return [str(addresses.port.get(port, addresses.loopback[port.node])) for port in entered]
