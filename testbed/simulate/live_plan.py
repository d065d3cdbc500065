# SPDX-License-Identifier: Apache-2.0
"""Paths of elephants that are planned again whenever a part of a job begins or ends communication.

The planners are kept up as in the path service (`sdn.path_service.planning`): a change moves few other elephants.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from netmodel import Link, Path
from sdn.path_service.planning import AnyRoute, exchange, live_plan, route_of
from sdn.planners import PLANNERS
from sdn.planners.links import ways
from testbed.allocation.routes import Pair
from testbed.simulate.lane_paths import elephants
from testbed.simulate.runs import Traffic
from testbed.spec import Instance, Policy
from testbed.workloads import Talk, Transfer


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
        self._cables, self._plan = cables, live_plan(planner, cables.fabric)
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
        numbers, changed = exchange(self._plan, departing, ends)
        self._commodity |= zip(arriving, numbers, strict=True)
        self._pair |= zip(numbers, arriving, strict=True)
        return self._paths(route for route in changed if route.commodity in self._pair)

    def refit(self, dead_links: frozenset[Link]) -> dict[int, Path]:
        """The paths of all pairs that talk, by pair, while these links are dead."""
        hosts = {host.name for host in self._topology.hosts}
        between = [link for link in dead_links if hosts.isdisjoint((link.a.node, link.b.node))]
        self._plan.refit(self._cables.without(between).fabric)
        numbers = self._plan.numbers()
        return self._paths(map(route_of, numbers, ways(self._plan.plan())))

    def _paths(self, routes: Iterable[AnyRoute]) -> dict[int, Path]:
        """The path of each route that has one, by pair."""
        found: dict[int, Path] = {}
        for route in routes:
            pair = self._pair[route.commodity]
            ends = (self._nics[rank] for rank in self._pairs[pair])
            path = self._cables.path_by(*ends, *route[1:])
            if path is not None:
                found[pair] = path
        return found


def _listed(lists: dict[int | None, list[Sequence[int]]], messages: Iterable[int | None]) -> Iterator[int]:
    return (pair for message in messages for own in lists.get(message, ()) for pair in own)
