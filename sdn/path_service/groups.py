# SPDX-License-Identifier: Apache-2.0
"""What switches choose among on the way between two NICs, on the numbers of a fabric of two tiers or three.

Three tiers are two fabrics of two tiers, one above the other: between the two aggs of a way lie the choices of an agg
among its uplinks and of a core among its links down, as those of a leaf and a spine below.

`PortOrder` is what `netmodel.forwarding` computes, without a walk over the whole topology after a failure.
`sdn.path_service.as_read` has what running switches have.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sdn.planners import Cabling
from sdn.planners.links import AnyClos, Way, leaf_links
from sdn.planners.model import Clos, Floats, Ints
from sdn.planners.planner import AnyCabling
from sdn.planners.pods import PodClos


@dataclass(frozen=True, slots=True)
class Groups:
    """All inputs of the switches' choices between two ToRs. Equal ones have equal ports for each way."""

    seed: int
    """The hash seed of the source ToR; 0 within a ToR."""
    up: tuple[tuple[int, int], ...]
    """(spine, parallel link) of the group's members, as the hash numbers them; empty within a ToR."""
    over: tuple["Groups | None", ...]
    """For every member of `up`: the choices between two aggs, where its spine is an agg and the way leaves the pod."""
    down: tuple[tuple[int, tuple[int, ...]], ...]
    """For every member of `up`: the seed of the last spine, and its members as parallel links to the ToR, in order."""
    ways: int = field(init=False, compare=False)
    """The number of equal-cost paths."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        above = (1 if over is None else over.ways for over in self.over)
        count = sum(over * len(links) for over, (_, links) in zip(above, self.down, strict=True))
        object.__setattr__(self, "ways", max(1, count))
        object.__setattr__(self, "_hash", hash((self.seed, self.up, self.over, self.down)))

    def __hash__(self) -> int:  # computed once: it takes microseconds
        return self._hash


WITHIN_TOR = Groups(0, (), (), ())


def every_way(groups: Groups, no_core: Way = ()) -> Iterator[Way]:
    """All ways that switches choose among, whether a port takes them or not. `no_core` ends those without a core."""
    for (spine, up), over, (_, links) in zip(groups.up, groups.over, groups.down, strict=True):
        for beyond in [no_core] if over is None else every_way(over):
            for down in links:
                yield (spine, up, down, *beyond)


class Choices(Protocol):
    """The groups of a fabric's switches."""

    def between(self, src: int, dst: int) -> Groups:
        """The groups between two NICs."""
        ...

    def around(self, fabric: AnyClos) -> "Choices":
        """Those of the same topology with other links dead."""
        ...


class PortOrder:
    """Groups of all live links that lead to the destination, in the order of ports."""

    def __init__(self, cables: AnyCabling) -> None:
        low, high = _tiers(cables)
        self._low, self._high = low, high
        self._fabric = cables.fabric
        self._tor: list[int] = cables.fabric.nic_tor.tolist()
        self._pod = pods_of(cables.fabric)
        self._known: dict[tuple[int, int], Groups] = {}
        self._known_above: dict[tuple[int, int], Groups] = {}

    def around(self, fabric: AnyClos) -> "PortOrder":
        """Those of the same topology with other links dead; what is the same is shared."""
        other = object.__new__(PortOrder)
        other._fabric, other._tor, other._pod = fabric, self._tor, self._pod
        other._low = self._low.around(leaf_links(fabric).link_rate_bps)
        other._high = None
        if self._high is not None and isinstance(fabric, PodClos):
            other._high = self._high.around(fabric.high.link_rate_bps)
        other._known, other._known_above = {}, {}
        return other

    def between(self, src: int, dst: int) -> Groups:
        near, far = self._tor[src], self._tor[dst]
        groups = self._known.get((near, far))
        if groups is None:
            groups = self._known[near, far] = WITHIN_TOR if near == far else self._made(near, far)
        return groups

    def _made(self, near: int, far: int) -> Groups:
        begin, end = self._pod[near], self._pod[far]
        if self._high is None or begin == end:
            return self._low.between(near, far, lambda _: None)
        width = leaf_links(self._fabric).spines
        return self._low.between(near, far, lambda agg: self._above(begin * width + agg, end * width + agg))

    def _above(self, near: int, far: int) -> Groups:
        assert self._high is not None  # there are pods
        groups = self._known_above.get((near, far))
        if groups is None:
            groups = self._known_above[near, far] = self._high.between(near, far, lambda _: None)
        return groups


class _Tier:
    """The live links between the ToRs and spines of one tier, in the order of ports."""

    def __init__(
        self, rate: Floats, tor_port: Ints, spine_port: Ints, tor_seed: Sequence[int], spine_seed: list[list[int]]
    ) -> None:
        self._rate = rate
        self._tor_port, self._spine_port = tor_port, spine_port
        self._tor_seed = tor_seed
        self._spine_seed = spine_seed  # [ToR][spine]
        self._up: dict[int, list[tuple[int, int]]] = {}
        self._down: dict[int, list[tuple[int, tuple[int, ...]]]] = {}

    def around(self, rate: Floats) -> "_Tier":
        other = _Tier(rate, self._tor_port, self._spine_port, self._tor_seed, self._spine_seed)
        same = (rate == self._rate).all(axis=(1, 2)).tolist()
        other._up = {tor: up for tor, up in self._up.items() if same[tor]}
        other._down = {tor: down for tor, down in self._down.items() if same[tor]}
        return other

    def between(self, near: int, far: int, above: Callable[[int], Groups | None]) -> Groups:
        """The groups between two ToRs; `above` has those beyond each spine, which are empty where it leads nowhere."""
        into = self._into(far)
        up, over = [], []
        for spine, link in self._from(near):
            if into[spine][1] and ((groups := above(spine)) is None or groups.up):
                up.append((spine, link))
                over.append(groups)
        return Groups(self._tor_seed[near], tuple(up), tuple(over), tuple(into[spine] for spine, _ in up))

    def _from(self, tor: int) -> list[tuple[int, int]]:
        """(spine, parallel link) of a ToR's live links, in the order of its ports."""
        known = self._up.get(tor)
        if known is None:
            spine, link = np.nonzero(self._rate[tor] > 0)
            order = np.argsort(self._tor_port[tor, spine, link])
            known = self._up[tor] = list(zip(spine[order].tolist(), link[order].tolist(), strict=True))
        return known

    def _into(self, tor: int) -> list[tuple[int, tuple[int, ...]]]:
        """For every spine: its hash seed, and its live links to a ToR in the order of its ports."""
        known = self._down.get(tor)
        if known is None:
            live = (self._rate[tor] > 0).tolist()
            order = np.argsort(self._spine_port[tor], axis=1, kind="stable").tolist()
            known = self._down[tor] = [
                (seed, tuple(link for link in order[spine] if live[spine][link]))
                for spine, seed in enumerate(self._spine_seed[tor])
            ]
        return known


def _tiers(cables: AnyCabling) -> tuple[_Tier, _Tier | None]:
    """The tier of leaves, and that of aggs and cores if there is one."""

    def seeds(names: Sequence[str]) -> list[int]:
        return [cables.topology.switch(name).hash_seed if name else 0 for name in names]

    if isinstance(cables, Cabling):
        rate, spine_seed = cables.fabric.link_rate_bps, seeds(cables.spines)
        every = [spine_seed] * len(cables.tors)
        return _Tier(rate, cables.tor_port, cables.spine_port, seeds(cables.tors), every), None
    fabric = cables.fabric
    agg_seed = [seeds(names) for names in cables.aggs]
    core_seed = [(seeds(names) + [0] * fabric.cores)[: fabric.cores] for names in cables.cores]
    low = _Tier(
        fabric.low.link_rate_bps,
        cables.leaf_port,
        cables.agg_down_port,
        seeds(cables.leaves),
        [agg_seed[pod] for pod in fabric.leaf_pod.tolist()],
    )
    rate = fabric.high.link_rate_bps
    agg_port, core_port = (port.reshape(rate.shape) for port in (cables.agg_up_port, cables.core_port))
    return low, _Tier(rate, agg_port, core_port, [seed for pod in agg_seed for seed in pod], core_seed * fabric.pods)


def pods_of(fabric: AnyClos) -> list[int]:
    """The pod of each leaf; all are in one where there are no pods."""
    return [0] * fabric.tors if isinstance(fabric, Clos) else fabric.leaf_pod.tolist()
