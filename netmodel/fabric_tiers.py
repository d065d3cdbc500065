# SPDX-License-Identifier: Apache-2.0
"""The tiers of a fabric, and its pods: what is joined below the cores."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from netmodel.topology import PortRef, Role, Topology

LEAF, MIDDLE, CORE = 1, 2, 3
_OF_ROLE: Mapping[Role, int] = MappingProxyType({"leaf": LEAF, "agg": MIDDLE, "spine": MIDDLE, "core": CORE})


@lru_cache(maxsize=8)
def tiers(topology: Topology) -> Mapping[str, int]:
    """The tier of every packet switch: 1 for a leaf, 2 for an agg or spine, 3 for a core.

    A spine whose links all lead to spines and aggs is a core, so that fabrics written with the roles leaf and spine
    only have tiers too.
    """
    role = {switch.name: switch.role for switch in topology.switches}
    beside: dict[str, set[Role | None]] = {name: set() for name in role}
    for link in topology.links:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if near.node in beside:
                beside[near.node].add(role.get(far.node))
    upper: set[Role | None] = {"spine", "agg"}
    tier = {name: _OF_ROLE[its] for name, its in role.items() if its in _OF_ROLE}  # in the order of the switches
    tier |= {name: CORE for name, its in role.items() if its == "spine" and beside[name] and beside[name] <= upper}
    return MappingProxyType(tier)


def top_switches(topology: Topology) -> list[str]:
    """The switches of the highest tier above the leaves: spines, or cores where there are any."""
    tier = tiers(topology)
    top = max(tier.values(), default=LEAF)
    return [name for name in tier if LEAF < tier[name] == top]


@lru_cache(maxsize=8)
def uplinks(topology: Topology) -> tuple[PortRef, ...]:
    """Every switch port whose link leads to a switch of a higher tier, in the order of the topology's links."""
    tier = tiers(topology)
    found = []
    for link in topology.links:
        if link.a.node in tier and link.b.node in tier and tier[link.a.node] != tier[link.b.node]:
            found.append(min(link.a, link.b, key=lambda end: tier[end.node]))
    return tuple(found)


@lru_cache(maxsize=8)
def pods(topology: Topology) -> Mapping[str, int]:
    """The pod, from 0, of every switch below the cores: switches that links join without a core are in one pod."""
    tier = tiers(topology)
    beside: dict[str, list[str]] = {switch.name: [] for switch in topology.switches if tier.get(switch.name, 0) != CORE}
    for link in topology.links:
        if link.a.node in beside and link.b.node in beside:
            beside[link.a.node].append(link.b.node)
            beside[link.b.node].append(link.a.node)
    pod: dict[str, int] = {}
    count = 0
    for start in beside:
        if start in pod:
            continue
        number, count = count, count + 1
        pod[start] = number
        pending = [start]
        while pending:
            for near in beside[pending.pop()]:
                if near not in pod:
                    pod[near] = number
                    pending.append(near)
    return MappingProxyType(pod)
