# SPDX-License-Identifier: Apache-2.0
"""The flows that the switches of a fabric see: each is reported once."""

from collections.abc import Mapping
from typing import Protocol

from netmodel import Flow, PortRef, Topology, forwarding
from testbed.analysis.observations import SeenFlow


class Observed(Protocol):
    """A fabric whose flows can be observed, as far as it is used here."""

    def observed_ports(self, switch_name: str) -> Mapping[Flow, int]:
        """The port by which the switch sent each flow that had several next hops."""


class SeenFlows:
    """Watches the switches that have a choice for some destination."""

    def __init__(self, fabric: Observed, topology: Topology) -> None:
        self._fabric = fabric
        self._seen: set[tuple[str, Flow]] = set()
        routes = forwarding(topology).groups
        self._choosing = [
            switch for switch, groups in routes.items() if any(len(ports) > 1 for ports in groups.values())
        ]

    def forget(self) -> None:
        """Report flows again: the fabric has forgotten what it saw."""
        self._seen.clear()

    def fresh(self) -> list[SeenFlow]:
        """Flows that are new since the last call. The datapath also remembers those of earlier runs."""
        found: dict[Flow, list[str]] = {}
        for switch in self._choosing:
            for flow, port in self._fabric.observed_ports(switch).items():
                if (switch, flow) not in self._seen:
                    self._seen.add((switch, flow))
                    found.setdefault(flow, []).append(str(PortRef(switch, port)))
        return [
            SeenFlow(
                src=str(flow.src),
                dst=str(flow.dst),
                src_port=flow.src_port,
                dst_port=flow.dst_port,
                protocol=flow.protocol,
                ports=ports,
            )
            for flow, ports in found.items()
        ]
