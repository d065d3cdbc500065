# SPDX-License-Identifier: Apache-2.0
"""The single failures of a fabric of two tiers or three, and the plan after each."""

from typing import TypeAlias, cast

import numpy as np

from sdn.planners import Clos, Plan, links, pods, repair
from sdn.planners.links import AnyClos, AnyPlan
from sdn.planners.pods import PodClos

Failure: TypeAlias = frozenset[int]
"""The links that fail together, by their numbers in `sdn.planners.links`: one, or all of a switch above the leaves."""


def failures(fabric: AnyClos, plan: AnyPlan | None = None) -> list[Failure]:
    """Every failure of a live link, or of a switch above the leaves, in descending order of the demand it would cut.

    The demand is that of `plan`, both ways. Of failures of equal demand, or without a plan, switches come first, and
    then the order is that of numbers. A switch with one live link is a failure of that link.
    """
    live = np.flatnonzero(links.rates(fabric) > 0)
    load = np.zeros(links.rates(fabric).size) if plan is None else links.loads(plan).sum(axis=0)
    cut = {frozenset(switch): float(load[switch].sum()) for switch in links.of_switches(fabric)}
    for link, demand in zip(live.tolist(), load[live].tolist(), strict=True):
        cut[frozenset((link,))] = demand
    return sorted(cut, key=lambda failure: -cut[failure])


def plan_after(plan: AnyPlan, failure: Failure) -> AnyPlan:
    """The plan to change to after `failure`. It keeps working routes where that does not increase congestion.

    See `sdn.planners.repair`. Raises IndexError when the fabric has no such link.
    """
    return repaired(plan, links.without(plan.fabric, failure))


def repaired(plan: AnyPlan, fabric: AnyClos) -> AnyPlan:
    """A plan for the same commodities on the same fabric with other links dead, by `repair` for two tiers or three."""
    if isinstance(plan, Plan):
        return repair(plan, cast(Clos, fabric))
    return pods.repair(plan, cast(PodClos, fabric))
