# SPDX-License-Identifier: Apache-2.0
"""When elephants end, computed from their announced bytes and the max-min fair rates of their paths."""

import numpy as np
import numpy.typing as npt

from sdn.planners.model import SAME, UNREACHABLE, Floats, Plan, links_of
from sdn.planners.rates import max_min_rates

_MOST_ROUNDS = 64


def ends_s(plan: Plan, remaining_bytes: npt.ArrayLike, *, most_rounds: int = _MOST_ROUNDS) -> Floats:
    """Seconds from now until each commodity has sent its remaining bytes; infinity when it has no path.

    Between two ends, rates are max-min fair in proportion to the plan's demands; after an end the others share the
    capacity. After `most_rounds` ends at different times rates stay constant, which bounds the work (some milliseconds
    per round for 100,000 commodities). Raises ValueError for negative remaining bytes, or an array of another shape.
    """
    left = 8.0 * np.asarray(remaining_bytes, dtype=np.float64)
    if left.shape != (len(plan.commodities),) or (left < 0).any():
        raise ValueError(f"{len(plan.commodities)} commodities need as many numbers of bytes, none below 0")
    capacity, links = links_of(plan)
    demand = plan.commodities.demand
    end = np.where(left > 0, np.inf, 0.0)
    active = np.flatnonzero((left > 0) & (plan.spine != UNREACHABLE))
    now_s = 0.0
    left = left[active]
    for round_left in range(max(1, most_rounds), 0, -1):
        if not active.size:
            break
        rates = max_min_rates(capacity, links[active], demand[active])
        lasts = left / rates
        step_s = float(lasts.min())
        ended = lasts <= step_s * (1 + SAME) if round_left > 1 else np.ones(active.size, dtype=bool)
        end[active[ended]] = now_s + lasts[ended]
        now_s += step_s
        left = (left - rates * step_s)[~ended]
        active = active[~ended]
    return end
