# SPDX-License-Identifier: Apache-2.0
"""The load of direct connections by an all-to-all among HB domains, which relay for one another. Pure.

Each NIC that is spent on all-to-alls is one permutation "+p" of a group's domains on its patch panel or optical switch,
as in TopoOpt (W. Wang et al., NSDI 2023, section 4.3). An all-to-all does not need rings, so p may have a divisor in
common with the number of domains; TopoOpt's rings may not.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from sdn.topoopt import coin_change, select_permutations

_UNCONNECTED = 1e9
"""Stands for infinity where no NIC is spent: such a strategy is never the fastest, and sums stay numbers."""


@dataclass(frozen=True, slots=True)
class Permutations:
    """Circuits of `nics` NICs of every HB domain, for all-to-alls within each expert group."""

    nics: int

    def __call__(self, domains: int) -> float:
        """Bytes on the busiest circuit of a group, as a multiple of what one domain sends to each other one."""
        return _busiest(self.nics, domains)

    def strides(self, domains: int) -> list[tuple[int, int]]:
        """The permutations of a group's domains, and how many NICs have each."""
        if self.nics >= domains - 1:
            return [(stride, self.nics // (domains - 1)) for stride in range(1, domains)]
        return [(stride, 1) for stride in select_permutations(domains, self.nics, range(1, domains))]


@lru_cache(maxsize=4096)
def _busiest(nics: int, domains: int) -> float:
    distances = range(1, domains)
    if not nics:
        return _UNCONNECTED
    if nics >= len(distances):  # a direct circuit to each; further NICs double as many of them as all have
        return 1 / (nics // len(distances))
    # All domains have the same permutations, and so each permutation carries the same on all its circuits.
    strides = select_permutations(domains, nics, distances)
    return float(max(Counter(chain.from_iterable(coin_change(domains, strides))).values()))
