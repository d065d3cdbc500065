# SPDX-License-Identifier: Apache-2.0
"""Exact max-min fair rates by progressive filling: a fast function, and a plain reference for tests.

The rates of all flows rise together, in proportion to their weights, until a link is full. The rates of its flows are
then fixed, and the others continue to rise (D. Bertsekas and R. Gallager, "Data Networks", 2nd ed., section 6.5.2). In
the result, no rate can be raised without lowering one that is, per weight, no larger.
"""

from collections import defaultdict
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sdn import _native

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int32]


def max_min_rates(capacity: _Floats, links: _Ints, weight: _Floats) -> _Floats:
    """The rate of each flow, in the unit of `capacity`.

    `capacity` is per link, not negative, perhaps infinite. `links[f]` has the distinct numbers of the links that flow f
    crosses, and -1 for none. `weight` is per flow, above 0. A flow without any finite link gets infinity.
    O((flows + links) log links). Raises ValueError for arrays that do not fit.
    """
    return _native.max_min_rates(capacity, links, weight)


def max_min_rates_reference(capacity: _Floats, links: _Ints, weight: _Floats) -> _Floats:
    """The same by definition, with exact fractions: O(links * (flows + links)), for tests."""
    crossed = [[int(link) for link in row if link >= 0 and np.isfinite(capacity[link])] for row in links]
    weights = [Fraction(float(w)) for w in weight]
    left = {link: Fraction(float(capacity[link])) for row in crossed for link in row}
    rate: list[Fraction | None] = [None] * len(crossed)
    while True:
        rising: defaultdict[int, Fraction] = defaultdict(Fraction)
        for flow, row in enumerate(crossed):
            if rate[flow] is None:
                for link in row:
                    rising[link] += weights[flow]
        if not rising:
            return np.array([np.inf if r is None else float(r) for r in rate], dtype=np.float64)
        full = min(rising, key=lambda link: left[link] / rising[link])
        level = left[full] / rising[full]
        for flow, row in enumerate(crossed):
            if rate[flow] is None and full in row:
                rate[flow] = level * weights[flow]
                for link in row:
                    left[link] -= level * weights[flow]
