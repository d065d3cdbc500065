# SPDX-License-Identifier: Apache-2.0
"""The kinds of fabrics that a spec can name, and what each of them has."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from emul.shaping import burst_bytes
from netmodel import Topology
from testbed.bursts import Burst, no_burst
from testbed.conflict import Conflict
from testbed.policies import PolicyKind

FabricName = Literal["mininet", "routed", "fluid", "packet", "softroce"]

_ALL_FAULTS = frozenset({"loss", "corruption", "mark_above", "delay", "reorder", "late_by"})


@dataclass(frozen=True, slots=True)
class FabricKind:
    """What a kind of fabric has. By default it sends real packets from the engine's back end `soft`."""

    name: FabricName
    said: str
    """A sentence or two of the report: how much of it is real. Empty where all of it is."""
    modelled: bool = False
    """It is computed: no packets, no privileges, nothing to capture, no path service."""
    packets: bool = True
    """It has packets, which can be lost and sent again."""
    rdma: bool = False
    """Hosts have RDMA devices of the kernel instead of plain NICs."""
    routers: bool = False
    """Switches are routers with BGP: any of them may die and return, and none is steered."""
    time_factor: float = 1.0
    """Factor on all timeouts of a spec."""
    suggested: bool = True
    """Errors name it as a way out."""
    faults: frozenset[str] = frozenset()
    """The settings of `links` that it has."""
    changes_links: bool = True
    """Events cut, degrade and mend links."""
    kills_switches: bool = True
    """Events kill switches of rails."""
    joins_hosts: bool = True
    """Optical switches can join hosts directly."""
    switch_settings: bool = False
    """Queues, marks and pauses of switches are those of the section `packet`."""
    paces: bool = False
    """Lanes may be limited to 1 / m of the rate of their host."""
    shares_lanes: bool = True
    """All peers of a host may share its lanes."""

    @property
    def soft(self) -> bool:
        """Whether hosts send by the engine's back end `soft`, or by a program's own sockets."""
        return not self.modelled and not self.rdma

    @property
    def burst(self) -> Burst:
        """What its ports send at once after a pause."""
        return no_burst if self.modelled else burst_bytes

    def check_addresses(self, topology: Topology) -> None:
        """Raises Conflict for a host with a loopback address where real packets go: its peers would keep them."""
        if self.modelled:
            return
        for host in topology.hosts:
            for nic in host.nics:
                if nic.address.is_loopback:
                    said = f"host {host.name!r} has the loopback address {nic.address}, where no other host reaches it"
                    raise Conflict(f"{said}; give it one like 10.0.0.1", "topology")

    def has(self, policy: PolicyKind) -> bool:
        """Whether a policy can run on it."""
        return self.name not in policy.lacking and not (self.routers and policy.steers)


_KINDS = (
    FabricKind("mininet", "", faults=_ALL_FAULTS),
    FabricKind("routed", "", routers=True, suggested=False, faults=_ALL_FAULTS, joins_hosts=False),
    FabricKind(
        "fluid",
        "This is a model: flows share links max-min fairly, and no packet was sent.",
        modelled=True,
        packets=False,
        paces=True,
        shares_lanes=False,
    ),
    FabricKind(
        "packet",
        "This is a simulation of packets, queues and retransmission. No real packet was sent.",
        modelled=True,
        faults=frozenset({"loss", "mark_above", "delay"}),
        changes_links=False,
        switch_settings=True,
    ),
    FabricKind("softroce", "", rdma=True, time_factor=10.0, suggested=False, kills_switches=False, joins_hosts=False),
)

FABRICS: MappingProxyType[FabricName, FabricKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Every kind by its name."""
