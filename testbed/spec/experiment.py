# SPDX-License-Identifier: Apache-2.0
"""A checked spec and what follows from it."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from netmodel import EcmpHash, Forwarding, Link, PortRef, Topology, forwarding
from sdn.failover.detours import Detours
from sdn.isolation.source_routing import SourceRouting, in_order
from sdn.isolation.virtual_clos import sub_clos
from sdn.openflow.source_rules import ecmp_hash_of
from sdn.openflow.steering import Steering
from sdn.planners import PLANNERS
from sdn.planners.disjoint import check_served
from testbed.allocation.demands import Pair, routes_of
from testbed.allocation.placement import leaf_of
from testbed.allocation.ports import RankPorts, plan_ports
from testbed.arrangements import Arrangement, Carried, JobHosts
from testbed.spec.placing import Job, hosts_of
from testbed.spec.policies import Policy
from testbed.spec.settings import SOFTROCE_TIME_FACTOR, Timeouts
from testbed.spec.written import Spec
from testbed.workloads import Transfer


@dataclass(frozen=True, slots=True)
class Experiment:
    """A checked spec and everything derived from it."""

    spec: Spec
    topology: Topology
    """The topology that packet switches see. Cables through optical switches appear as the links that circuits form."""
    cabled: Topology
    """The fabric as cabled."""
    hosts: tuple[str, ...]
    """By rank; where every seed draws another placement, those of the first seed, or of the one given to `at`."""
    seeds: tuple[int, ...]
    pcap: tuple[PortRef, ...]
    nic: int
    """Index of the NIC that carries the traffic, on every host of the placement."""
    jobs: tuple[Job, ...]
    arrangements: tuple[Arrangement, ...] = ()
    """What is set up on the fabric for the jobs; `arranged` has them for a placement."""
    ideals_s: dict[tuple[int, Job | None], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The results of `testbed.analysis.jobs.ideal_at`, by seed and job."""
    _placed: dict[int, "Experiment"] = field(default_factory=dict, init=False, repr=False, compare=False)
    _moved: dict[int, tuple[Transfer, ...]] = field(default_factory=dict, repr=False, compare=False)
    """The transfers of the seed that was asked for last; one dict for the placements of all seeds."""

    def at(self, seed: int) -> "Experiment":
        """The experiment with the placement of that seed."""
        if not self.spec.placement.redraw:
            return self
        if seed not in self._placed:
            self._placed[seed] = replace(self, hosts=hosts_of(self.spec.placement, self.topology, seed))
        return self._placed[seed]

    @property
    def job_hosts(self) -> JobHosts:
        """The hosts of each job."""
        return {job.name: tuple(self.hosts[rank] for rank in job.ranks) for job in self.jobs}

    @property
    def arranged(self) -> tuple[Arrangement, ...]:
        """The arrangements for this placement. Raises ValueError where one is impossible."""
        if not self.arrangements:
            return ()
        hosts = self.job_hosts
        return tuple(one.at(hosts) for one in self.arrangements)

    @property
    def path_arrangement(self) -> Arrangement | None:
        """The arrangement that decides the path of every packet; None where switches' routes do."""
        return next((one for one in self.arranged if one.DECIDES_PATHS), None)

    @property
    def several_nics(self) -> bool:
        """Whether pairs of ranks use different NICs."""
        return any(one.SEVERAL_NICS for one in self.arrangements)

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the spec, extended on slow fabrics."""
        limits = self.spec.timeouts
        if self.spec.fabric != "softroce":
            return limits
        return Timeouts(**{name: limit * SOFTROCE_TIME_FACTOR for name, limit in limits.model_dump().items()})

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Every host that has a rank with some seed, in the order of first use."""
        return tuple(dict.fromkeys(host for seed in self.seeds for host in self.at(seed).hosts))

    def job_of(self, rank: int) -> Job:
        """The job that a rank belongs to."""
        return next(job for job in self.jobs if rank in job.ranks)

    def transfers(self, seed: int) -> tuple[Transfer, ...]:
        """The transfers of all jobs between ranks of the experiment, in ascending steps."""
        if seed not in self._moved:
            self._moved.clear()  # schedules are large
            moved = [transfer for number in range(len(self.jobs)) for transfer in self._schedule(number, seed)]
            self._moved[seed] = tuple(sorted(moved, key=lambda transfer: transfer.step))
        return self._moved[seed]

    def transfers_of(self, job: Job, seed: int) -> list[Transfer]:
        """The transfers of one job between ranks of the experiment, in ascending steps."""
        ranks = job.ranks
        return [transfer for transfer in self.transfers(seed) if transfer.src in ranks]

    def _schedule(self, number: int, seed: int) -> Iterator[Transfer]:
        first = self.jobs[number].first
        for moved in self.spec.workload.of_job(number).schedule(self.jobs[number].size, seed):
            yield replace(moved, src=first + moved.src, dst=first + moved.dst) if first else moved

    def stranded(self, seed: int, dead_links: frozenset[Link] = frozenset()) -> Transfer | None:
        """The first of the transfers for which there is no way while these links of the topology are dead, if any.

        None where an arrangement decides the paths, which are planned before a run.
        """
        return next(self.stranded_all(seed, dead_links), None)

    def stranded_all(self, seed: int, dead_links: frozenset[Link]) -> Iterator[Transfer]:
        """Every transfer for which there is no way while these links are dead."""
        if self.path_arrangement is not None:
            return
        placed, groups = self.at(seed), forwarding(self.topology, dead_links).groups
        for transfer in placed.transfers(seed):
            own, other = placed.nics_between(transfer.src, transfer.dst)
            near = PortRef(placed.hosts[transfer.src], own + 1)
            address = self.topology.host(placed.hosts[transfer.dst]).nics[other].address
            if self.topology.link_at(near) in dead_links or address not in groups[self.topology.peer(near).node]:
                yield transfer

    def cable(self, port: str) -> Link:
        """The cable in a port that the spec names. Raises KeyError."""
        return self.cabled.link_at(PortRef.parse(port))

    def killed_links(self, switches: Collection[str]) -> list[Link]:
        """The links that have an end at one of these switches."""
        return [link for link in self.topology.links if {link.a.node, link.b.node} & set(switches)]

    def detours(self, dead: Collection[str]) -> Detours:
        """The ways around these switches. Raises ValueError where there is none."""
        return next((found for one in self.arranged if (found := one.detours(dead)).ways), Detours())

    def dead_links(self, cables: frozenset[Link]) -> frozenset[Link]:
        """The links of the topology that are dead when these cables of the fabric are."""
        for one in self.arrangements:
            cables = one.dead_links(cables)
        return cables

    def steering(self, name: str) -> Steering | None:
        """The steering that takes precedence over routes under the policy of that name. Raises ValueError."""
        policy = next(policy for policy in self.spec.policies if policy.name == name)
        if policy.policy == "source_routing":
            return in_order(self.topology) if policy.uplinks is None else SourceRouting(policy.uplinks)
        if policy.policy == "vclos":
            if self.nic or self.several_nics:
                raise ValueError("a virtual Clos has the first NIC of each host only; leave out nic and local_nic")
            isolations = (one.isolation() for one in self.arranged)
            own = next((isolation for isolation in isolations if isolation is not None), None)
            return sub_clos(self.topology, self.job_hosts) if own is None else own
        return None

    def routes(self, name: str) -> Forwarding:
        """The forwarding of the switches under the policy of that name while all links live. Raises ValueError."""
        steering = self.steering(name)
        return forwarding(self.topology) if steering is None else steering.routes(self.topology)

    @property
    def ecmp_hash(self) -> EcmpHash:
        """The ECMP hash of the fabric's switches."""
        return ecmp_hash_of(self.topology, self.spec.pinning)

    def ports(self, policy: Policy, seed: int) -> tuple[RankPorts, ...]:
        """The source ports of every rank's device under `policy`; the placement must be that of `seed` (see `at`).

        Raises InputError when too few ports take a path that is planned.
        """
        pinned = list(self._planned(seed)) if policy.policy == "pinned" else None
        return plan_ports(
            self.topology, self.hosts, policy.m, seed, pinned=pinned, ecmp_hash=self.ecmp_hash, nic=self.nic
        )

    def check_planner(self, policy: Policy) -> None:
        """Raises ValueError, which says why, where the planner of `policy`, if any, does not serve the topology."""
        if policy.policy == "controller":
            PLANNERS[policy.planner_name].cabling(self.topology)
        elif policy.policy == "pinned":
            for seed in self.seeds:
                placed = self.at(seed)
                ends = ((placed.hosts[one.src], placed.hosts[one.dst]) for one in placed._planned(seed))
                leaves = {host: leaf_of(self.topology, host, self.nic) for host in placed.hosts}
                check_served(self.topology, ((a, b) for a, b in ends if leaves[a] != leaves[b]), self.nic)

    def _planned(self, seed: int) -> Iterator[Transfer]:
        return (one for one in self.transfers(seed) if self.is_planned(one.src, one.dst))

    @property
    def ranks(self) -> int:
        """The number of ranks of all jobs."""
        return len(self.hosts)

    def address(self, rank: int, nic: int | None = None) -> str:
        """The address of a rank's NIC, of the one that carries the traffic unless another is named."""
        return str(self.topology.host(self.hosts[rank]).nics[self.nic if nic is None else nic].address)

    def line_rate_bps(self, rank: int, nic: int | None = None) -> int:
        """The rate of the link that such a NIC is plugged into."""
        return self.topology.link_at(PortRef(self.hosts[rank], (self.nic if nic is None else nic) + 1)).rate_bps

    def is_planned(self, src: int, dst: int) -> bool:
        """Whether a planner may choose the path between two ranks: other NICs are on networks without a choice."""
        return self.nics_between(src, dst)[0] == self.nic

    def nics_between(self, src: int, dst: int, route: int = 0) -> tuple[int, int]:
        """Indices of the NICs by which data go from one rank to another: the sender's and the receiver's."""
        answers = (one.nics(self.hosts[src], self.hosts[dst], route) for one in self.arranged)
        return next((nics for nics in answers if nics is not None), (self.nic, self.nic))

    def shares(self, src: int, dst: int) -> tuple[float, ...]:
        """By route: the part of the data from one rank to another that it is to carry. They add up to 1."""
        answers = (one.shares(self.hosts[src], self.hosts[dst]) for one in self.arranged)
        return next((shares for shares in answers if shares is not None), (1.0,))

    def carried(self, transfers: Sequence[Transfer]) -> list[Carried]:
        """The payload of each route of each pair of ranks; empty unless an arrangement decides the paths."""
        if (deciding := self.path_arrangement) is None:
            return []
        sums: Counter[tuple[Pair, int]] = Counter()
        for transfer, route in zip(transfers, routes_of(transfers, self.shares), strict=True):
            sums[(transfer.src, transfer.dst), route] += transfer.count * self.spec.workload.item_bytes
        named = ((self.hosts[src], self.hosts[dst], route, count) for ((src, dst), route), count in sums.items())
        return [Carried(a, b, deciding.way(a, b, route), count) for a, b, route, count in named]


def leaf_names(experiment: Experiment) -> tuple[str, ...]:
    """The name of each rank's leaf."""
    return tuple(leaf_of(experiment.topology, host) for host in experiment.hosts)
