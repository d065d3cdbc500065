# SPDX-License-Identifier: Apache-2.0
"""Paths of elephants that are planned again whenever a part of a job begins or ends communication.

The planners are kept up as in the path service (`sdn.path_service.planning`): a change moves few other elephants.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

from netmodel import Link, Path
from sdn.path_service.planning import Ends, LivePlan, exchange, live_plan
from sdn.planners import PLANNERS, Cabling
from sdn.planners.pods import IncrementalPods, PodCabling
from testbed.allocation.demands import Pair
from testbed.simulate.lane_paths import elephants
from testbed.simulate.runs import Traffic
from testbed.spec import Instance, Policy
from testbed.workloads import Talk, Transfer


class _Kept(Protocol):
    """A plan that is kept up, with paths by commodity."""

    def exchange(
        self, departing: Iterable[int], arriving: Sequence[Ends]
    ) -> tuple[list[int], Mapping[int, Path | None]]:
        """The numbers of those that arrive, and the path of each commodity whose route changed."""
        ...

    def refit(self, dead_links: Iterable[Link]) -> Mapping[int, Path | None]:
        """The paths of all commodities while these links are dead."""
        ...


class _TwoTiers:
    """Any planner on a leaf-spine."""

    def __init__(self, cables: Cabling, plan: LivePlan) -> None:
        self._cables, self._plan = cables, plan
        self._ends: dict[int, Ends] = {}

    def exchange(
        self, departing: Iterable[int], arriving: Sequence[Ends]
    ) -> tuple[list[int], Mapping[int, Path | None]]:
        numbers, changed = exchange(self._plan, departing, arriving)
        self._ends |= zip(numbers, arriving, strict=True)
        return numbers, {
            route.commodity: self._cables.path_by(*self._ends[route.commodity], *route[1:]) for route in changed
        }

    def refit(self, dead_links: Iterable[Link]) -> Mapping[int, Path | None]:
        self._plan.refit(self._cables.without(dead_links).fabric)
        plan = self._plan.plan()
        return {number: self._cables.path(plan, at) for at, number in enumerate(self._plan.numbers())}


class _ThreeTiers:
    """`optimal` on a Clos of three tiers."""

    def __init__(self, cables: PodCabling) -> None:
        self._cables, self._plan = cables, IncrementalPods(cables.fabric)
        self._ends: dict[int, Ends] = {}

    def exchange(
        self, departing: Iterable[int], arriving: Sequence[Ends]
    ) -> tuple[list[int], Mapping[int, Path | None]]:
        changed = {route.commodity: route for number in departing for route in self._plan.depart(number)}
        numbers = []
        for ends in arriving:
            route, others = self._plan.arrive(*ends)
            numbers.append(route.commodity)
            changed |= {planned.commodity: planned for planned in (*others, route)}
        self._ends |= zip(numbers, arriving, strict=True)
        return numbers, {
            number: self._cables.path_by(*self._ends[number], *route[1:]) for number, route in changed.items()
        }

    def refit(self, dead_links: Iterable[Link]) -> Mapping[int, Path | None]:
        self._plan.refit(self._cables.without(dead_links).fabric)
        plan = self._plan.plan()
        return {number: self._cables.path(plan, at) for at, number in enumerate(self._plan.numbers())}


class TalkPlanner:
    """The elephants that talk now, and their paths. Pairs are numbered by their place in `pairs`."""

    def __init__(
        self,
        instance: Instance,
        policy: Policy,
        pairs: Sequence[Pair],
        transfers: Sequence[Transfer],
        talks: Sequence[Talk],
    ) -> None:
        experiment, planner = instance.experiment, policy.planner_name
        cables = PLANNERS[planner].cabling(experiment.topology)
        self._plan: _Kept
        if isinstance(cables, Cabling):
            self._plan = _TwoTiers(cables, live_plan(planner, cables.fabric))
        else:
            self._plan = _ThreeTiers(cables)
        self._topology = experiment.topology
        self._nics = [cables.nic(host, experiment.nic) for host in instance.hosts]
        self._pairs = pairs
        number = {pair: place for place, pair in enumerate(pairs)}
        self._beginning: dict[int | None, list[Sequence[int]]] = {}
        self._ending: dict[int | None, list[Sequence[int]]] = {}
        for talk in talks:
            sent: Counter[Pair] = Counter()
            for place in talk.transfers:
                transfer = transfers[place]
                sent[transfer.src, transfer.dst] += transfer.count * experiment.spec.workload.item_bytes
            own = [number[pair] for pair in elephants(instance, policy, sent)]
            self._beginning.setdefault(talk.begin, []).append(own)
            self._ending.setdefault(talk.end, []).append(own)
        self._users: Counter[int] = Counter()  # by pair: parts of jobs that talk
        self._commodity: dict[int, int] = {}  # by pair
        self._pair: dict[int, int] = {}  # by commodity

    @classmethod
    def of(cls, instance: Instance, policy: Policy, traffic: Traffic) -> Self | None:
        """The planner of policy `controller`; None under others, and where no job begins and ends by itself."""
        talks = traffic.dependencies.talks
        if not policy.kind.service or not talks:
            return None
        return cls(instance, policy, traffic.pairs, traffic.transfers, talks)

    @property
    def milestones(self) -> list[int]:
        """The messages with whose delivery something begins or ends."""
        return sorted({message for message in (*self._beginning, *self._ending) if message is not None})

    def start(self) -> dict[int, Path]:
        """The paths of the pairs that talk from the start."""
        return self.reached([None])

    def reached(self, messages: Iterable[int | None]) -> dict[int, Path]:
        """The new paths, by pair, after these messages were delivered: of pairs that begin, and of those that move."""
        messages = list(messages)
        departing: list[int] = []
        for pair in _listed(self._ending, messages):
            self._users[pair] -= 1
            if not self._users[pair]:
                departing.append(self._commodity.pop(pair))
                del self._pair[departing[-1]]
        arriving: list[int] = []
        for pair in _listed(self._beginning, messages):
            self._users[pair] += 1
            if self._users[pair] == 1:
                arriving.append(pair)
        ends = [(self._nics[src], self._nics[dst]) for src, dst in (self._pairs[pair] for pair in arriving)]
        numbers, changed = self._plan.exchange(departing, ends)
        self._commodity |= zip(arriving, numbers, strict=True)
        self._pair |= zip(numbers, arriving, strict=True)
        return {self._pair[n]: path for n, path in changed.items() if n in self._pair and path is not None}

    def refit(self, dead_links: frozenset[Link]) -> dict[int, Path]:
        """The paths of all pairs that talk, by pair, while these links are dead."""
        hosts = {host.name for host in self._topology.hosts}
        between = [link for link in dead_links if hosts.isdisjoint((link.a.node, link.b.node))]
        paths = self._plan.refit(between)
        return {self._pair[number]: path for number, path in paths.items() if path is not None}


def _listed(lists: dict[int | None, list[Sequence[int]]], messages: Iterable[int | None]) -> Iterator[int]:
    return (pair for message in messages for own in lists.get(message, ()) for pair in own)
