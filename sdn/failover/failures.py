# SPDX-License-Identifier: Apache-2.0
"""Every single failure of a two-level Clos, and the plan that follows it."""

from dataclasses import dataclass

import numpy as np

from sdn.planners import Clos, Plan, repair


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A spine, or one of its links: `tor` and `link` are both given (a link), or neither is (the whole spine)."""

    spine: int
    tor: int | None = None
    link: int | None = None

    def __post_init__(self) -> None:
        if (self.tor is None) != (self.link is None):
            raise ValueError("a failed link has a ToR and a number; a failed spine has neither")

    def leaves(self, fabric: Clos) -> Clos:
        """What is left of `fabric`. Raises IndexError where it has no such link or spine."""
        if self.tor is None or self.link is None:
            return fabric.without(spines=[self.spine])
        return fabric.without(links=[(self.tor, self.spine, self.link)])


def failures(fabric: Clos, plan: Plan | None = None) -> list[Failure]:
    """Every live link and every spine with one, those first whose loss would hurt most.

    That is the demand on them in `plan`, both ways; without a plan, or among equals, spines come first, then numbers
    decide.
    """
    live = fabric.link_rate_bps > 0
    load = np.zeros(live.shape) if plan is None else plan.loads.sum(axis=0)
    found = [(-float(load[:, s].sum()), Failure(s)) for s in range(fabric.spines) if live[:, s].any()]
    found += [(-float(load[t, s, k]), Failure(s, t, k)) for t, s, k in np.argwhere(live).tolist()]
    return [failure for _, failure in sorted(found, key=lambda one: (one[0], one[1].tor is not None, _key(one[1])))]


def plan_after(plan: Plan, failure: Failure) -> Plan:
    """The plan to go over to when `failure` happens: routes that still work are kept where that costs nothing.

    See `sdn.planners.repair`. Raises IndexError where the fabric has no such link or spine.
    """
    return repair(plan, failure.leaves(plan.fabric))


def _key(failure: Failure) -> tuple[int, int, int]:
    return failure.spine, -1 if failure.tor is None else failure.tor, -1 if failure.link is None else failure.link
