# SPDX-License-Identifier: Apache-2.0
"""A checked spec and what follows from it for every seed. `testbed.spec.instance` has what a seed makes of it."""

from collections.abc import Collection
from dataclasses import dataclass

from netmodel import EcmpHash, Link, PortRef, Topology, WrittenNextHops
from sdn.openflow.source_rules import ecmp_hash_of
from testbed.arrangements import Arrangement
from testbed.spec.placing import Job
from testbed.spec.policies import Policy
from testbed.spec.settings import Timeouts
from testbed.spec.written import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """A checked spec and what follows from it for every seed."""

    spec: Spec
    topology: Topology
    """The topology that packet switches see. Cables through optical switches appear as the links that circuits form."""
    cabled: Topology
    """The fabric as cabled."""
    first_hosts: tuple[str, ...]
    """The hosts with the first seed, by rank: those of every seed, unless the placement is drawn again."""
    seeds: tuple[int, ...]
    pcap: tuple[PortRef, ...]
    nic: int
    """Index of the NIC that carries the traffic, on every host of the placement."""
    jobs: tuple[Job, ...]
    arrangements: tuple[Arrangement, ...] = ()
    """What is set up on the fabric for the jobs."""
    next_hops: WrittenNextHops | None = None
    """The next hops of routers in a run, for models that choose as these did. None: switches are those of the spec."""

    @property
    def ranks(self) -> int:
        """The number of ranks of all jobs."""
        return len(self.first_hosts)

    @property
    def several_nics(self) -> bool:
        """Whether pairs of ranks use different NICs."""
        return any(arrangement.SEVERAL_NICS for arrangement in self.arrangements)

    @property
    def predicts(self) -> bool:
        """Whether it is known which path a source port takes. Not where the switches have an app of the user's."""
        return self.spec.openflow is None

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the spec, extended on slow fabrics."""
        factor = self.spec.fabric_kind.time_factor
        return Timeouts(**{name: limit * factor for name, limit in self.spec.timeouts.model_dump().items()})

    @property
    def ecmp_hash(self) -> EcmpHash:
        """The ECMP hash of the fabric's switches."""
        if self.spec.fabric_kind.routers or self.next_hops is not None:
            return self.spec.routers.ecmp_hash(self.topology)
        return ecmp_hash_of(self.topology, self.spec.switches_pin)

    def policy(self, name: str) -> Policy:
        """The policy of that name."""
        return next(policy for policy in self.spec.policies if policy.name == name)

    def job_of(self, rank: int) -> Job:
        """The job that a rank belongs to."""
        return next(job for job in self.jobs if rank in job.ranks)

    def cable(self, port: str) -> Link:
        """The cable in a port that the spec names. Raises KeyError."""
        return self.cabled.link_at(PortRef.parse(port))

    def killed_links(self, switches: Collection[str]) -> list[Link]:
        """The links that have an end at one of these switches."""
        return [link for link in self.topology.links if {link.a.node, link.b.node} & set(switches)]

    def dead_links(self, cables: frozenset[Link]) -> frozenset[Link]:
        """The links of the topology that are dead when these cables of the fabric are."""
        for arrangement in self.arrangements:
            cables = arrangement.dead_links(cables)
        return cables
