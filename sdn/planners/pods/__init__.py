# SPDX-License-Identifier: Apache-2.0
"""Planners for three tiers: a Clos of pods is two fabrics of two tiers, one above the other.

`PodClos` composes them, and every planner here is made of those for two tiers, or looks at whole paths.
"""

from sdn.planners.pods.cabling import PodCabling, pod_cabling
from sdn.planners.pods.ilp import ilp
from sdn.planners.pods.incremental import IncrementalPods, PodRoute, repair
from sdn.planners.pods.model import PodClos, PodPlan
from sdn.planners.pods.optimal import optimal
from sdn.planners.pods.others import annealing, ecmp, greedy

__all__ = [
    "IncrementalPods",
    "PodCabling",
    "PodClos",
    "PodPlan",
    "PodRoute",
    "annealing",
    "ecmp",
    "greedy",
    "ilp",
    "optimal",
    "pod_cabling",
    "repair",
]
