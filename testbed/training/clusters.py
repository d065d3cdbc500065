# SPDX-License-Identifier: Apache-2.0
"""GPUs in high-bandwidth (HB) domains that a fabric connects, and the time of collectives of a group of them.

A group within an HB domain takes rings over it. Others take hierarchical collectives: every GPU exchanges its shard
with those of its rank in other domains over the fabric, and all GPUs of a domain exchange shards within it (W. Wang et
al., "Rail-only", arXiv 2307.12169v5, section III-B, Equation 1; all-to-all: section IV-B, Equations 2 and 3). Path
policies and collisions are not modelled, only rates: an oversubscribed fabric carries at most its share out of a leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from testbed.training.hardware import A100, H100, Accelerator, Collective, Network, sent_bytes


@dataclass(frozen=True, slots=True)
class Group:
    """`members` GPUs that communicate, up to `inside` of them in each of `domains` HB domains."""

    members: int
    inside: int
    domains: int
    domain: Network
    fabric: Network | None = None
    """The fabric that joins the domains of the group; None within a domain."""
    leaf_members: int = 1
    """Members below a leaf switch, consecutive in the order of rings."""
    oversubscription: float = 1.0
    """Rate of a leaf's hosts divided by that of its uplinks."""
    forwarding: bool = False
    """Whether all-to-alls change rails in the HB domain (Equation 3)."""
    ring_share: float = 1.0
    """The part of the fabric's rate that collectives have, and `chain_share` that of transfers between stages."""
    chain_share: float = 1.0
    relayed: float | None = None
    """Over direct connections: bytes that an all-to-all puts on its busiest circuit, of those that one member sends to
    the members in one other domain. None over switches."""

    def fabric_bytes(self, collective: Collective) -> float:
        """Bytes that a member sends over the fabric. A `send` goes to the next member, at worst in another domain."""
        if self.domains < 2:
            return 0.0
        if collective.kind == "send":
            return collective.bytes
        if collective.kind == "all_to_all":
            return collective.bytes * (self.domains - 1) / self.domains
        return sent_bytes(collective, self.domains) / self.inside

    def seconds(self, collective: Collective) -> float:
        """Time of a collective of all members, or of a `send` from each member to the next."""
        if self.members < 2 or not collective.bytes:
            return 0.0
        if self.fabric is None:
            return self.domain.seconds(collective, self.members)
        if collective.kind == "all_to_all":
            return self._all_to_all_s(collective.bytes)
        chain = collective.kind == "send"
        # Of the members below a leaf that are neighbours in a ring or chain, only the last one sends out of the leaf.
        neighbours = self.leaf_members if chain else max(1, self.leaf_members // self.inside)
        slowdown = max(1.0, self.oversubscription / neighbours)
        share = self.chain_share if chain else self.ring_share
        rate_bps = share * self.fabric.rate_bps * self.fabric.efficiency / slowdown
        between = self.fabric.latency_s + 8 * self.fabric_bytes(collective) / rate_bps
        return between if chain else between + self.domain.seconds(collective, self.inside)

    def all_to_all_fabric_s(self, size: float) -> float:
        """The part of an all-to-all's time in which the fabric is busy."""
        if self.fabric is None or self.members < 2 or not size:
            return 0.0
        pair, members = size / self.members, self.members
        rate_bps = self.fabric.rate_bps * self.fabric.efficiency
        if self.relayed is None:
            between = 8 * pair * (members - self.inside) / rate_bps
        else:
            between = 8 * pair * self.inside * self.relayed / rate_bps
        leaving = 8 * pair * (members - min(members, self.leaf_members)) * self.oversubscription / rate_bps
        return self.fabric.latency_s + max(between, leaving)

    def _all_to_all_s(self, size: float) -> float:
        pair, between = size / self.members, self.all_to_all_fabric_s(size)
        if self.forwarding:
            return between + self.domain.seconds(Collective("all_to_all", size), self.inside)
        return max(between, self.domain.seconds(Collective("all_to_all", pair * self.inside), self.inside))


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs in HB domains of `domain_gpus`, which `fabric` connects."""

    gpu: Accelerator
    domain: Network
    fabric: Network
    domain_gpus: int = 8
    leaf_gpus: int = 1
    """GPUs below a leaf switch. Only matters with oversubscription."""
    oversubscription: float = 1.0
    forwarding: bool = False
    """Whether rails are not joined, so that all-to-alls are forwarded through HB domains."""
    ring_share: float = 1.0
    """On a direct-connect fabric: the part of a GPU's rate whose circuits collectives have."""
    chain_share: float = 1.0
    """The same for transfers to one neighbouring stage."""
    all_to_all_load: Callable[[int], float] | None = None
    """On a direct-connect fabric, by the number of HB domains in a group: bytes that an all-to-all puts on the busiest
    circuit, as a multiple of what one domain sends to each other one. Hashable, as a cluster is."""

    def __post_init__(self) -> None:
        if min(self.domain_gpus, self.leaf_gpus) < 1 or self.oversubscription < 1:
            raise ValueError(
                f"HB domains of {self.domain_gpus} GPUs, leaves of {self.leaf_gpus} and oversubscription of "
                f"{self.oversubscription}: each must be 1 or more"
            )
        if not (0 < self.ring_share <= 1 and 0 < self.chain_share <= 1):
            raise ValueError(f"shares of the rate lie above 0 and up to 1, not {self.ring_share}, {self.chain_share}")

    def group(self, members: int, stride: int = 1) -> Group:
        """`members` GPUs that are `stride` consecutive GPUs apart, beginning with the first of an HB domain.

        Where they do not divide evenly among domains, as many domains as they need count as full. A later group of as
        many GPUs may begin within a domain and reach into one more: `straddled` says whether.
        """
        inside = min(members, max(1, self.domain_gpus // stride))
        domains = ceil(members / inside)
        if domains == 1:
            return Group(members, inside, 1, self.domain)
        below = min(members, max(inside, self.leaf_gpus // stride)) if self.oversubscription > 1 else inside
        return Group(
            members,
            inside,
            domains,
            self.domain,
            self.fabric,
            below,
            self.oversubscription,
            self.forwarding,
            self.ring_share,
            self.chain_share,
            None if self.all_to_all_load is None else self.domain_gpus * self.all_to_all_load(domains),
        )

    def straddled(self, members: int) -> bool:
        """Whether consecutive groups of `members` GPUs have one that shares two HB domains with others."""
        return bool(self.domain_gpus % members and members % self.domain_gpus)


DGX_A100 = Cluster(A100, domain=Network(8 * 300e9, 0.65, 10e-6), fabric=Network(200e9, 0.9, 20e-6))
"""NVIDIA, "DGX A100", data sheet: NVLink 600 Gbyte/s, 300 each way, and a NIC of 200 Gbit/s for each GPU."""
DGX_H100 = Cluster(H100, domain=Network(8 * 450e9, 0.65, 10e-6), fabric=Network(400e9, 0.9, 20e-6))
"""NVIDIA, "DGX H100", data sheet: NVLink 900 Gbyte/s, 450 each way, and a NIC of 400 Gbit/s for each GPU."""
