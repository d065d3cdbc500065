# SPDX-License-Identifier: Apache-2.0
"""Planners: pure functions from a fabric and its commodities to a path for each. docs/planners.md compares them.

"Cohen et al." is O. Cohen, J. Yallouz, M. Schapira, S. Belkar and T. Mizrahi, "Routing for Large ML Models",
arXiv:2503.05324, 2025.

All take a `Clos` and `Commodities` and return a `Plan`, which has the predicted rates and a bound of the distance from
the optimum. Those in `sdn.planners.pods` take a `PodClos`, of three tiers, and return a `PodPlan`.
"""

from types import MappingProxyType

from sdn.planners import pods
from sdn.planners.annealing import annealing
from sdn.planners.bounds import Bound, congestion_bound
from sdn.planners.cabling import Cabling, cabling
from sdn.planners.ecmp import ecmp, ecmp_hashed
from sdn.planners.greedy import greedy
from sdn.planners.ilp import ilp
from sdn.planners.incremental import Incremental, Route, repair
from sdn.planners.model import LOCAL, UNREACHABLE, Clos, Commodities, Plan
from sdn.planners.named import NamedPlanners
from sdn.planners.objective import Fairness
from sdn.planners.optimal import optimal
from sdn.planners.order import c4p, crux, largest_first
from sdn.planners.planner import Planner
from sdn.planners.rates import max_min_rates

DEFAULT_PLANNER = "optimal"

PLANNERS = NamedPlanners(
    MappingProxyType(
        {
            "optimal": Planner(optimal, pods.optimal),
            "greedy": Planner(greedy, pods.greedy),
            "annealing": Planner(annealing, pods.annealing),
            "ilp": Planner(ilp, pods.ilp),
            "ecmp": Planner(ecmp, pods.ecmp),
        }
    )
)
"""Every planner by name."""

__all__ = [
    "DEFAULT_PLANNER",
    "LOCAL",
    "PLANNERS",
    "UNREACHABLE",
    "Bound",
    "Cabling",
    "Clos",
    "Commodities",
    "Fairness",
    "Incremental",
    "Plan",
    "Planner",
    "Route",
    "annealing",
    "c4p",
    "cabling",
    "congestion_bound",
    "crux",
    "ecmp",
    "ecmp_hashed",
    "greedy",
    "ilp",
    "largest_first",
    "max_min_rates",
    "optimal",
    "repair",
]
