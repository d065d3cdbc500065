# SPDX-License-Identifier: Apache-2.0
"""Switches, transceivers, cost and power of rail-optimised and rail-only fabrics (section V-E, Equations 4 and 5).

The paper says "a minimum layer Clos network with the provided switch radix" and gives no rule. This rule reproduces its
Table II. A folded Clos of radix-k switches with full bisection, for n endpoints, has

    n <= k        1 tier    n / k switches      (all ports go down)
    n <= k^2 / 2  2 tiers   3 n / k switches    (2 n / k leaves, half of their ports up, and n / k spines)
    n <= k^3 / 4  3 tiers   5 n / k switches    (2 n / k twice, and n / k)

and n links below each tier, GPU-to-leaf links included, with a transceiver at both ends. A rail-optimised fabric is one
Clos of all GPUs, a rail-only one K Clos of n / K each. If a rail needs less than one switch, rails share switches.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

SWITCH_USD_PER_PORT = 694
TRANSCEIVER_USD = 199
SWITCH_W_PER_PORT = 18
TRANSCEIVER_W = 9


@dataclass(frozen=True, slots=True)
class Fabric:
    """The parts of a fabric: `switches` of `radix` ports in `tiers`, and `transceivers`."""

    radix: int
    tiers: int
    switches: int
    transceivers: int

    @property
    def usd(self) -> int:
        """Equation 4: cost of the network's equipment in US dollars, at 400 Gbit/s."""
        return self.switches * self.radix * SWITCH_USD_PER_PORT + self.transceivers * TRANSCEIVER_USD

    @property
    def watts(self) -> int:
        """Equation 5: peak power in W."""
        return self.switches * self.radix * SWITCH_W_PER_PORT + self.transceivers * TRANSCEIVER_W


def rail_optimised(gpus: int, radix: int) -> Fabric:
    """One Clos of all GPUs. Raises ValueError if three tiers are not enough or counts are below 1."""
    return _clos(gpus, radix, copies=1)


def rail_only(gpus: int, radix: int, gpus_per_domain: int) -> Fabric:
    """One Clos for each of the `gpus_per_domain` rails. Raises ValueError as above, and for incomplete domains."""
    if gpus_per_domain < 1 or gpus < 1 or gpus % gpus_per_domain:
        raise ValueError(f"{gpus} GPUs do not fill HB domains of {gpus_per_domain}; take a multiple")
    return _clos(gpus // gpus_per_domain, radix, copies=gpus_per_domain)


def saving(before: float, after: float) -> float:
    """The reduction from `before` to `after`, as a fraction of `before`."""
    return 1 - after / before


def _clos(endpoints: int, radix: int, copies: int) -> Fabric:
    if endpoints < 1 or radix < 2:
        raise ValueError(f"a Clos of {endpoints} endpoints and switches of {radix} ports is none")
    for tiers, (most, multiple) in enumerate(
        [(Fraction(radix), 1), (Fraction(radix**2, 2), 3), (Fraction(radix**3, 4), 5)], start=1
    ):
        if endpoints <= most:
            switches = ceil(Fraction(multiple * endpoints * copies, radix))
            return Fabric(radix, tiers, switches, 2 * tiers * endpoints * copies)
    raise ValueError(
        f"{endpoints} endpoints are more than three tiers of {radix}-port switches carry, {radix**3 // 4}; "
        "take switches of more ports"
    )
