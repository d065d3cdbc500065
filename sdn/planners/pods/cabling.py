# SPDX-License-Identifier: Apache-2.0
"""Conversion between a topology of three tiers, which has names and ports, and a `PodClos`, which has numbers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from netmodel import Link, Path, PortRef, Topology, pods, tiers
from netmodel.fabric_tiers import CORE, LEAF, MIDDLE
from netmodel.flow import Addresses, address_array
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Floats, Ints
from sdn.planners.nic_numbers import between, number_of
from sdn.planners.pods.model import PodClos, PodPlan


@dataclass(frozen=True, eq=False)
class PodCabling:
    """A topology as a `PodClos`, and the names of its numbers."""

    topology: Topology
    fabric: PodClos
    nics: tuple[PortRef, ...]
    """The host port of each NIC."""
    addresses: Addresses
    """The IP address of each NIC, by the NIC's number."""
    leaves: tuple[str, ...]
    aggs: tuple[tuple[str, ...], ...]
    """[pod][agg]; empty where a pod has fewer."""
    cores: tuple[tuple[str, ...], ...]
    """[group][core]; shorter where a group has fewer."""
    leaf_port: Ints
    """[leaf, agg, parallel link]: the leaf's port, 0 without a link. Parallel links are in order of this port."""
    agg_down_port: Ints
    """[leaf, agg, parallel link]: the agg's port."""
    agg_up_port: Ints
    """[pod, agg, core, parallel link]: the agg's port. Parallel links are in order of this port."""
    core_port: Ints
    """[pod, agg, core, parallel link]: the core's port."""
    _nic_number: dict[PortRef, int]
    _low_link: dict[Link, tuple[int, ...]]  # leaf, agg, link
    _high_link: dict[Link, tuple[int, ...]]  # pod, agg, core, link

    @cached_property
    def joined(self) -> npt.NDArray[np.bool_]:
        """[leaf, leaf]: whether a path of live links joins them."""
        leaves = np.arange(len(self.leaves), dtype=np.int32)
        return np.stack([self.fabric.ways(np.full_like(leaves, leaf), leaves).any(axis=1) for leaf in leaves])

    def nic(self, host: str, nic: int = 0) -> int:
        """The number of a host's NIC. Raises KeyError for an unknown host, and for a NIC without a live link."""
        return number_of(self.topology, self._nic_number, host, nic)

    def commodities(
        self, pairs: Iterable[tuple[str, str]], demand: npt.ArrayLike = 1.0, job: npt.ArrayLike = 0, nic: int = 0
    ) -> Commodities:
        """One commodity for each pair of source and destination host, between their NICs `nic`. Errors as of `nic`."""
        return between(((self.nic(src, nic), self.nic(dst, nic)) for src, dst in pairs), demand, job)

    def link_number(self, link: Link) -> int:
        """The number of a link in `sdn.planners.links`. Raises KeyError for one that does not join two switches."""
        low, high = self.fabric.low.link_rate_bps, self.fabric.core_rate_bps
        if (at := self._low_link.get(link)) is not None:
            return int(np.ravel_multi_index(at, low.shape))
        if (at := self._high_link.get(link)) is not None:
            return low.size + int(np.ravel_multi_index(at, high.shape))
        raise KeyError(f"link {link.a} to {link.b} does not join two switches of this topology")

    def without(self, links: Iterable[Link]) -> "PodCabling":
        """The same cabling with these links between switches dead. Raises KeyError for any other link."""
        dead = list(links)
        for link in dead:
            self.link_number(link)  # raises KeyError
        low = [self._low_link[link] for link in dead if link in self._low_link]
        high = [self._high_link[link] for link in dead if link in self._high_link]
        return replace(self, fabric=self.fabric.without(low, high))

    def path(self, plan: PodPlan, commodity: int) -> Path | None:
        """The `netmodel` path of a commodity of a plan; None when it has none."""
        ends = (int(plan.commodities.src[commodity]), int(plan.commodities.dst[commodity]))
        return self.path_by(*ends, *plan.routes[commodity].tolist())

    def path_by(
        self, src: int, dst: int, agg: int, up: int, down: int, core: int, core_up: int, core_down: int
    ) -> Path | None:
        """The `netmodel` path between two NICs by an agg, and a core unless it is LOCAL, and parallel links.

        None when `agg` is UNREACHABLE.
        """
        first, last = self.nics[src], self.topology.peer(self.nics[dst])
        if agg == UNREACHABLE:
            return None
        if agg == LOCAL:
            return first, last
        near, far = (int(self.fabric.nic_tor[nic]) for nic in (src, dst))
        near_pod, far_pod = (int(self.fabric.leaf_pod[leaf]) for leaf in (near, far))
        path = [first, PortRef(self.leaves[near], int(self.leaf_port[near, agg, up]))]
        if core != LOCAL:
            path.append(PortRef(self.aggs[near_pod][agg], int(self.agg_up_port[near_pod, agg, core, core_up])))
            path.append(PortRef(self.cores[agg][core], int(self.core_port[far_pod, agg, core, core_down])))
        return (*path, PortRef(self.aggs[far_pod][agg], int(self.agg_down_port[far, agg, down])), last)


def pod_cabling(topology: Topology, dead_links: frozenset[Link] = frozenset()) -> PodCabling:
    """The cabling of a Clos of three tiers; dead links get rate 0. Recent results are cached.

    Aggs that links to cores join get the same number in their pods. Raises ValueError for any other topology: with
    links other than from host to leaf, leaf to agg and agg to core, or with two such aggs in one pod.
    """
    return _pod_cabling(topology, frozenset(dead_links))


@lru_cache(maxsize=8)
def _pod_cabling(topology: Topology, dead_links: frozenset[Link]) -> PodCabling:
    def refuse(why: str) -> ValueError:
        return ValueError(f"topology {topology.name!r} is not a Clos of three tiers: {why}")

    tier, pod = tiers(topology), pods(topology)
    for switch in topology.switches:
        if switch.role == "ocs":
            raise refuse(f"switch {switch.name!r} has the role 'ocs'")
    homes: dict[PortRef, tuple[str, int]] = {}
    low: defaultdict[tuple[str, str], list[tuple[int, int, Link]]] = defaultdict(list)
    high: defaultdict[tuple[str, str], list[tuple[int, int, Link]]] = defaultdict(list)
    for link in topology.links:
        near, far = sorted((link.a, link.b), key=lambda end: tier.get(end.node, 0))
        step = tier.get(near.node, 0), tier.get(far.node, 0)
        if step == (0, LEAF):
            if link not in dead_links:
                homes[near] = far.node, link.rate_bps
        elif step in ((LEAF, MIDDLE), (MIDDLE, CORE)):
            (low if step[0] == LEAF else high)[near.node, far.node].append((near.port, far.port, link))
        else:
            raise refuse(
                f"link {link.a} to {link.b} joins neither a host to a leaf, a leaf to an agg nor an agg to a core"
            )
    if not low or not high:
        raise refuse("no leaf is linked to an agg" if high else "no agg is linked to a core")
    group_of, groups = _groups(high)
    leaves = {name: n for n, name in enumerate(name for name in tier if tier[name] == LEAF)}
    number_of_pod = {name: n for n, name in enumerate(dict.fromkeys(pod[leaf] for leaf in leaves))}
    width = len(groups)
    aggs = [[""] * width for _ in number_of_pod]
    for name in (name for name in tier if tier[name] == MIDDLE):
        if pod[name] not in number_of_pod or name not in group_of:
            raise refuse(f"{name!r} has no links to leaves, or none to cores")
        here = aggs[number_of_pod[pod[name]]]
        if here[group_of[name]]:
            raise refuse(f"{here[group_of[name]]!r} and {name!r} are in one pod and have a core in common")
        here[group_of[name]] = name
    core_at = {name: (group, n) for group, names in enumerate(groups) for n, name in enumerate(names)}
    low_shape = (len(leaves), width, max(map(len, low.values())))
    high_shape = (len(number_of_pod), width, max(map(len, groups)), max(map(len, high.values())))
    low_at = {pair: (leaves[pair[0]], group_of[pair[1]]) for pair in low}
    high_at = {pair: (number_of_pod[pod[pair[0]]], *core_at[pair[1]]) for pair in high}
    low_rate, leaf_port, agg_down_port, low_link = _tables(low_shape, low, low_at, dead_links)
    high_rate, agg_up_port, core_port, high_link = _tables(high_shape, high, high_at, dead_links)
    ports = [PortRef(host.name, i + 1) for host in topology.hosts for i in range(len(host.nics))]
    nics = tuple(port for port in ports if port in homes)
    clos = Clos(
        nic_tor=np.array([leaves[homes[port][0]] for port in nics], dtype=np.int32),
        nic_rate_bps=np.array([homes[port][1] for port in nics], dtype=np.float64),
        link_rate_bps=low_rate,
    )
    leaf_pod = np.array([number_of_pod[pod[leaf]] for leaf in leaves], dtype=np.int32)
    return PodCabling(
        topology=topology,
        fabric=PodClos(clos, leaf_pod, high_rate),
        nics=nics,
        addresses=address_array(topology.host(port.node).nics[port.port - 1].address for port in nics),
        leaves=tuple(leaves),
        aggs=tuple(map(tuple, aggs)),
        cores=tuple(map(tuple, groups)),
        leaf_port=leaf_port,
        agg_down_port=agg_down_port,
        agg_up_port=agg_up_port,
        core_port=core_port,
        _nic_number={port: i for i, port in enumerate(nics)},
        _low_link=low_link,
        _high_link=high_link,
    )


def _groups(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, int], list[list[str]]]:
    """The number of each agg's group, and the cores of each group: what links between aggs and cores join."""
    beside: defaultdict[str, list[str]] = defaultdict(list)
    cores: dict[str, None] = {}
    for agg, core in pairs:
        beside[agg].append(core)
        beside[core].append(agg)
        cores[core] = None
    group_of: dict[str, int] = {}
    groups: list[list[str]] = []
    for start in cores:
        if start in group_of:
            continue
        found: dict[str, None] = {start: None}
        for node in (pending := [start]):
            for near in beside[node]:
                if near not in found:
                    found[near] = None
                    pending.append(near)
        group_of |= dict.fromkeys(found, len(groups))
        groups.append([node for node in cores if node in found])
    return group_of, groups


def _tables(
    shape: tuple[int, ...],
    links: Mapping[tuple[str, str], list[tuple[int, int, Link]]],
    at: Mapping[tuple[str, str], tuple[int, ...]],
    dead_links: frozenset[Link],
) -> tuple[Floats, Ints, Ints, dict[Link, tuple[int, ...]]]:
    """By the numbers of two switches and a parallel link: its rate, its lower and its upper port; and its place."""
    rate = np.zeros(shape)
    near_port, far_port = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    place: dict[Link, tuple[int, ...]] = {}
    for pair, parallel in links.items():
        for k, (near, far, link) in enumerate(sorted(parallel, key=lambda entry: entry[0])):
            here = place[link] = (*at[pair], k)
            near_port[here], far_port[here] = near, far
            rate[here] = 0 if link in dead_links else link.rate_bps
    return rate, near_port, far_port, place
