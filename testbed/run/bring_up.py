# SPDX-License-Identifier: Apache-2.0
"""Brings up the fabric that a spec names. The rest of a run knows it by protocols only."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from emul import MininetFabric, RoutedFabric
from netmodel import Link
from testbed.arrangements import Arranger
from testbed.run.console.fabric import ConsoleFabric
from testbed.run.events import faults_of
from testbed.run.fabric import Fabric
from testbed.run.routers import Routers
from testbed.run.steering import SteeredSwitches
from testbed.run.switches import Switches
from testbed.spec import BareFabric, Experiment, OpenFlowSettings

OnDead: TypeAlias = Callable[[Sequence[Link]], None]
"""Called with the links that have died, whenever that changes."""


@dataclass(frozen=True, slots=True)
class Up:
    """A fabric that is up."""

    fabric: Fabric
    switches: Switches
    arrangers: Sequence[Arranger]
    """Those of the experiment's arrangements."""
    host_pid: Callable[[str], int]
    """The id of a process in the namespaces of a host."""
    console_fabric: ConsoleFabric
    """The fabric, for commands of users."""


def brought_up(experiment: Experiment, log_dir: Path, on_dead: OnDead) -> AbstractContextManager[Up]:
    """The fabric of an experiment, up for as long as the context is entered. Raises the errors of `emul`."""
    if experiment.spec.fabric_kind.routers:
        return _routers(experiment, log_dir)
    return _switches(experiment, log_dir, on_dead)


def bare_fabric(bare: BareFabric, log_dir: Path) -> AbstractContextManager[ConsoleFabric]:
    """A fabric on which nothing runs, up for as long as the context is entered. Raises the errors of `emul`."""
    faults = faults_of(bare.links)
    if bare.kind.routers:
        return RoutedFabric(
            bare.built,
            log_dir=log_dir,
            faults=faults,
            ecmp_hash=bare.routers.ecmp_hash(bare.built),
            unnumbered=bare.routers.unnumbered,
        )
    app = _app(bare.openflow)
    return MininetFabric(bare.built, log_dir=log_dir, faults=faults, pinning=bare.pinning, app=app)


@contextmanager
def _routers(experiment: Experiment, log_dir: Path) -> Iterator[Up]:
    """Routers find ways around dead links themselves, so that arrangements have nothing to do."""
    faults = faults_of(experiment.spec.links)
    with RoutedFabric(
        experiment.topology,
        log_dir=log_dir,
        pcap=experiment.pcap,
        faults=faults,
        management=_has_service(experiment),
        ecmp_hash=experiment.spec.routers.ecmp_hash(experiment.topology),
        unnumbered=experiment.spec.routers.unnumbered,
        segments=experiment.spec.pinning == "srv6",
    ) as fabric:
        yield Up(fabric, Routers(fabric), (), fabric.host_pid, fabric)


@contextmanager
def _switches(experiment: Experiment, log_dir: Path, on_dead: OnDead) -> Iterator[Up]:
    rdma = experiment.spec.fabric_kind.rdma
    with MininetFabric(
        experiment.cabled,
        log_dir=log_dir,
        datapath="kernel" if rdma else "user",
        nics="rxe" if rdma else "plain",
        pcap=experiment.pcap,
        pinning=experiment.spec.switches_pin,
        app=_app(experiment.spec.openflow),
        faults=faults_of(experiment.spec.links),
        management=_has_service(experiment),
        on_dead=on_dead,
    ) as fabric:
        arrangers = [arrangement.on(fabric) for arrangement in experiment.arrangements]
        yield Up(fabric, SteeredSwitches(fabric, experiment), arrangers, fabric.host_pid, fabric)


def _app(openflow: OpenFlowSettings | None) -> Path | None:
    """The file with the user's app, if the switches have one."""
    return None if openflow is None else Path(openflow.app)


def _has_service(experiment: Experiment) -> bool:
    """Whether hosts have to reach a path service."""
    return any(policy.needs_service for policy in experiment.spec.policies)
