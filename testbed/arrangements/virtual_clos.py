# SPDX-License-Identifier: Apache-2.0
"""Jobs placed by vClos or OCS-vClos: hosts and links of their own, on circuits that are set once."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from netmodel import Circuits, Link, PortRef, Topology, links_with_circuits, with_circuits
from sdn.isolation.optical_clos import OpticalClos
from sdn.isolation.virtual_clos import VirtualClos
from testbed.arrangements.base import Arrangement, Arranger, JobHosts, RunTraffic, Section, Table


class SwitchesCircuits(Protocol):
    """A fabric with optical switches, as far as it is used here."""

    def set_circuits(self, circuits: Circuits, reconfiguration_s: float) -> None:
        """Set the circuits of the named optical switches. Returns when they carry traffic."""


@dataclass(frozen=True, eq=False)
class PlacedByVclos(Arrangement):
    """The hosts and links of each job, which do not depend on the seed."""

    cabled: Topology
    placed: OpticalClos
    reconfiguration_s: float
    """How long ports are dark while circuits change, in seconds."""

    @property
    def hosts(self) -> JobHosts:
        """The hosts that vClos chose."""
        return {job.job: job.hosts for job in self.placed.clos.jobs}

    @property
    def topology(self) -> Topology:
        """The fabric that packet switches see: cables through optical switches are the links that circuits form."""
        return with_circuits(self.cabled, self.placed.circuits)

    def isolation(self) -> VirtualClos:
        """The steering that keeps each job to its links."""
        return self.placed.clos

    def dead_links(self, cables: frozenset[Link]) -> frozenset[Link]:
        """The links that run through dead cables, by way of circuits."""
        return links_with_circuits(self.cabled, self.placed.circuits, cables) if self.placed.circuits else cables

    def on(self, fabric: SwitchesCircuits) -> Arranger:
        """Sets the circuits, if there are any."""
        return _Once(fabric, self.placed.circuits, self.reconfiguration_s) if self.placed.circuits else Arranger()

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        """The circuits of each job, if there are any."""
        if not self.placed.circuits:
            return ()
        topology = self.topology
        rows = []
        for job in self.placed.clos.jobs:
            joined = sorted({_ends(topology, port) for port in job.uplinks})
            rows.append((job.job, [f"{one} – {other}" for one, other in joined] or "none: under one leaf"))
        note = (
            "Circuits are set once, before the first run, for all policies. The figure of the fabric shows them as "
            "links. A port between two leaves counts as an uplink."
        )
        return [Section("jobs", "Optical circuits of each job", [Table(["job", "circuits"], rows)], note=note)]


class _Once(Arranger):
    """Sets circuits before the first run."""

    def __init__(self, fabric: SwitchesCircuits, circuits: Circuits, reconfiguration_s: float) -> None:
        self._fabric, self._circuits, self._reconfiguration_s = fabric, circuits, reconfiguration_s

    def prepare(self, dying: Collection[str]) -> None:
        self._fabric.set_circuits(self._circuits, self._reconfiguration_s)


def _ends(topology: Topology, port: PortRef) -> tuple[PortRef, PortRef]:
    """Both ends of a link, sorted."""
    one, other = sorted((port, topology.peer(port)))
    return one, other
