# SPDX-License-Identifier: Apache-2.0
"""A planner and the topologies that it serves."""

from collections.abc import Callable
from dataclasses import dataclass

from netmodel import Topology
from sdn.planners.cabling import Cabling, cabling
from sdn.planners.model import Clos, Commodities, Plan


@dataclass(frozen=True, slots=True)
class Planner:
    """A function from a fabric and its commodities to a plan. Called like that function."""

    plan: Callable[[Clos, Commodities], Plan]
    cabling: Callable[[Topology], Cabling] = cabling
    """A topology as the function takes it. Raises ValueError, which says why, for one that it does not serve."""

    def __call__(self, fabric: Clos, commodities: Commodities) -> Plan:
        return self.plan(fabric, commodities)
