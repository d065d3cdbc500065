# SPDX-License-Identifier: Apache-2.0
"""Demands of a schedule: bytes per pair of ranks, and the shortest time in which any routing could carry them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from netmodel import Path, PortRef, Topology, uplinks
from netmodel import pods as pods_of
from sdn.planners.disjoint import assign
from testbed.allocation.placement import leaf_of
from testbed.allocation.routes import Pair
from testbed.workloads import Transfer

Within: TypeAlias = Callable[[str, str], Sequence[Path]]
"""The paths that two hosts, by name, may use."""

_Node = str | int
"""A host or a leaf by name, or a pod by number."""


def bytes_by_pair(transfers: Iterable[Transfer], item_bytes: int) -> dict[Pair, int]:
    """Payload bytes that each ordered pair of ranks exchanges, in the order of first use."""
    demands: dict[Pair, int] = {}
    for transfer in transfers:
        pair = (transfer.src, transfer.dst)
        demands[pair] = demands.get(pair, 0) + transfer.count * item_bytes
    return demands


def ideal_s(topology: Topology, hosts: Sequence[str], demands: dict[Pair, int], nic: int = 0) -> float:
    """The shortest completion time in seconds: payload only, no latency, no headers, perfect balance.

    The maximum, over every host link, over the uplinks of each leaf taken together, and over those of each pod, in each
    direction, of the bits that must cross divided by the rate. For a ring all-reduce of B bytes on n hosts with equal
    links of rate R and a fabric without oversubscription that is 2 (n - 1) / n * 8 B / R. Nothing faster exists; a
    schedule that waits between steps may not be able to reach it.
    """
    bits: Counter[tuple[_Node, str]] = Counter()
    leaves, pods, rates = _homes(topology, tuple(hosts), nic)
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
    most: dict[int, int] = {}  # by rate: comparing a fraction for each host takes longer than all else here
    for (node, _), amount in bits.items():
        rate = rates[node]
        most[rate] = max(most.get(rate, 0), amount)
    return float(max((Fraction(amount, rate) for rate, amount in most.items()), default=Fraction(0)))


def busiest_s(topology: Topology, carried: Iterable[tuple[Sequence[PortRef], int]]) -> float:
    """The shortest time in seconds in which given ways can carry bytes: the most bits of a port over its link's rate.

    `carried` has the ports that each way takes, and its bytes. 0 where there is nothing to carry.
    """
    bits: Counter[PortRef] = Counter()
    for ports, count in carried:
        for port in ports:
            bits[port] += 8 * count
    return max((count / topology.link_at(port).rate_bps for port, count in bits.items()), default=0.0)


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
    topology: Topology, hosts: tuple[str, ...], nic: int
) -> tuple[Sequence[str], Sequence[int | None], Mapping[_Node, int]]:
    """The leaf and the pod of each host's NIC `nic`; the rates in bits per second of these NICs, by host, and of the
    uplinks of leaves and of pods, with which pods are left out that have none.

    The same for all phases of a job.
    """
    leaves = [topology.peer(PortRef(host, nic + 1)).node for host in hosts]
    leaf_rates, pod_rates = _uplink_rates_bps(topology), _pod_rates_bps(topology)
    pods = [pod if (pod := pods_of(topology).get(leaf)) in pod_rates else None for leaf in leaves]
    rates: dict[_Node, int] = {host: topology.link_at(PortRef(host, nic + 1)).rate_bps for host in hosts}
    rates.update((leaf, leaf_rates[leaf]) for leaf in leaves if leaf in leaf_rates)
    rates.update(pod_rates.items())
    return leaves, pods, rates


@lru_cache(maxsize=8)
def _uplink_rates_bps(topology: Topology) -> Mapping[str, int]:
    """By switch with any: the sum of the rates of all links between it and other switches, in bits per second."""
    switches = {switch.name for switch in topology.switches}
    sums: Counter[str] = Counter()
    for link in topology.links:
        if link.a.node in switches and link.b.node in switches:
            sums[link.a.node] += link.rate_bps
            sums[link.b.node] += link.rate_bps
    return sums


@lru_cache(maxsize=8)
def _pod_rates_bps(topology: Topology) -> Mapping[int, int]:
    """By pod with any: the sum of the rates of all links from it to cores, in bits per second."""
    pod_of = pods_of(topology)
    sums: Counter[int] = Counter()
    for port in uplinks(topology):
        if topology.peer(port).node not in pod_of:
            sums[pod_of[port.node]] += topology.link_at(port).rate_bps
    return sums
