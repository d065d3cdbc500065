# SPDX-License-Identifier: Apache-2.0
"""Hosts with a NIC for a network near them, as rails and HB domains have: which pairs use it, and detours over it."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Protocol

from netmodel import PortRef, Topology
from sdn.failover.detours import Detours, detours
from testbed.arrangements.base import Arrangement, Arranger, RunTraffic, Section, Table


class Detouring(Protocol):
    """A fabric whose hosts can send around a dead switch, as far as it is used here."""

    def allow_detours(self) -> None:
        """Prepare hosts and switches for `set_detours`."""

    def set_detours(self, plan: Detours) -> None:
        """Make hosts whose rail is dead send over others as planned, and no longer as before."""


@dataclass(frozen=True, eq=False)
class LocalNetworks(Arrangement):
    """Hosts whose NIC `local_nic` is on one switch use it between them; all others use `nic`. Both are indices."""

    SEVERAL_NICS = True
    HAS_DETOURS = True

    topology: Topology
    nic: int
    local_nic: int
    names: tuple[str, str]
    """The devices' names of `nic` and `local_nic`."""

    @cached_property
    def _near(self) -> dict[str, str]:
        """By host: the switch of `local_nic`."""
        with_both = (host.name for host in self.topology.hosts if self.local_nic < len(host.nics))
        return {host: self.topology.peer(PortRef(host, self.local_nic + 1)).node for host in with_both}

    def nics(self, source: str, destination: str, route: int = 0) -> tuple[int, int]:
        """The index of the NIC of the network that both hosts are on, twice."""
        nic = self.local_nic if self._near[source] == self._near[destination] else self.nic
        return nic, nic

    def detours(self, dead: Collection[str]) -> Detours:
        """Ways around dead rails, over other rails and the near networks of both ends."""
        return detours(self.topology, dead, self.nic, self.local_nic) if dead else Detours()

    def on(self, fabric: Detouring) -> Arranger:
        """Sends around the switches that events kill."""
        return _Detours(fabric, self)

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        """Scheduled and counted bytes of each switch that has hosts, as means over each policy's runs."""
        rows: list[Sequence[str]] = []
        for policy, own in groupby(runs, key=lambda run: run.policy):
            several = [(self._due(run), self._counted(run)) for run in own]
            for switch in self._homes():
                numbers = [
                    fmean(each[kind][switch, to_hosts] for each in several) / 1e6
                    for to_hosts in (True, False)
                    for kind in (0, 1)
                ]
                rows.append((policy, switch, *(f"{number:.3f}" for number in numbers)))
        headings = ["policy", "switch", "payload due\nto hosts (MB)", "counted\nto hosts (MB)"]
        headings += ["payload due to\nother switches (MB)", "counted to\nother switches (MB)"]
        note = (
            f"Due is what the workload's schedule sends by each network, {self.names[0]} or {self.names[1]}; relayed "
            "data count at every hop. Counted is what left the switch, with headers and acknowledgements, as a mean "
            "over the seeds."
        )
        return [Section("links", "Predicted and counted traffic by network", [Table(headings, rows)], note=note)]

    def _homes(self) -> list[str]:
        """The switches with hosts, in the topology's order."""
        homes = {
            self.topology.peer(PortRef(host.name, nic + 1)).node
            for host in self.topology.hosts
            for nic in range(len(host.nics))
        }
        return [switch.name for switch in self.topology.switches if switch.name in homes]

    def _due(self, run: RunTraffic) -> Counter[tuple[str, bool]]:
        """Payload bytes by switch and by whether the next hop is a host."""
        sums: Counter[tuple[str, bool]] = Counter()
        for pair, count in run.sent.items():
            near, far = (
                self.topology.peer(PortRef(host, nic + 1)).node
                for host, nic in zip(pair, self.nics(*pair), strict=True)
            )
            sums[far, True] += count
            if near != far:
                sums[near, False] += count
        return sums

    def _counted(self, run: RunTraffic) -> Counter[tuple[str, bool]]:
        """Bytes by switch and by whether the next hop is a host."""
        sums: Counter[tuple[str, bool]] = Counter()
        for name, count in run.counted.items():
            port = PortRef.parse(name)
            sums[port.node, self.topology.has_host(self.topology.peer(port).node)] += count
        return sums


class _Detours(Arranger):
    def __init__(self, fabric: Detouring, networks: LocalNetworks) -> None:
        self._fabric, self._networks = fabric, networks

    def prepare(self, dying: Collection[str]) -> None:
        if dying:
            self._fabric.allow_detours()

    def killed(self, dead: Collection[str], undo: ExitStack) -> None:
        undo.callback(self._fabric.set_detours, Detours())
        self._fabric.set_detours(self._networks.detours(dead))
