# SPDX-License-Identifier: Apache-2.0
"""Switches and links of folded Clos fabrics, by the number of endpoints.

A folded Clos of radix-k switches with full bisection, for n endpoints, has

    n <= k        1 tier    n / k switches      (all ports go down)
    n <= k^2 / 2  2 tiers   3 n / k switches    (2 n / k leaves, half of their ports up, and n / k spines)
    n <= k^3 / 4  3 tiers   5 n / k switches    (2 n / k twice, and n / k)

and n links below each tier, endpoint-to-leaf links included. This reproduces Table II of Rail-only (W. Wang et al.,
arXiv 2307.12169v5). With oversubscription o, a leaf has o times as many ports down as up, and all tiers above carry
n / o.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil


@dataclass(frozen=True, slots=True)
class Parts:
    """What a fabric is made of. `ports` are those of all switches, used or not."""

    radix: int
    tiers: int
    switches: int
    links: int

    @property
    def ports(self) -> int:
        """Ports of all switches."""
        return self.switches * self.radix

    @property
    def transceivers(self) -> int:
        """One at each end of a link."""
        return 2 * self.links


def clos(endpoints: int, radix: int, copies: int = 1, oversubscription: int = 1, tiers: int | None = None) -> Parts:
    """`copies` equal fabrics of `endpoints` each; switches are shared where a fabric needs less than one.

    The fewest tiers that suffice, or `tiers`. Raises ValueError if they are not enough or counts are below 1.
    """
    if endpoints < 1 or radix < 2 or copies < 1 or oversubscription < 1:
        raise ValueError(f"a Clos of {endpoints} endpoints and switches of {radix} ports is none")
    down = Fraction(radix * oversubscription, oversubscription + 1)
    most = {1: Fraction(radix), 2: radix * down, 3: Fraction(radix**2, 2) * down}
    for count, limit in most.items():
        if endpoints <= limit and count >= (tiers or 1):
            above = Fraction(endpoints, oversubscription)
            leaves = Fraction(endpoints, radix) if count == 1 else endpoints / down
            switches = leaves + {1: Fraction(0), 2: above / radix, 3: 3 * above / radix}[count]
            links = endpoints + (count - 1) * ceil(above)
            return Parts(radix, count, ceil(switches * copies), links * copies)
    raise ValueError(
        f"{endpoints} endpoints are more than three tiers of {radix}-port switches carry, {int(most[3])}; "
        "take switches of more ports"
    )
