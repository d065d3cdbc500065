# SPDX-License-Identifier: Apache-2.0
"""Demands of a schedule: bytes per pair of ranks, and the shortest time in which any routing could carry them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias, TypeVar

from netmodel import Link, Path, PortRef, Topology, uplinks
from netmodel import pods as pods_of
from sdn.planners.disjoint import assign
from testbed.allocation.placement import leaf_of
from testbed.allocation.routes import Pair
from testbed.bursts import Burst, held_back, no_burst
from testbed.workloads import Transfer

Within: TypeAlias = Callable[[str, str], Sequence[Path]]
"""The paths that two hosts, by name, may use."""

_Node = str | int
"""A host or a leaf by name, or a pod by number."""
_Key = TypeVar("_Key", str, int)


class _Capacity(NamedTuple):
    """What links that share traffic can carry together, in one direction."""

    rate_bps: int
    burst_bits: int

    def least_s(self, bits: int) -> float:
        """The shortest time in which this many bits cross, in seconds."""
        return held_back(bits, self.burst_bits) / self.rate_bps


def bytes_by_pair(transfers: Iterable[Transfer], item_bytes: int) -> dict[Pair, int]:
    """Payload bytes that each ordered pair of ranks exchanges, in the order of first use."""
    demands: dict[Pair, int] = {}
    for transfer in transfers:
        pair = (transfer.src, transfer.dst)
        demands[pair] = demands.get(pair, 0) + transfer.count * item_bytes
    return demands


def ideal_s(
    topology: Topology, hosts: Sequence[str], demands: dict[Pair, int], nic: int = 0, burst: Burst = no_burst
) -> float:
    """The shortest completion time in seconds: payload only, no latency, no headers, perfect balance.

    The maximum, over every host link, over the uplinks of each leaf taken together, and over those of each pod, in each
    direction, of the bits that must cross divided by the rate. For a ring all-reduce of B bytes on n hosts with equal
    links of rate R and a fabric without oversubscription that is 2 (n - 1) / n * 8 B / R. Nothing faster exists; a
    schedule that waits between steps may not be able to reach it.

    Every port sends `burst` bytes at once, so these do not count.
    """
    bits: Counter[tuple[_Node, str]] = Counter()
    leaves, pods, capacities = _homes(topology, tuple(hosts), nic, burst)
    for (src, dst), count in demands.items():
        bits[hosts[src], "out"] += 8 * count
        bits[hosts[dst], "in"] += 8 * count
        if leaves[src] != leaves[dst]:
            bits[leaves[src], "out"] += 8 * count
            bits[leaves[dst], "in"] += 8 * count
        near, far = pods[src], pods[dst]
        if near is not None and far is not None and near != far:
            bits[near, "out"] += 8 * count
            bits[far, "in"] += 8 * count
    most: dict[_Capacity, int] = {}  # a time for each host would take longer than all else here
    for (node, _), amount in bits.items():
        capacity = capacities[node]
        most[capacity] = max(most.get(capacity, 0), amount)
    return max((capacity.least_s(amount) for capacity, amount in most.items()), default=0.0)


def busiest_s(topology: Topology, carried: Iterable[tuple[Sequence[PortRef], int]], burst: Burst = no_burst) -> float:
    """The shortest time in seconds in which given ways can carry bytes: the most bits of a port over its link's rate.

    `carried` has the ports that each way takes, and its bytes. `burst` bytes of each port do not count, as in
    `ideal_s`. 0 where there is nothing to carry.
    """
    bits: Counter[PortRef] = Counter()
    for ports, count in carried:
        for port in ports:
            bits[port] += 8 * count
    capacity = _capacity_of(topology, burst)
    return max((capacity(topology.link_at(port)).least_s(count) for port, count in bits.items()), default=0.0)


def phases_of(transfers: Sequence[Transfer], starts: Sequence[int]) -> list[Sequence[Transfer]]:
    """The transfers, which are in ascending steps, of each phase that has any. `starts`: the phases' first steps."""
    cuts = [bisect_left(transfers, start, key=lambda transfer: transfer.step) for start in starts]
    return [transfers[first:last] for first, last in pairwise([0, *cuts, len(transfers)]) if first < last]


def disjoint_paths(
    topology: Topology,
    hosts: Sequence[str],
    transfers: Iterable[Transfer],
    nic: int = 0,
    within: Within | None = None,
) -> dict[Pair, Path]:
    """A path for every pair of ranks, between the NICs of index `nic` of their hosts: pairs that are active in the same
    step share no uplink where that is possible.

    Pairs are planned step by step, so that an all-to-all, whose steps are permutations, is as free of conflicts as a
    ring. A pair keeps the path of the first step it takes part in. Pairs on one leaf have one path and are left out.
    Acknowledgements return over the links of their data, backwards: left to chance, several streams of them would meet
    on one uplink that data already fill.

    `within` gives the paths that two hosts may use, if not all. Acknowledgements without one over the links of their
    data are left to chance.
    """
    steps: dict[int, dict[Pair, None]] = {}
    for transfer in transfers:
        steps.setdefault(transfer.step, {})[transfer.src, transfer.dst] = None
    paths: dict[Pair, Path] = {}
    for _, pairs in sorted(steps.items()):
        fresh = {
            (hosts[src], hosts[dst]): (src, dst)
            for src, dst in pairs
            if (src, dst) not in paths and leaf_of(topology, hosts[src], nic) != leaf_of(topology, hosts[dst], nic)
        }
        for names, path in (assign(topology, list(fresh), nic, within) if fresh else {}).items():
            paths[fresh[names]] = path
    backwards = {(dst, src): _reversed(topology, path) for (src, dst), path in paths.items()}
    if within is not None:
        backwards = {
            (src, dst): path for (src, dst), path in backwards.items() if path in within(hosts[src], hosts[dst])
        }
    return backwards | paths


def _reversed(topology: Topology, path: Path) -> Path:
    """The path over the same links in the other direction."""
    return tuple(topology.peer(port) for port in reversed(path))


@lru_cache(maxsize=8)
def _homes(
    topology: Topology, hosts: tuple[str, ...], nic: int, burst: Burst
) -> tuple[Sequence[str], Sequence[int | None], Mapping[_Node, _Capacity]]:
    """Of each host's NIC `nic`: its leaf, and its pod where that has uplinks. Then what nodes can carry.

    A host carries what its NIC does, a leaf or pod what all its uplinks do. Leaves and pods without uplinks carry
    nothing and are left out. The answer is the same for all phases of a job.
    """
    capacity = _capacity_of(topology, burst)
    leaves = [topology.peer(PortRef(host, nic + 1)).node for host in hosts]
    of_leaves, of_pods = _uplink_capacities(topology, burst), _pod_capacities(topology, burst)
    pods = [pod if (pod := pods_of(topology).get(leaf)) in of_pods else None for leaf in leaves]
    capacities: dict[_Node, _Capacity] = {host: capacity(topology.link_at(PortRef(host, nic + 1))) for host in hosts}
    capacities.update((leaf, of_leaves[leaf]) for leaf in leaves if leaf in of_leaves)
    capacities.update(of_pods.items())
    return leaves, pods, capacities


def _capacity_of(topology: Topology, burst: Burst) -> Callable[[Link], _Capacity]:
    """What a link of the topology can carry in one direction."""
    return lambda link: _Capacity(link.rate_bps, 8 * burst(link.rate_bps, topology.mtu_bytes))


@lru_cache(maxsize=8)
def _uplink_capacities(topology: Topology, burst: Burst) -> Mapping[str, _Capacity]:
    """By switch with any: what all links between it and other switches can carry together."""
    switches = {switch.name for switch in topology.switches}
    between = [link for link in topology.links if link.a.node in switches and link.b.node in switches]
    return _sums(topology, burst, ((end.node, link) for link in between for end in (link.a, link.b)))


@lru_cache(maxsize=8)
def _pod_capacities(topology: Topology, burst: Burst) -> Mapping[int, _Capacity]:
    """By pod with any: what all links from it to cores can carry together."""
    pod_of = pods_of(topology)
    to_cores = [port for port in uplinks(topology) if topology.peer(port).node not in pod_of]
    return _sums(topology, burst, ((pod_of[port.node], topology.link_at(port)) for port in to_cores))


def _sums(topology: Topology, burst: Burst, links: Iterable[tuple[_Key, Link]]) -> Mapping[_Key, _Capacity]:
    """What the links under each key can carry together."""
    capacity = _capacity_of(topology, burst)
    sums: dict[_Key, _Capacity] = {}
    for key, link in links:
        one, rest = capacity(link), sums.get(key, _Capacity(0, 0))
        sums[key] = _Capacity(rest.rate_bps + one.rate_bps, rest.burst_bits + one.burst_bits)
    return sums
