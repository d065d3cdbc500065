# SPDX-License-Identifier: Apache-2.0
"""The jobs of a spec, and the hosts, NICs and switch ports that it names.

Functions raise Conflict for names that the topology does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from netmodel import PortRef, Topology, raise_all
from testbed.allocation.placement import PlacementError, Rule, isolated, place
from testbed.arrangements.virtual_clos import PlacedByVclos
from testbed.conflict import Conflict
from testbed.spec.findings import Findings
from testbed.spec.settings import Optical
from testbed.spec.written import Placement, Spec

DEFAULT_RULE: Rule = "in_order"
"""The rule of a spec without placement, or whose placement has neither `hosts` nor `rule`."""


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that run the workload among themselves, numbered from 0 within it."""

    name: str
    first: int
    """The number of its rank 0 among all ranks of the experiment."""
    size: int

    @property
    def ranks(self) -> range:
        """The numbers of its ranks among all ranks of the experiment."""
        return range(self.first, self.first + self.size)


def job_sizes(spec: Spec) -> int | list[int] | dict[str, int]:
    """The number or the sizes of the jobs: those of the workload if it defines them, otherwise those of the spec."""
    if (sizes := spec.workload.job_sizes) is None:
        return spec.jobs
    if spec.jobs != 1:
        workload = spec.workload
        raise Conflict(f"workload {workload.kind} has the jobs in its {workload.JOBS_KEY}; leave it out", "jobs")
    return sizes


def jobs_of(
    jobs: int | list[int] | dict[str, int], ranks: int, where: tuple[str | int, ...] = ("jobs",)
) -> tuple[Job, ...]:
    """The ranks of each job. A number of jobs divides the ranks evenly; a list or dict gives the sizes.

    Raises Conflict, at `where` in the spec, if the sizes do not add up to `ranks`.
    """
    if isinstance(jobs, int):
        if not 1 <= jobs <= ranks // 2:
            raise Conflict(f"{jobs} jobs of two ranks or more do not fit {ranks} ranks", "jobs")
        bounds = [job * ranks // jobs for job in range(jobs + 1)]
        names = [f"job{n}" for n in range(1, jobs + 1)]
    else:
        named = jobs if isinstance(jobs, dict) else {f"job{n}": size for n, size in enumerate(jobs, start=1)}
        if not named or min(named.values()) < 2 or sum(named.values()) != ranks:
            raise Conflict(f"the sizes of the jobs must be 2 or more and add up to the {ranks} ranks placed", *where)
        bounds = [0, *accumulate(named.values())]
        names = list(named)
    return tuple(Job(name, first, stop - first) for name, (first, stop) in zip(names, pairwise(bounds), strict=True))


def placed_by_vclos(spec: Spec, topology: Topology) -> PlacedByVclos:
    """Hosts and a virtual Clos for every job. Raises Conflict if a job does not fit."""
    if not {"leaf", "spine"} <= {switch.role for switch in topology.switches}:
        raise Conflict(f"topology {topology.name} has no leaves and spines for rule vclos", "placement")
    ranks, jobs = spec.placement.ranks, job_sizes(spec)
    if ranks is None:
        sizes = [] if isinstance(jobs, int) else jobs
        ranks = sum(sizes.values() if isinstance(sizes, dict) else sizes) or len(topology.hosts)
    try:
        placed = isolated(topology, {job.name: job.size for job in jobs_of(jobs, ranks)})
    except PlacementError as error:
        raise Conflict(str(error), "placement" if isinstance(spec.jobs, int) else "jobs") from error
    return PlacedByVclos(topology, placed, (spec.optical or Optical()).reconfiguration_s)


def hosts_of(placement: Placement, topology: Topology, seed: int) -> tuple[str, ...]:
    """The hosts by rank; `seed` is that of the run. For rule `vclos` use `placed_by_vclos`."""
    if placement.hosts is None:
        assert placement.rule != "vclos"
        ranks = placement.ranks or len(topology.hosts)
        draw = [placement.seed, seed] if placement.redraw else placement.seed
        try:
            return place(topology, placement.rule or DEFAULT_RULE, ranks, draw)
        except PlacementError as error:
            raise Conflict(str(error), "placement") from error
    hosts = tuple(placement.hosts)
    found = []
    for index, host in enumerate(hosts):
        if not topology.has_host(host):
            found.append(Conflict(f"topology {topology.name} has no host {host!r}", "placement", "hosts", index))
        elif host in hosts[:index]:
            found.append(Conflict(f"host {host} has a rank already; name each host once", "placement", "hosts", index))
    raise_all(found)
    return hosts


def placed_hosts(spec: Spec, topology: Topology, seed: int) -> tuple[str, ...]:
    """The hosts by rank: those of the placement, in the order in which the workload's jobs have them."""
    hosts = hosts_of(spec.placement, topology, seed)
    try:
        return spec.workload.by_job(hosts)
    except Conflict as error:
        raise error.below("workload") from None


def nic_index(nic: str, topology: Topology, hosts: Sequence[str], key: str, found: Findings) -> int | None:
    """The index of the NIC called `nic`, the value of `key`, on all `hosts`; None, and a conflict, if there is none."""
    if not found.fit(key):
        return None
    indices = set()
    for host in hosts:
        names = [candidate.name for candidate in topology.host(host).nics]
        if nic not in names:
            said = f"host {host} has no device {nic!r}; let {key} be one of its devices: {', '.join(names)}"
            found.add(Conflict(said, key))
            return None
        indices.add(names.index(nic))
    if len(indices) > 1:
        reason = f"{nic} has different port numbers on different hosts; list NICs in the same order on every host"
        found.add(Conflict(reason, key))
        return None
    return indices.pop()


def port_named(text: str, topology: Topology, *where: str | int) -> PortRef:
    """The switch port that `text` names as SWITCH:NUMBER. Raises Conflict, at `where` in the spec, if there is none."""
    try:
        port = PortRef.parse(text)
        topology.switch(port.node)
        topology.link_at(port)
    except (ValueError, KeyError):
        raise Conflict(f"{text!r} is not a connected switch port; write it like 'leaf1:5'", *where) from None
    return port


def sending_port_named(text: str, topology: Topology, *where: str | int) -> PortRef:
    """The switch port or host's NIC that `text` names as NAME:NUMBER. Raises Conflict, at `where`, if there is none."""
    try:
        port = PortRef.parse(text)
        topology.link_at(port)
    except (ValueError, KeyError):
        raise Conflict(
            f"{text!r} is not a connected port; write a switch's like 'leaf1:5', or a host's first NIC like 'h1:1'",
            *where,
        ) from None
    return port
