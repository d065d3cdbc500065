# SPDX-License-Identifier: Apache-2.0
"""The ways of pairs whose path an operator has pinned. Pure.

Of the ways that have the wanted links the least congested one is taken, and kept until links change.
"""

from collections.abc import Callable, Mapping

import numpy as np

from sdn.path_service.constraints import PinnedPair, Via
from sdn.path_service.parties import Pair
from sdn.path_service.ports import PortTables
from sdn.planners import links
from sdn.planners.links import AnyClos, AnyPlan, Way
from sdn.planners.planner import AnyCabling


class ManualPins:
    """Pinned ways by the addresses of a pair's NICs."""

    def __init__(self, cables: AnyCabling) -> None:
        self._cables = cables
        self._wanted: dict[PinnedPair, list[frozenset[int]]] = {}
        self._chosen: dict[PinnedPair, Way | None] = {}

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def __contains__(self, pair: Pair) -> bool:
        return _addresses(pair) in self._wanted

    def change(self, pins: Mapping[PinnedPair, Via]) -> None:
        """Pin these pairs, and no others. Raises KeyError for a link that is not between two switches."""
        number = self._cables.link_number
        self._wanted = {ends: [frozenset(map(number, some)) for some in via] for ends, via in pins.items()}
        self._chosen = {}

    def way(self, pair: Pair, tables: PortTables, fabric: AnyClos, plan: Callable[[], AnyPlan]) -> Way | None:
        """The way of a pinned pair; None where no way over live links of `fabric` that ports take is as wanted."""
        ends = _addresses(pair)
        if ends not in self._chosen:
            self._chosen[ends] = self._best(pair, self._wanted[ends], tables, fabric, plan)
        return self._chosen[ends]

    def copied(self) -> "ManualPins":
        """The same pins, to be changed on their own."""
        made = ManualPins(self._cables)
        made._wanted, made._chosen = dict(self._wanted), dict(self._chosen)
        return made

    def forget(self) -> None:
        """Choose all ways anew: links have changed."""
        self._chosen = {}

    def _best(
        self,
        pair: Pair,
        wanted: list[frozenset[int]],
        tables: PortTables,
        fabric: AnyClos,
        plan: Callable[[], AnyPlan],
    ) -> Way | None:
        src, dst = pair.client.nic, pair.peer.nic
        if fabric.nic_tor[src] == fabric.nic_tor[dst]:
            return None
        rates = links.rates(fabric)
        fitting = {}
        for way in tables.ways(src, dst):
            taken = links.on_way(fabric, src, dst, way)
            if all(rates[[*taken]] > 0) and not any(some.isdisjoint(taken) for some in wanted):
                fitting[way] = taken
        if pair.way in fitting or not fitting:
            return pair.way if fitting else None
        loads = links.loads(plan())
        direction = np.arange(len(next(iter(fitting.values())))) % 2  # `on_way` has links up and down alternately

        def worst(way: Way) -> float:
            taken = [*fitting[way]]
            return float(((loads[direction[: len(taken)], taken] + 1) / rates[taken]).max())

        return min(fitting, key=worst)


def _addresses(pair: Pair) -> PinnedPair:
    return pair.client.key[0], pair.peer.at[0]
