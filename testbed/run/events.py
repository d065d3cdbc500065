# SPDX-License-Identifier: Apache-2.0
"""What the events of a spec do to a fabric in a run, and how it is undone."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from emul import LinkFault
from netmodel import Link, PortRef
from testbed.arrangements import Arranger, FibreState
from testbed.run.fabric import Fabric
from testbed.run.switches import Switches
from testbed.spec import Event, Experiment, LinkSettings

_DATA_PACKET_BYTES = 200
"""Flows whose packets are smaller on average carry acknowledgements."""

_ACTIVE_S = 0.3
"""A flow that has sent nothing for this long, in seconds, no longer crosses a link."""


def faults_of(links: Mapping[str, LinkSettings]) -> dict[PortRef, LinkFault]:
    """The faults that a spec declares, by port."""
    return {
        PortRef.parse(port): LinkFault(
            loss=settings.loss,
            corruption=settings.corruption,
            mark_above_bytes=settings.mark_above,
            delay_s=settings.delay,
            reorder=settings.reorder,
            late_by_s=settings.late_by,
        )
        for port, settings in links.items()
    }


def after(state: FibreState, event: Event, cable: Callable[[str], Link]) -> FibreState:
    """The state of cables after a cut, a mend or a swap. `cable` gives the cable at a port that a spec names."""
    if event.swap is not None:
        return replace(state, swapped=(*state.swapped, (PortRef.parse(event.swap), state.dead)))
    if event.cut is not None:
        return replace(state, dead=state.dead | {cable(event.cut)})
    return state if event.mend is None else replace(state, dead=state.dead - {cable(event.mend)})


class FabricEvents:
    """Carries out the events of one run. A context manager: when it is left, the fabric is as the spec declares it.

    Where the block ends with an error, an error of undoing is dropped: the first one says more.
    """

    def __init__(
        self, experiment: Experiment, fabric: Fabric, switches: Switches, arrangers: Sequence[Arranger]
    ) -> None:
        self._experiment = experiment
        self._fabric = fabric
        self._switches = switches
        self._arrangers = arrangers
        self._declared = faults_of(experiment.spec.links)
        self._killed: list[str] = []
        self._fibres = FibreState()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._undo.close()
        except Exception:
            if error is None:
                raise

    def act(self, event: Event) -> None:
        """Change the fabric as an event says. Events of the path service change nothing here."""
        fabric, undo, cable = self._fabric, self._undo, self._experiment.cable
        if event.cut is not None:
            undo.callback(fabric.set_link, cable(event.cut), True)
            fabric.set_link(cable(event.cut), False)
        if event.mend is not None:
            fabric.set_link(cable(event.mend), True)
            fabric.set_rate(cable(event.mend), 1.0)
        if event.cut or event.mend or event.swap:
            self._fibres = after(self._fibres, event, cable)
            for arranger in self._arrangers:
                arranger.fibres_changed(self._fibres)
        self._switches.act(event, undo)
        if event.kill is not None:
            self._killed.append(event.kill)
            for arranger in self._arrangers:
                arranger.killed(self._killed, undo)
        if event.degrade is not None and event.part is not None:
            undo.callback(fabric.set_rate, cable(event.degrade), 1.0)
            fabric.set_rate(cable(event.degrade), event.part)
        faults = faults_of(event.links or {})
        for port in reversed(faults):
            undo.callback(fabric.set_faults, port, self._declared.get(port, LinkFault()))
        for port, fault in faults.items():
            fabric.set_faults(port, fault)

    def concerned(self, event: Event) -> list[str]:
        """Switch ports of the hosts that receive data across a link that ends, or whose acknowledgements cross it.

        Such a link is cut, or loses all packets, or is one of a switch that dies. All hosts, where the paths are those
        of an app of the user's.
        """
        topology = self._experiment.topology
        if not self._experiment.predicts and self._ending(event):
            # The datapath lists flows one by one only where rules look at their ports, which another app need not do.
            nics = (PortRef(host, self._experiment.nic + 1) for host in self._experiment.first_hosts)
            return sorted(str(topology.peer(nic)) for nic in nics)
        decided = {nic for link in self._ending(event) for each in self._arrangers for nic in each.receivers(link)}
        receivers = {
            seen.flow.dst if seen.bytes >= _DATA_PACKET_BYTES * seen.packets else seen.flow.src
            for link in self._ending(event)
            for seen in self._fabric.crossing(link, _ACTIVE_S)
        }
        found = decided | {topology.port_of(address) for address in receivers}
        return sorted(str(topology.peer(port)) for port in found)

    def _ending(self, event: Event) -> list[Link]:
        """The links that carry no more after an event, in at least one direction."""
        experiment = self._experiment
        if event.cut is not None:
            return [experiment.cable(event.cut)]
        if event.kill is not None:
            return experiment.killed_links([event.kill])
        silent = [port for port, fault in faults_of(event.links or {}).items() if fault.loss >= 1]
        return list(dict.fromkeys(map(experiment.topology.link_at, silent)))
