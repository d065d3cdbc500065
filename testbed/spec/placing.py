# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a spec are: the jobs, their hosts, NICs and ports. Raises Misfit for what the topology lacks."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from netmodel import (
    PortRef,
    Topology,
)
from sdn.isolation.optical_clos import OpticalClos
from testbed.errors import Misfit
from testbed.plan.placement import PlacementError, isolated, place
from testbed.spec.written import Placement, Spec


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that run the workload among themselves, numbered from 0 within it."""

    name: str
    first: int
    """Its rank 0 among all of the experiment."""
    size: int

    @property
    def ranks(self) -> range:
        """Its ranks among all of the experiment."""
        return range(self.first, self.first + self.size)


def job_sizes(spec: Spec) -> int | list[int] | dict[str, int]:
    """The spec's, or the workload's where it has its own."""
    if (sizes := spec.workload.job_sizes) is None:
        return spec.jobs
    if spec.jobs != 1:
        raise Misfit(f"the models of workload {spec.workload.kind} are the jobs; leave it out", "jobs")
    return sizes


def jobs_of(
    jobs: int | list[int] | dict[str, int], ranks: int, where: tuple[str | int, ...] = ("jobs",)
) -> tuple[Job, ...]:
    """The ranks of each job: a number of jobs parts them evenly, otherwise the sizes are given.

    Raises Misfit, at `where` in the spec, for sizes that do not add up.
    """
    if isinstance(jobs, int):
        if not 1 <= jobs <= ranks // 2:
            raise Misfit(f"{jobs} jobs of two ranks or more do not fit {ranks} ranks", "jobs")
        bounds = [job * ranks // jobs for job in range(jobs + 1)]
        names = [f"job{n}" for n in range(1, jobs + 1)]
    else:
        named = jobs if isinstance(jobs, dict) else {f"job{n}": size for n, size in enumerate(jobs, start=1)}
        if not named or min(named.values()) < 2 or sum(named.values()) != ranks:
            raise Misfit(f"the sizes of the jobs must be 2 or more and add up to the {ranks} ranks placed", *where)
        bounds = [0, *accumulate(named.values())]
        names = list(named)
    return tuple(Job(name, first, stop - first) for name, (first, stop) in zip(names, pairwise(bounds), strict=True))


def isolation_of(spec: Spec, topology: Topology) -> OpticalClos:
    """Hosts and a virtual Clos for every job. Raises Misfit when a job does not fit."""
    if not {"leaf", "spine"} <= {switch.role for switch in topology.switches}:
        raise Misfit(f"topology {topology.name} has no leaves and spines for rule vclos", "placement")
    ranks = spec.placement.ranks
    if ranks is None:
        sizes = [] if isinstance(spec.jobs, int) else spec.jobs
        ranks = sum(sizes.values() if isinstance(sizes, dict) else sizes) or len(topology.hosts)
    try:
        return isolated(topology, {job.name: job.size for job in jobs_of(spec.jobs, ranks)})
    except PlacementError as error:
        raise Misfit(str(error), "placement" if isinstance(spec.jobs, int) else "jobs") from error


def hosts_of(placement: Placement, topology: Topology, seed: int) -> tuple[str, ...]:
    """The hosts by rank; `seed` is the run's."""
    if placement.rule is not None and placement.rule != "vclos":
        ranks = placement.ranks or len(topology.hosts)
        try:
            return place(
                topology, placement.rule, ranks, [placement.seed, seed] if placement.redraw else placement.seed
            )
        except PlacementError as error:
            raise Misfit(str(error), "placement") from error
    hosts = tuple(placement.hosts or ())
    for index, host in enumerate(hosts):
        if not topology.has_host(host):
            raise Misfit(f"topology {topology.name} has no host {host!r}", "placement", "hosts", index)
        if host in hosts[:index]:
            raise Misfit(f"host {host} has a rank already, and each host runs one", "placement", "hosts", index)
    return hosts


def nic_index(nic: str, topology: Topology, hosts: tuple[str, ...], key: str) -> int:
    """The index that `nic` has on every one of `hosts`."""
    indices = set()
    for host in hosts:
        names = [candidate.name for candidate in topology.host(host).nics]
        if nic not in names:
            raise Misfit(f"host {host} has no device {nic!r}; let {key} be one that it has: {', '.join(names)}", key)
        indices.add(names.index(nic))
    if len(indices) > 1:
        raise Misfit(f"{nic} is not at the same place on every host", key)
    return indices.pop()


def port_named(text: str, topology: Topology, *where: str | int) -> PortRef:
    """A switch port written SWITCH:NUMBER, at that place of the spec."""
    try:
        port = PortRef.parse(text)
        topology.switch(port.node)
        topology.link_at(port)
    except (ValueError, KeyError):
        raise Misfit(f"{text!r} is no connected switch port; write it like 'leaf1:5'", *where) from None
    return port
