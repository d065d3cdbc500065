# SPDX-License-Identifier: Apache-2.0
"""Direct-connect fabrics: each job has circuits of its own between its hosts, which relay for each other (TopoOpt)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol, Self

from netmodel import Circuits, Link, Path, PortRef, Topology
from sdn.topoopt.healing import arrivals
from sdn.topoopt.relays import RelayPlan, Way
from testbed.allocation.optical import Layout, Setting, healed, setting
from testbed.arrangements.base import Arrangement, Arranger, FibreState, JobHosts, Repair, RunTraffic, Section, Table


class Relaying(Protocol):
    """A fabric of optical switches and hosts that relay, as far as it is used here."""

    def set_circuits(self, circuits: Circuits, reconfiguration_s: float) -> None:
        """Set the circuits of the named optical switches. Returns when they carry traffic."""

    def set_relays(self, plan: RelayPlan) -> None:
        """Configure hosts to send through relays and to forward for others, as planned for the current circuits."""

    def check_relays(self, plan: RelayPlan) -> None:
        """Raises RelayError when a relay of the plan does not forward."""


@dataclass(frozen=True, eq=False)
class DirectCircuits(Arrangement):
    """The circuits of every job between its ranks; `at` gives those between hosts, and who relays."""

    SEVERAL_NICS = True
    ANY_NIC = True

    topology: Topology
    layouts: tuple[Layout, ...]
    """By job."""
    reconfiguration_s: float
    """How long ports are dark while circuits change, in seconds."""
    same_nic: bool
    """Two hosts send to each other by the same NIC of each."""
    origin: str
    """A sentence that says where the circuits come from."""
    placed: Setting | None = None
    """The circuits and relays of a placement."""

    def at(self, hosts: JobHosts) -> Self:
        """The circuits between these hosts. Raises ValueError as `testbed.allocation.optical.setting` does."""
        shards = tuple(hosts.values())
        return replace(self, placed=setting(self.topology, shards, self.layouts, same_nic=self.same_nic))

    @property
    def setting(self) -> Setting:
        """The circuits and relays. Raises ValueError before `at` has said between which hosts."""
        if self.placed is None:
            raise ValueError("circuits between hosts need a placement")
        return self.placed

    def decided_paths(self) -> Self:
        """Circuits and relays leave packets no choice."""
        return self

    def after(self, state: FibreState) -> Self:
        """The circuits and relays of a run with these cables: ways over the circuits that are left or swapped."""
        return replace(self, placed=healed(self.topology, self.setting, state.dead, state.swapped))

    def repaired(self, state: FibreState) -> Repair:
        """What hosts send over other circuits (TopoOpt, section 7)."""
        now = self.after(state)
        reached = arrivals(self.topology, now.setting.circuits, state.dead)
        return Repair(now, reached, self.reconfiguration_s)

    def nics(self, source: str, destination: str, route: int = 0) -> tuple[int, int]:
        """Indices of the NICs at the ends of a route. Raises KeyError for hosts of different jobs."""
        return self.setting.nics(source, destination, route)

    def shares(self, source: str, destination: str) -> tuple[float, ...]:
        """The part of the data of each route. Raises KeyError for hosts of different jobs."""
        return tuple(connection.share for connection in self.setting.connections(source, destination))

    def way(self, source: str, destination: str, route: int) -> Way:
        """The way of data over circuits and relays."""
        return self.setting.connections(source, destination)[route].there

    def path(self, source: PortRef, destination: PortRef) -> Path:
        """The egress ports on the way, including those of optical switches."""
        return self.setting.path(self.topology, source, destination)

    def on(self, fabric: Relaying) -> Arranger:
        """Sets the circuits and relays of each placement."""
        return _Setter(fabric, self)

    def taxes(self, run: RunTraffic) -> tuple[float, float]:
        """Bytes that circuits carry over bytes that ranks send to others: predicted for payload, and as counted.

        What was counted has headers and acknowledgements, which are relayed too; it is divided by the payload alone.
        """
        wanted = sum(run.sent.values())
        predicted = sum(carried.bytes * carried.way.hops for carried in run.carried)
        arriving = (
            self.topology.peer(PortRef(host.name, nic + 1))
            for host in self.topology.hosts
            for nic in range(len(host.nics))
        )
        counted = sum(run.counted.get(str(port), 0) for port in arriving)
        return predicted / wanted, counted / wanted

    def summary(self, runs: Iterable[RunTraffic]) -> dict[str, Any]:
        """The bandwidth taxes by run."""
        taxes = [self.taxes(run) for run in runs]
        return {"bandwidth_tax": {"predicted": [tax for tax, _ in taxes], "counted": [tax for _, tax in taxes]}}

    def outcome(self, policies: Sequence[Mapping[str, Any]]) -> str:
        """The largest bandwidth taxes."""
        taxes = [policy["bandwidth_tax"] for policy in policies]
        predicted, counted = ([tax for each in taxes for tax in each[kind]] for kind in ("predicted", "counted"))
        return (
            f"Bandwidth tax: {max(predicted):.2f} predicted for payload, at most {max(counted):.2f} counted with "
            "headers and acknowledgements."
        )

    def sections(self, runs: Iterable[RunTraffic]) -> Sequence[Section]:
        """The bandwidth tax of every run, and every way of the first one."""
        taxes, ways = [], None
        for policy, own in groupby(runs, key=lambda run: run.policy):
            for run in own:
                taxes.append((policy, *(f"{tax:.3f}" for tax in self.taxes(run))))
                ways = ways or self._ways(run)
        headings = ["policy", "bandwidth tax,\npredicted for payload", "counted, with headers\nand acknowledgements"]
        table = Table(headings, taxes)
        lead = (
            f"{self.origin} If no circuit leads to a receiver, the hosts in between forward the data. A link between "
            "an optical switch and a host counts as an uplink above."
        )
        every = Table(["from", "to", "path", "bytes"], ways or [], folded="Every pair of the first run")
        return [Section("placement", "Forwarding through hosts", [table, every], lead)]

    def _ways(self, run: RunTraffic) -> list[tuple[str, str, str, str]]:
        """For each route of a run: sender, receiver, hosts on the way with the NICs that send, and bytes."""
        rows = []
        for carried in run.carried:
            hosts = ((port.node, self.topology.host(port.node).nics[port.port - 1]) for port in carried.way.ports)
            stops = [f"{host} ({nic.name})" for host, nic in hosts]
            rows.append(
                (carried.source, carried.destination, " → ".join([*stops, carried.destination]), f"{carried.bytes:,}")
            )
        return rows


class _Setter(Arranger):
    """Sets circuits and relays wherever the next run needs others than the last one, and checks the relays."""

    def __init__(self, fabric: Relaying, circuits: DirectCircuits) -> None:
        self._fabric, self._circuits = fabric, circuits
        self._placed = circuits
        self._current: Setting | None = None

    def before_run(self, hosts: JobHosts, undo: ExitStack) -> None:
        self._placed = self._circuits.at(hosts)
        if self._placed.setting is not self._current:
            self._set(self._placed.setting)
        self._fabric.check_relays(self._placed.setting.plan)

    def receivers(self, cable: Link) -> Collection[PortRef]:
        found, topology = self._current, self._circuits.topology
        if found is None:
            return ()
        crossing = (ends for ends in found.sent if ends in found.plan.ways)
        return {
            ends[1] for ends in crossing if any(topology.link_at(port) == cable for port in found.path(topology, *ends))
        }

    def fibres_changed(self, state: FibreState) -> None:
        self._set(self._placed.after(state).setting)  # the next run finds that it is not its own

    def _set(self, wanted: Setting) -> None:
        self._current = wanted
        self._fabric.set_circuits(wanted.circuits, self._circuits.reconfiguration_s)
        self._fabric.set_relays(wanted.plan)
