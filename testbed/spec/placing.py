# SPDX-License-Identifier: Apache-2.0
"""The jobs of a spec, and the hosts, NICs and switch ports that it names. Raises Misfit for what the topology lacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from netmodel import PortRef, Topology, raise_all
from sdn.isolation.optical_clos import OpticalClos
from testbed.misfit import Misfit
from testbed.plan.placement import PlacementError, Rule, isolated, place
from testbed.spec.findings import Findings
from testbed.spec.written import Placement, Spec

DEFAULT_RULE: Rule = "in_order"
"""Of a spec without placement, or with one that has neither hosts nor a rule."""


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
    """The hosts by rank; `seed` is the run's. Not for rule `vclos`."""
    if placement.hosts is None:
        assert placement.rule != "vclos"  # which places jobs, see isolation_of
        ranks = placement.ranks or len(topology.hosts)
        draw = [placement.seed, seed] if placement.redraw else placement.seed
        try:
            return place(topology, placement.rule or DEFAULT_RULE, ranks, draw)
        except PlacementError as error:
            raise Misfit(str(error), "placement") from error
    hosts = tuple(placement.hosts)
    found = []
    for index, host in enumerate(hosts):
        if not topology.has_host(host):
            found.append(Misfit(f"topology {topology.name} has no host {host!r}", "placement", "hosts", index))
        elif host in hosts[:index]:
            found.append(Misfit(f"host {host} has a rank already; name each host once", "placement", "hosts", index))
    raise_all(found)
    return hosts


def nic_index(nic: str, topology: Topology, hosts: Sequence[str], key: str, found: Findings) -> int | None:
    """The index that `nic`, the value of `key`, has on every one of `hosts`; None where it has none."""
    if not found.fit(key):
        return None
    indices = set()
    for host in hosts:
        names = [candidate.name for candidate in topology.host(host).nics]
        if nic not in names:
            said = f"host {host} has no device {nic!r}; let {key} be one that it has: {', '.join(names)}"
            found.add(Misfit(said, key))
            return None
        indices.add(names.index(nic))
    if len(indices) > 1:
        found.add(Misfit(f"{nic} is not at the same place on every host", key))
        return None
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
