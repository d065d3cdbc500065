# SPDX-License-Identifier: Apache-2.0
"""Optical switches of a spec: checks of their settings, and the circuits of the jobs."""

from dataclasses import replace

import numpy as np

from netmodel import Topology
from sdn.topoopt import Demand, data_parallel
from testbed.misfit import Misfit
from testbed.plan.demands import bytes_by_pair
from testbed.plan.optical import found, rings
from testbed.spec.experiment import Experiment
from testbed.spec.findings import Findings
from testbed.spec.placing import Job
from testbed.spec.written import Spec
from testbed.workloads import NcclAllreduce, NcclCollective, TorchTraining
from testbed.workloads.nccl import NcclRingAllreduce
from testbed.workloads.ring_allreduce import RingAllreduce


def check_optical(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that the optical settings of the spec fit the topology and the policies."""
    if not found.fit("optical"):
        return
    roles = {switch.role for switch in topology.switches}
    if isinstance(spec.workload, NcclRingAllreduce) and spec.workload.strides != [1] and roles != {"ocs"}:
        said = "other rings have NICs of their own on direct-connect fabrics only; leave it out"
        found.add(Misfit(said, "workload", "strides"))
    asked = spec.optical is not None and (spec.optical.find or spec.optical.strides is not None)
    if "ocs" not in roles:
        if spec.optical is not None:
            found.add(Misfit(f"topology {topology.name} has no optical switches; leave it out", "optical"))
    elif roles == {"ocs"}:
        if not asked:
            said = f"topology {topology.name} has optical switches only: say under optical what they are set to"
            found.add(Misfit(said, "topology" if spec.optical is None else "optical"))
        _check_direct(spec, found)
    else:
        if asked:
            said = f"topology {topology.name} is no direct-connect fabric; leave out strides and find"
            found.add(Misfit(said, "optical"))
        if spec.placement.rule != "vclos":
            said = f"cables of topology {topology.name} end in optical switches: take rule vclos, which sets circuits"
            found.add(Misfit(said, "placement"))
        for index, policy in enumerate(spec.policies):
            if policy.policy == "controller":
                said = "the path service does not look through circuits; take another policy"
                found.add(Misfit(said, "policies", index, "policy"))


def _check_direct(spec: Spec, found: Findings) -> None:
    """Checks for features that do not work over circuits between hosts."""
    if spec.fabric not in ("mininet", "fluid", "packet"):
        found.add(Misfit(f"fabric {spec.fabric} has no optical switches; use mininet, fluid or packet", "fabric"))
    if spec.fabric == "packet" and spec.packet.pfc:
        found.add(Misfit("relays and optical switches do not pause; leave it out", "packet", "pfc"))
    if spec.fabric == "fluid" and spec.events:
        found.add(Misfit("over circuits fabric fluid has no other ways to take; use mininet", "events"))
    if isinstance(spec.workload, NcclCollective | TorchTraining):
        # They connect ranks by TCP between any of their interfaces; relays are planned for one NIC of each pair.
        said = f"workload {spec.workload.kind} does not run over relays; take nccl_ring_allreduce"
        found.add(Misfit(said, "workload", "kind"))
    for index, policy in enumerate(spec.policies):
        if policy.policy != "ecmp":
            said = "over circuits a connection has one path only; take policy ecmp"
            found.add(Misfit(said, "policies", index, "policy"))


def laid_out(experiment: Experiment) -> Experiment:
    """The experiment with the circuits of its jobs. Raises Misfit when these are impossible."""
    optical = experiment.spec.optical
    assert optical is not None  # check_optical
    where = ("optical", "find" if optical.find else "strides")
    try:
        if optical.find:
            degree = min(len(experiment.topology.host(host).nics) for host in experiment.hosts)
            layouts = tuple(found(_demand(experiment, job), degree) for job in experiment.jobs)
        else:
            layouts = tuple(rings(job.size, optical.strides or ()) for job in experiment.jobs)
        made = replace(experiment, layouts=layouts)
        for seed in made.seeds:
            _ = made.at(seed).setting
    except ValueError as error:
        raise Misfit(str(error), *where) from error
    workload = experiment.spec.workload
    for job, layout in zip(experiment.jobs, layouts, strict=True):
        strides = sorted({dict(layer)[0] for layer in layout.layers})  # rings may be repeated
        if not isinstance(workload, RingAllreduce | NcclRingAllreduce):
            continue
        if optical.find and sorted(workload.strides) != strides:
            raise Misfit(
                f"TopologyFinder joins {job.name} by rings, so share it out: take {strides}", "workload", "strides"
            )
    _check_devices(made)
    return made


def _check_devices(experiment: Experiment) -> None:
    """Checks that every process of NCCL's driver needs one NIC only, which no other process of its rank has.

    Raises Misfit.
    """
    workload = experiment.spec.workload
    if not isinstance(workload, NcclAllreduce):
        return
    for job in experiment.jobs:
        taken: set[int] = set()
        for stride, part in workload.processes:
            ends = {
                (job.first + one.src * stride % job.size, job.first + one.dst * stride % job.size)
                for one in part.schedule(job.size, experiment.seeds[0])
            }
            nics = {nic for pair in ends for nic in experiment.nics_between(*pair)}
            if len(nics) > 1 or nics & taken:
                raise Misfit(
                    f"workload {workload.kind} needs one NIC for each ring, and {job.name} has no circuits for that: "
                    "take the strides of the circuits, or circuits of one NIC",
                    "workload",
                    "kind",
                )
            taken |= nics


def _demand(experiment: Experiment, job: Job) -> Demand:
    """The traffic of a job. TopologyFinder distributes a ring all-reduce itself; other transfers have fixed ends."""
    workload = experiment.spec.workload
    if isinstance(workload, RingAllreduce | NcclRingAllreduce):
        return data_parallel(job.size, workload.bytes)
    sent = np.zeros((job.size, job.size))
    schedule = workload.schedule(job.size, experiment.seeds[0])
    for pair, count in bytes_by_pair(schedule, workload.item_bytes).items():
        sent[pair] = count
    return Demand(job.size, (), sent)
