# SPDX-License-Identifier: Apache-2.0
"""What one seed makes of an experiment: the host of each rank, the transfers, their ports, paths and ideal times."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from netmodel import Forwarding, Link, Path, PortRef, forwarding, in_order_of
from sdn.failover.detours import Detours
from testbed.allocation.demands import busiest_s, bytes_by_pair, ideal_s, phases_of
from testbed.allocation.placement import leaf_of
from testbed.allocation.ports import RankPorts, plan_ports
from testbed.allocation.routes import Pair, routes_of
from testbed.arrangements import Arrangement, Carried, DecidedPaths, FibreState, JobHosts, Repair
from testbed.bursts import Burst, no_burst
from testbed.policies import Placed
from testbed.spec.experiment import Experiment
from testbed.spec.placing import Job, placed_hosts
from testbed.spec.policies import Policy
from testbed.workloads import Transfer


@dataclass(eq=False)
class Instance:
    """An experiment with one seed. All runs with the seed share it, because it remembers what it has computed."""

    experiment: Experiment
    seed: int
    bursts: bool = True
    """Whether ideal times leave out the bytes that ports of the fabric send at once."""
    _ideals_s: dict[Job | None, float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        spec = self.experiment.spec
        if not spec.placement.redraw:
            return self.experiment.first_hosts
        return placed_hosts(spec, self.experiment.topology, self.seed)

    @cached_property
    def job_hosts(self) -> JobHosts:
        """The hosts of each job."""
        return {job.name: tuple(self.hosts[rank] for rank in job.ranks) for job in self.experiment.jobs}

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaf of each rank's first NIC."""
        return tuple(leaf_of(self.experiment.topology, host) for host in self.hosts)

    # What is set up on the fabric

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """The arrangements of the experiment for these hosts. Raises ValueError where one is impossible."""
        return tuple(arrangement.at(self.job_hosts) for arrangement in self.experiment.arrangements)

    @cached_property
    def decided_paths(self) -> DecidedPaths | None:
        """The paths of all packets, where an arrangement decides these; None where switches' routes do."""
        answers = (arrangement.decided_paths() for arrangement in self.arrangements)
        return next((decided for decided in answers if decided is not None), None)

    def repaired(self, state: FibreState) -> Repair | None:
        """How packets go in this state of the cables, where an arrangement decides their paths."""
        answers = (arrangement.repaired(state) for arrangement in self.arrangements)
        return next((repair for repair in answers if repair is not None), None)

    def detours(self, dead: Collection[str]) -> Detours:
        """The ways around these switches. Raises ValueError where there is none."""
        return next(
            (found for arrangement in self.arrangements if (found := arrangement.detours(dead)).ways), Detours()
        )

    @cached_property
    def placed(self) -> Placed:
        """What a policy may know of a run before it begins."""
        experiment = self.experiment
        isolations = (arrangement.isolation() for arrangement in self.arrangements)
        return Placed(
            experiment.topology,
            self.hosts,
            self.job_hosts,
            experiment.nic,
            experiment.several_nics,
            next((isolation for isolation in isolations if isolation is not None), None),
        )

    def routes(self, policy: Policy) -> Forwarding:
        """The forwarding of the switches under the policy while all links live. Raises ValueError."""
        topology, steering = self.experiment.topology, policy.steering(self.placed)
        return self.unsteered if steering is None else steering.routes(topology)

    @cached_property
    def unsteered(self) -> Forwarding:
        """The forwarding of the switches that nothing steers, while all links live."""
        routes = forwarding(self.experiment.topology)
        return routes if self.experiment.next_hops is None else in_order_of(self.experiment.next_hops, routes)

    # Transfers

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The transfers of all jobs between ranks of the experiment, in ascending steps."""
        return _transfers(self.experiment, self.seed)

    def transfers_of(self, job: Job) -> list[Transfer]:
        """The transfers of one job between ranks of the experiment, in ascending steps."""
        ranks = job.ranks
        return [transfer for transfer in self.transfers if transfer.src in ranks]

    def planned(self) -> Iterator[Transfer]:
        """The transfers whose path a planner may choose."""
        return (transfer for transfer in self.transfers if self.is_planned(transfer.src, transfer.dst))

    def carried(self, transfers: Sequence[Transfer]) -> list[Carried]:
        """The payload of each route of each pair of ranks; empty unless an arrangement decides the paths."""
        if (decided := self.decided_paths) is None:
            return []
        sums: Counter[tuple[Pair, int]] = Counter()
        for transfer, route in zip(transfers, routes_of(transfers, self.shares), strict=True):
            sums[(transfer.src, transfer.dst), route] += transfer.count * self.experiment.spec.workload.item_bytes
        named = ((self.hosts[src], self.hosts[dst], route, count) for ((src, dst), route), count in sums.items())
        return [Carried(a, b, decided.way(a, b, route), count) for a, b, route, count in named]

    def stranded(self, dead_links: frozenset[Link] = frozenset()) -> Iterator[Transfer]:
        """Every transfer for which there is no way while these links of the topology are dead.

        None where an arrangement decides the paths, which are planned before a run.
        """
        if self.decided_paths is not None:
            return
        pairs = ((transfer.src, transfer.dst) for transfer in self.transfers)
        for transfer, reached in zip(self.transfers, self.reached(pairs, dead_links), strict=True):
            if not reached:
                yield transfer

    def reached(self, pairs: Iterable[Pair], dead_links: frozenset[Link]) -> Iterator[bool]:
        """Whether routes lead from the first rank of each pair to the other while these links are dead."""
        topology = self.experiment.topology
        groups = forwarding(topology, dead_links).groups

        def joined(src: int, dst: int, own: int, other: int) -> bool:
            near = PortRef(self.hosts[src], own + 1)
            address = topology.host(self.hosts[dst]).nics[other].address
            return topology.link_at(near) not in dead_links and address in groups[topology.peer(near).node]

        for src, dst in pairs:
            yield any(joined(src, dst, *nics) for nics in self._ways(src, dst))

    # NICs and ports of ranks

    @cached_property
    def fused(self) -> tuple[int, ...]:
        """Indices of the NICs of a rank's device: more than one where an arrangement fuses them."""
        answers = (arrangement.fused_nics() for arrangement in self.arrangements)
        return next((nics for nics in answers if nics), (self.experiment.nic,))

    def device_address(self, rank: int) -> str:
        """The address of a rank's device: those of its NICs, joined by `+`."""
        return "+".join(self.address(rank, nic) for nic in self.fused)

    def device_rate_bps(self, rank: int) -> int:
        """The sum of the rates of the NICs of a rank's device."""
        return sum(self.line_rate_bps(rank, nic) for nic in self.fused)

    def _device_burst_bytes(self, rank: int) -> int:
        """What the NICs of a rank's device send at once, together."""
        mtu_bytes = self.experiment.topology.mtu_bytes
        return sum(self._burst(self.line_rate_bps(rank, nic), mtu_bytes) for nic in self.fused)

    @property
    def _burst(self) -> Burst:
        """What ports send at once and ideal times leave out."""
        return self.experiment.spec.fabric_kind.burst if self.bursts else no_burst

    def address(self, rank: int, nic: int | None = None) -> str:
        """The address of a rank's NIC, of the one that carries the traffic unless another is named."""
        experiment = self.experiment
        return str(experiment.topology.host(self.hosts[rank]).nics[experiment.nic if nic is None else nic].address)

    def line_rate_bps(self, rank: int, nic: int | None = None) -> int:
        """The rate of the link that such a NIC is plugged into."""
        number = (self.experiment.nic if nic is None else nic) + 1
        return self.experiment.topology.link_at(PortRef(self.hosts[rank], number)).rate_bps

    def nics_between(self, src: int, dst: int, route: int = 0) -> tuple[int, int]:
        """Indices of the NICs by which data go from one rank to another: the sender's and the receiver's."""
        answers = (arrangement.nics(self.hosts[src], self.hosts[dst], route) for arrangement in self.arrangements)
        return next((nics for nics in answers if nics is not None), (self.experiment.nic, self.experiment.nic))

    def _ways(self, src: int, dst: int) -> list[tuple[int, int]]:
        """The pairs of NICs over which data go from one rank to another, in equal parts."""
        nics = self.nics_between(src, dst)
        return [(nic, nic) for nic in self.fused] if nics == (self.experiment.nic,) * 2 else [nics]

    def is_planned(self, src: int, dst: int) -> bool:
        """Whether a planner may choose the path between two ranks: other NICs are on networks without a choice."""
        return self.nics_between(src, dst)[0] == self.experiment.nic

    def shares(self, src: int, dst: int) -> tuple[float, ...]:
        """By route: the part of the data from one rank to another that it is to carry. They add up to 1."""
        answers = (arrangement.shares(self.hosts[src], self.hosts[dst]) for arrangement in self.arrangements)
        return next((shares for shares in answers if shares is not None), (1.0,))

    def ports(self, policy: Policy, routes: Forwarding | None = None) -> tuple[RankPorts, ...]:
        """The source ports of every rank's device under `policy`; none are planned where the path service gives them.

        `routes` are those of the fabric's switches, where they are not `unsteered`. Raises InputError when too few
        ports take a path that is planned.
        """
        experiment = self.experiment
        return plan_ports(
            experiment.topology,
            self.hosts,
            policy.m,
            self.seed,
            paths=None if policy.needs_service else partial(policy.planned, self.placed, list(self.planned())),
            ecmp_hash=experiment.ecmp_hash,
            nic=experiment.nic,
            routes=self.unsteered if routes is None else routes,
            protocol=policy.protocol,
            segments=experiment.spec.pinning == "srv6",
        )

    def paths_to_keep(self, policy: Policy) -> dict[tuple[str, str], Path]:
        """The paths that were planned before a run and that a path service has to keep to: by source, destination."""
        paths = policy.planned(self.placed, self.planned()) if policy.needs_service else {}
        return {(self.address(src), self.address(dst)): path for (src, dst), path in paths.items()}

    def by_segments(self, policy: Policy) -> dict[tuple[str, str, int], Path]:
        """The paths that packets take by their segments: by source, destination and source port."""
        return {
            (self.address(rank), self.address(peer), port): path
            for rank, ports in enumerate(self.ports(policy))
            for peer, path in ports.segments.items()
            for port in ports.table[peer]
        }

    # The shortest times that are possible

    def ideal_s(self, job: Job | None = None) -> float:
        """Ideal completion time in seconds: of all jobs together, or of `job` alone on the fabric."""
        if job not in self._ideals_s:
            self._ideals_s[job] = self._ideal_s(job)
        return self._ideals_s[job]

    def _ideal_s(self, job: Job | None) -> float:
        experiment = self.experiment
        if job is None and experiment.spec.workload.job_sizes is not None:  # each with phases of its own
            return max(self.ideal_s(job) for job in experiment.jobs)
        workload = experiment.spec.workload.of_job(0 if job is None else experiment.jobs.index(job))
        moved = self.transfers if job is None else self.transfers_of(job)
        sizes = {other.size for other in experiment.jobs} if job is None else {job.size}
        # Phases that ranks keep apart add up; jobs whose phases differ may be in several at once.
        starts = workload.phase_starts(min(sizes)) if len(sizes) == 1 else ()
        carried_s = sum(workload.pauses(min(sizes)).values()) + sum(
            self._phase_s(phase, workload.item_bytes) for phase in phases_of(moved, starts)
        )
        if workload.order(min(sizes)) is None:
            return carried_s
        ranks = range(experiment.ranks)
        fastest_bps, burst_bytes = max(map(self.device_rate_bps, ranks)), max(map(self._device_burst_bytes, ranks))
        return max(carried_s, workload.longest_chain_s(fastest_bps, burst_bytes))

    def _phase_s(self, transfers: Sequence[Transfer], item_bytes: int) -> float:
        """The shortest time of transfers that may all be under way at once."""
        topology, burst = self.experiment.topology, self._burst
        if self.decided_paths is not None:
            carried = ((carried.way.ports, carried.bytes) for carried in self.carried(transfers))
            return busiest_s(topology, carried, burst)
        by_nic: dict[int, dict[Pair, int]] = {}  # NICs of different indices are on separate, parallel networks
        for pair, count in bytes_by_pair(transfers, item_bytes).items():
            ways = self._ways(*pair)
            for nic, _ in ways:
                by_nic.setdefault(nic, {})[pair] = -(-count // len(ways))
        return max(ideal_s(topology, self.hosts, demands, nic, burst) for nic, demands in by_nic.items())


def all_hosts(experiment: Experiment) -> tuple[str, ...]:
    """Every host that has a rank with some seed, in the order of first use."""
    return tuple(dict.fromkeys(host for seed in experiment.seeds for host in Instance(experiment, seed).hosts))


@lru_cache(maxsize=1)
def _transfers(experiment: Experiment, seed: int) -> tuple[Transfer, ...]:
    """Schedules are large: only the one that was asked for last is kept."""
    moved = [transfer for number in range(len(experiment.jobs)) for transfer in _schedule(experiment, number, seed)]
    return tuple(sorted(moved, key=lambda transfer: transfer.step))


def _schedule(experiment: Experiment, number: int, seed: int) -> Iterator[Transfer]:
    job, workload = experiment.jobs[number], experiment.spec.workload.of_job(number)
    for moved in workload.schedule(job.size, seed):
        yield replace(moved, src=job.first + moved.src, dst=job.first + moved.dst) if job.first else moved
