# SPDX-License-Identifier: Apache-2.0
"""Optical switches of a spec: checks of their settings, and the circuits of the jobs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from netmodel import PortRef, Topology
from sdn.topoopt import Demand, data_parallel
from testbed.allocation.demands import bytes_by_pair
from testbed.allocation.optical import Layout, Within, found, nic_at, rings
from testbed.allocation.routes import Pair
from testbed.arrangements.circuits import DirectCircuits
from testbed.conflict import Conflict
from testbed.spec.experiment import Experiment
from testbed.spec.fabrics import FABRICS
from testbed.spec.findings import Findings
from testbed.spec.instance import Instance
from testbed.spec.placing import Job
from testbed.spec.settings import Optical
from testbed.spec.written import Spec


def check_optical(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that the optical settings of the spec fit the topology and the policies."""
    if not found.fit("optical"):
        return
    roles = {switch.role for switch in topology.switches}
    if roles != {"ocs"} and any(stride != 1 for stride, _ in spec.workload.processes):
        said = "other rings have NICs of their own on direct-connect fabrics only; leave it out"
        found.add(Conflict(said, "workload", "strides"))
    if roles != {"ocs"}:
        for index, event in enumerate(spec.events):
            if event.swap is not None:
                said = f"topology {topology.name} is not a direct-connect fabric; leave it out"
                found.add(Conflict(said, "events", index, "swap"))
    asked = spec.optical is not None and (spec.optical.find or spec.optical.strides is not None)
    if "ocs" not in roles:
        if spec.optical is not None:
            found.add(Conflict(f"topology {topology.name} has no optical switches; leave it out", "optical"))
    elif roles == {"ocs"}:
        _check_swaps(spec, topology, found)
        if not asked:
            said = f"topology {topology.name} has optical switches only: say under optical what they are set to"
            found.add(Conflict(said, "topology" if spec.optical is None else "optical"))
        _check_direct(spec, found)
    else:
        if asked or (spec.optical is not None and spec.optical.routes != "one"):
            said = f"topology {topology.name} is not a direct-connect fabric; leave out strides, find and routes"
            found.add(Conflict(said, "optical"))
        if spec.placement.rule != "vclos":
            said = f"cables of topology {topology.name} end in optical switches: take rule vclos, which sets circuits"
            found.add(Conflict(said, "placement"))
        for index, policy in enumerate(spec.policies):
            if policy.needs_service:
                said = "the path service does not look through circuits; take another policy"
                found.add(Conflict(said, "policies", index, "policy"))


def _check_direct(spec: Spec, found: Findings) -> None:
    """Checks for features that do not work over circuits between hosts."""
    fabric = spec.fabric_kind
    if not fabric.joins_hosts:
        *some, last = (name for name, kind in FABRICS.items() if kind.joins_hosts)
        said = f"fabric {fabric.name} has no optical switches; use {', '.join(some)} or {last}"
        found.add(Conflict(said, "fabric"))
    if fabric.switch_settings and spec.packet.pfc:
        found.add(Conflict("relays and optical switches do not pause; leave it out", "packet", "pfc"))
    if not spec.workload.RELAYED:
        said = f"workload {spec.workload.kind} does not run over relays; take nccl or nccl_ring_allreduce"
        found.add(Conflict(said, "workload", "kind"))
    if spec.optical is not None and spec.optical.routes != "one" and spec.workload.processes:
        said = f"workload {spec.workload.kind} has one connection for each pair of ranks; leave it out"
        found.add(Conflict(said, "optical", "routes"))
    for index, policy in enumerate(spec.policies):
        if policy.kind.chooses:
            said = "over circuits a connection has one path only; take policy ecmp"
            found.add(Conflict(said, "policies", index, "policy"))


def _check_swaps(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that events swap ports of NICs whose hosts have another one."""
    for index, event in enumerate(spec.events):
        if event.swap is None:
            continue
        where = ("events", index, "swap")
        try:
            host = topology.host(nic_at(topology, PortRef.parse(event.swap)).node)
        except ValueError:
            continue  # `_checked_ports` says it
        except KeyError as error:
            found.add(Conflict(error.args[0], *where))
            continue
        if len(host.nics) < 2:
            found.add(Conflict(f"host {host.name!r} has no other NIC; give the fabric a degree of 2 or more", *where))


def laid_out(experiment: Experiment) -> Experiment:
    """The experiment with the circuits of its jobs. Raises Conflict when these are impossible."""
    optical = experiment.spec.optical
    assert optical is not None  # check_optical
    where = ("optical", "find" if optical.find else "strides")
    try:
        if optical.find:
            degree = min(len(experiment.topology.host(host).nics) for host in experiment.first_hosts)
            layouts = tuple(found(_demand(experiment, job), degree) for job in experiment.jobs)
        else:
            strides = [
                stride if isinstance(stride, int) else Within(stride.stride, stride.within)
                for stride in optical.strides or ()
            ]
            layouts = tuple(rings(job.size, strides) for job in experiment.jobs)
        shared = optical.routes == "least_load"
        if shared or any(event.cut or event.swap for event in experiment.spec.events):
            layouts = tuple(
                replace(layout, sent=tuple(_sent(experiment, job).items()), shared=shared)
                for job, layout in zip(experiment.jobs, layouts, strict=True)
            )
        circuits = DirectCircuits(
            experiment.topology, layouts, optical.reconfiguration_s, experiment.spec.workload.SAME_NIC, _origin(optical)
        )
        made = replace(experiment, arrangements=(circuits, *experiment.arrangements))
        for seed in made.seeds:
            _ = Instance(made, seed).arrangements
    except ValueError as error:
        raise Conflict(str(error), *where) from error
    if optical.find:
        _check_rings(made, layouts)
    _check_devices(made)
    return made


def _origin(optical: Optical) -> str:
    """Where the circuits come from, in a sentence."""
    if optical.find:
        return "The circuits of every run are those that TopologyFinder chose for each job."
    strides = (
        f"+{stride}" if isinstance(stride, int) else f"+{stride.stride} within {stride.within} ranks"
        for stride in optical.strides or ()
    )
    return f"Circuits of every run: rings {', '.join(strides)}, the k-th by NIC k of every host."


def _check_rings(experiment: Experiment, layouts: Sequence[Layout]) -> None:
    """Checks that an all-reduce is divided among the rings by which TopologyFinder joins its job. Raises Conflict."""
    asked = experiment.spec.workload.rings
    if asked is None:
        return  # other circuits are not rings, and a matching of an odd shard leaves a rank out
    for job, layout in zip(experiment.jobs, layouts, strict=True):
        joined = sorted({dict(layer)[0] for layer in layout.layers})  # rings may be repeated
        if asked != joined:
            raise Conflict(
                f"TopologyFinder joins {job.name} by rings, so share it out: take {joined}", "workload", "strides"
            )


def _check_devices(experiment: Experiment) -> None:
    """Checks that every process of a rank with NCCL or its driver needs one NIC only, which no other process has.

    Raises Conflict.
    """
    workload, first = experiment.spec.workload, Instance(experiment, experiment.seeds[0])
    for job in experiment.jobs:
        taken: set[int] = set()
        for stride, part in workload.processes:
            ends = {
                (job.first + transfer.src * stride % job.size, job.first + transfer.dst * stride % job.size)
                for transfer in part.schedule(job.size, experiment.seeds[0])
            }
            nics = {nic for pair in ends for nic in first.nics_between(*pair)}
            if len(nics) > 1 or nics & taken:
                raise Conflict(
                    f"workload {workload.kind} needs one NIC for each ring, and {job.name} has no circuits for that: "
                    "take the strides of the circuits, or circuits of one NIC",
                    "workload",
                    "kind",
                )
            taken |= nics


def _demand(experiment: Experiment, job: Job) -> Demand:
    """The traffic of a job. TopologyFinder distributes a ring all-reduce itself; other transfers have fixed ends."""
    workload = experiment.spec.workload
    if workload.rings is not None:
        return data_parallel(job.size, workload.bytes)
    sent = np.zeros((job.size, job.size))
    for pair, count in _sent(experiment, job).items():
        sent[pair] = count
    return Demand(job.size, (), sent)


def _sent(experiment: Experiment, job: Job) -> dict[Pair, int]:
    """Bytes by source and destination rank of a job, with the first seed."""
    workload = experiment.spec.workload
    return bytes_by_pair(workload.schedule(job.size, experiment.seeds[0]), workload.item_bytes)
