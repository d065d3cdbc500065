# SPDX-License-Identifier: Apache-2.0
"""Path lengths, bandwidth taxes and loads of links where hosts forward (sections 5.4 and 5.5, Figures 13 to 15).

The paper's numbers are those of circuits in both directions: a ring of stride p is one of stride n - p too, and takes
two of a server's d ports. The strides are those of its released code. Circuits of ours lead one way, so d ports have d
rings.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sdn.topoopt import coin_change, least_ring_load, select_permutations, shortest_permutations, totient_perms

SERVERS = 128
RATIOS = tuple(0.025 * 2**k for k in range(6))
"""All-to-all over all-reduce bytes, for batches of 64 to 2,048 per GPU (Figure 12)."""

_RELEASED = {4: (1, 13), 8: (1, 3, 11, 37)}
"""By degree: strides of rings in both directions."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Statistics of shortest paths by `strides`, over all ordered pairs of distinct servers."""

    strides: tuple[int, ...]
    hops: tuple[int, ...]
    """Circuits on the way to each other server, ascending."""
    loads: tuple[float, ...]
    """By stride: bytes of uniform all-to-all on each circuit, relative to the most loaded ones."""
    excess: float
    """Bytes of uniform all-to-all on the most loaded circuit, relative to routes of the least load."""

    @property
    def mean_hops(self) -> float:
        """The mean of `hops`."""
        return sum(self.hops) / len(self.hops)

    @property
    def diameter(self) -> int:
        """The largest of `hops`."""
        return self.hops[-1]

    @property
    def least_load(self) -> float:
        """The load of the least loaded circuit, relative to the most loaded one."""
        return min(self.loads)

    def tax(self, ratio: float) -> float:
        """Bytes on circuits over bytes sent, where all-reduce is direct and all-to-all has `ratio` times its bytes.

        The printed taxes follow if the block that a server keeps counts as sent, over no circuit.
        """
        hops = self.mean_hops * (SERVERS - 1) / SERVERS
        return (1 + hops * ratio) / (1 + ratio)


def both_ways(degree: int) -> Forwarding:
    """The paper's topology of `degree` ports, 4 or 8."""
    strides = _RELEASED[degree]
    return forwarding(tuple(way for stride in strides for way in (stride, SERVERS - stride)))


def one_way(degree: int) -> Forwarding:
    """Ours, by Algorithms 2 and 3 with one-way circuits."""
    return forwarding(select_permutations(SERVERS, degree, totient_perms(SERVERS)))


@lru_cache
def best_one_way(degree: int) -> Forwarding:
    """The one-way circuits with the least mean path length: a ring of stride 1 and `degree` - 1 others."""
    return forwarding(shortest_permutations(SERVERS, degree, totient_perms(SERVERS)))


def forwarding(strides: Sequence[int]) -> Forwarding:
    """Routes by CoinChangeMod. By symmetry all circuits of a stride have the same load."""
    sums = coin_change(SERVERS, strides)[1:]
    crossed = Counter(stride for strides_used in sums for stride in strides_used)
    most = max(crossed.values())
    hops, loads = sorted(len(strides_used) for strides_used in sums), [crossed[stride] / most for stride in strides]
    return Forwarding(tuple(strides), tuple(hops), tuple(loads), most / least_ring_load(SERVERS, strides))
