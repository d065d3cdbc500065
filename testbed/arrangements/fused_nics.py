# SPDX-License-Identifier: Apache-2.0
"""Hosts whose NICs act as one: every rank's device has all of them, and its lanes go over those whose paths work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from netmodel import PortRef, Topology
from testbed.arrangements.base import Arrangement, RunTraffic, Section, Table


@dataclass(frozen=True, eq=False)
class FusedNics(Arrangement):
    """NICs of each host, by index, that one device has. They are on networks that carry the same pairs of hosts."""

    topology: Topology
    members: tuple[int, ...]
    names: tuple[str, ...]
    """The devices' names of `members`."""

    def fused_nics(self) -> tuple[int, ...]:
        """Its members."""
        return self.members

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        """What switches sent to each of the NICs, as means over each policy's runs."""
        rows = [
            (policy, *(f"{count / 1e6:.3f}" for count in self._means(list(own)).values()))
            for policy, own in groupby(runs, key=lambda run: run.policy)
        ]
        headings = ["policy", *(f"to {name}\n(MB)" for name in self.names)]
        note = "Counted at the switches, with headers and acknowledgements, over all hosts; a mean over the seeds."
        return [Section("links", "Traffic by fused NIC", [Table(headings, rows)], note=note)]

    def summary(self, runs: Iterable[RunTraffic]) -> dict[str, Any]:
        """The bytes that switches sent to each NIC, as `bytes_to_nics`."""
        return {"bytes_to_nics": self._means(list(runs))}

    def _means(self, runs: Sequence[RunTraffic]) -> dict[str, float]:
        """By name of a NIC: the bytes that switches sent to it, as a mean over the runs."""
        ports = {
            name: [str(self.topology.peer(PortRef(host.name, nic + 1))) for host in self.topology.hosts]
            for name, nic in zip(self.names, self.members, strict=True)
        }
        return {name: fmean(_sum(run.counted, own) for run in runs) for name, own in ports.items()}


def _sum(counted: Mapping[str, int], ports: Iterable[str]) -> int:
    return sum(counted.get(port, 0) for port in ports)
