# SPDX-License-Identifier: Apache-2.0
"""The single failures of a two-level Clos, and the plan after each."""

from dataclasses import dataclass

import numpy as np

from sdn.planners import Clos, Plan, repair


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """The failure of a link of a spine, if `tor` and `link` are given, or of the whole spine, if neither is."""

    spine: int
    tor: int | None = None
    link: int | None = None

    def __post_init__(self) -> None:
        if (self.tor is None) != (self.link is None):
            raise ValueError("a failed link has a ToR and a number; a failed spine has neither")

    def leaves(self, fabric: Clos) -> Clos:
        """The fabric after the failure. Raises IndexError when `fabric` has no such link or spine."""
        if self.tor is None or self.link is None:
            return fabric.without(spines=[self.spine])
        return fabric.without(links=[(self.tor, self.spine, self.link)])


def failures(fabric: Clos, plan: Plan | None = None) -> list[Failure]:
    """Every failure of a live link, or of a spine with one, in descending order of the demand that it would cut.

    The demand is that of `plan`, both ways. Failures of equal demand, or without a plan, are ordered by kind, spines
    first, and by number.
    """
    live = fabric.link_rate_bps > 0
    load = np.zeros(live.shape) if plan is None else plan.loads.sum(axis=0)
    found = [(-float(load[:, s].sum()), Failure(s)) for s in range(fabric.spines) if live[:, s].any()]
    found += [(-float(load[t, s, k]), Failure(s, t, k)) for t, s, k in np.argwhere(live).tolist()]
    return [
        failure
        for _, failure in sorted(found, key=lambda ranked: (ranked[0], ranked[1].tor is not None, _key(ranked[1])))
    ]


def plan_after(plan: Plan, failure: Failure) -> Plan:
    """The plan to change to after `failure`. It keeps working routes where that does not increase congestion.

    See `sdn.planners.repair`. Raises IndexError when the fabric has no such link or spine.
    """
    return repair(plan, failure.leaves(plan.fabric))


def _key(failure: Failure) -> tuple[int, int, int]:
    return failure.spine, -1 if failure.tor is None else failure.tor, -1 if failure.link is None else failure.link
