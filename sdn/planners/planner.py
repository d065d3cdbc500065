# SPDX-License-Identifier: Apache-2.0
"""A planner and the topologies that it serves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from netmodel import Path, Topology, tiers
from netmodel.fabric_tiers import CORE
from sdn.planners.cabling import Cabling, cabling
from sdn.planners.model import Clos, Commodities, Plan
from sdn.planners.pods.cabling import PodCabling, pod_cabling
from sdn.planners.pods.model import PodClos, PodPlan

AnyCabling: TypeAlias = Cabling | PodCabling


@dataclass(frozen=True, slots=True)
class Planner:
    """A function from a fabric of two tiers and its commodities to a plan. Called like that function."""

    plan: Callable[[Clos, Commodities], Plan]
    in_pods: Callable[[PodClos, Commodities], PodPlan] | None = None
    """The same for three tiers. None: it serves two tiers only."""

    def __call__(self, fabric: Clos, commodities: Commodities) -> Plan:
        return self.plan(fabric, commodities)

    def cabling(self, topology: Topology) -> AnyCabling:
        """A topology as the planner takes it. Raises ValueError, which says why, for one that it does not serve."""
        three = self.in_pods is not None and CORE in tiers(topology).values()
        return pod_cabling(topology) if three else cabling(topology)

    def paths(self, cables: AnyCabling, commodities: Commodities) -> list[Path | None]:
        """The planned path of every commodity, None without one, on a fabric of `cabling`."""
        count = range(len(commodities))
        if isinstance(cables, Cabling):
            plan = self.plan(cables.fabric, commodities)
            return [cables.path(plan, commodity) for commodity in count]
        assert self.in_pods is not None  # see `cabling`
        pods = self.in_pods(cables.fabric, commodities)
        return [cables.path(pods, commodity) for commodity in count]
