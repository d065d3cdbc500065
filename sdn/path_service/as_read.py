# SPDX-License-Identifier: Apache-2.0
"""The groups of running switches, whose next hops may have any order, one for each address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netmodel.flow import Address, address_at
from sdn.path_service.groups import WITHIN_TOR, Groups, pods_of
from sdn.path_service.next_hops import NextHops
from sdn.planners import Cabling
from sdn.planners.links import AnyClos, leaf_links
from sdn.planners.model import Floats, Ints
from sdn.planners.planner import AnyCabling
from sdn.planners.pods import PodCabling, PodClos


class AsRead:
    """Groups as they were read from running switches.

    Links that are dead, or have died since, are left out; the other members are assumed to keep their order until the
    groups are read again.
    """

    def __init__(self, cables: AnyCabling, next_hops: NextHops) -> None:
        self._cables = cables
        self._hops = next_hops
        self._names = _names(cables)
        self._fabric = cables.fabric
        self._known: dict[tuple[int, int], Groups] = {}

    def around(self, fabric: AnyClos) -> "AsRead":
        """Those of the same topology with other links dead."""
        other = object.__new__(AsRead)
        other._cables, other._hops, other._names = self._cables, self._hops, self._names
        other._fabric, other._known = fabric, {}
        return other

    def between(self, src: int, dst: int) -> Groups:
        near = int(self._fabric.nic_tor[src])
        groups = self._known.get((near, dst))
        if groups is None:
            far = int(self._fabric.nic_tor[dst])
            groups = WITHIN_TOR if near == far else self._made(near, far, address_at(self._cables.addresses, dst))
            self._known[near, dst] = groups
        return groups

    def _made(self, near: int, far: int, to: Address) -> Groups:
        low, names = leaf_links(self._fabric), self._names
        over: list[Groups | None] = []
        up: list[tuple[int, int]] = []
        down: list[tuple[int, tuple[int, ...]]] = []
        begin, end = names.pod[near], names.pod[far]
        for agg, link in self._members(names.leaves[near], to, names.up[near], low.link_rate_bps[near]):
            last = names.middle[end][agg]
            links = tuple(k for _, k in self._members(last, to, names.down[far][agg], low.link_rate_bps[far]))
            above = None if begin == end else self._above(begin, end, agg, to)
            if links and (above is None or above.up):
                up.append((agg, link))
                over.append(above)
                down.append((self._seed(last), links))
        return Groups(self._seed(names.leaves[near]), tuple(up), tuple(over), tuple(down))

    def _above(self, begin: int, end: int, agg: int, to: Address) -> Groups:
        """The groups of an agg and of cores, towards an address in another pod."""
        assert isinstance(self._fabric, PodClos)
        rate, names = self._fabric.core_rate_bps, self._names
        up: list[tuple[int, int]] = []
        down: list[tuple[int, tuple[int, ...]]] = []
        first = names.middle[begin][agg]
        for core, link in self._members(first, to, names.core_up[begin, agg], rate[begin, agg]):
            name = names.cores[agg][core]
            members = self._members(name, to, names.core_down[end, agg, core], rate[end, agg])
            links = tuple(k for _, k in members)
            if links:
                up.append((core, link))
                down.append((self._seed(name), links))
        return Groups(self._seed(first), tuple(up), (None,) * len(up), tuple(down))

    def _members(
        self, switch: str, to: Address, at: Mapping[int, tuple[int, int]], rate: Floats
    ) -> list[tuple[int, int]]:
        """(spine, parallel link) of the members of a switch's group, as far as they are live and in `at` by port."""
        ports = self._hops.get(switch, {}).get(to, ())
        found = (at[port] for port in ports if port in at)
        return [(spine, link) for spine, link in found if rate[spine, link] > 0]

    def _seed(self, switch: str) -> int:
        return self._cables.topology.switch(switch).hash_seed


@dataclass(frozen=True, slots=True)
class _Names:
    """Switches by number, and what their ports lead to: (spine or core, parallel link) by port."""

    leaves: Sequence[str]
    pod: list[int]
    """Of each leaf."""
    middle: Sequence[Sequence[str]]
    """[pod][agg], or spines."""
    cores: Sequence[Sequence[str]]
    up: list[dict[int, tuple[int, int]]]
    """[leaf]"""
    down: list[list[dict[int, tuple[int, int]]]]
    """[leaf][agg]: the agg's ports to the leaf."""
    core_up: dict[tuple[int, int], dict[int, tuple[int, int]]]
    """[pod, agg]"""
    core_down: dict[tuple[int, int, int], dict[int, tuple[int, int]]]
    """[pod, agg, core]: the core's ports to the agg."""


def _names(cables: AnyCabling) -> _Names:
    if isinstance(cables, Cabling):
        pod = pods_of(cables.fabric)
        up, down = _ends(cables.tor_port), [_ends_of_each(port) for port in cables.spine_port]
        return _Names(cables.tors, pod, (cables.spines,), (), up, down, {}, {})
    assert isinstance(cables, PodCabling)
    return _Names(
        cables.leaves,
        pods_of(cables.fabric),
        cables.aggs,
        cables.cores,
        _ends(cables.leaf_port),
        [_ends_of_each(port) for port in cables.agg_down_port],
        {(p, a): ends for p, pod in enumerate(cables.agg_up_port) for a, ends in enumerate(_ends(pod))},
        {
            (p, a, core): ends
            for p, pod in enumerate(cables.core_port)
            for a, agg in enumerate(pod)
            for core, ends in enumerate(_ends_of_each(agg))
        },
    )


def _ends(ports: Ints) -> list[dict[int, tuple[int, int]]]:
    """For each ToR of [ToR, spine, link]: the spine and link by the ToR's port."""
    return [{int(own[at]): (int(at[0]), int(at[1])) for at in zip(*np.nonzero(own), strict=True)} for own in ports]


def _ends_of_each(ports: Ints) -> list[dict[int, tuple[int, int]]]:
    """For each spine of [spine, link], the ports of spines: the spine and link by its port."""
    return [{int(own[k]): (spine, int(k)) for k in np.flatnonzero(own)} for spine, own in enumerate(ports)]
