# SPDX-License-Identifier: Apache-2.0
"""Switches, transceivers, cost and power of rail-optimised and rail-only fabrics (section V-E, Equations 4 and 5).

The paper says "a minimum layer Clos network with the provided switch radix" and gives no rule. That of
`testbed.research.cluster_plans.clos` reproduces its Table II. A rail-optimised fabric is one Clos of all GPUs, a
rail-only one K Clos of n / K each. If a rail needs less than one switch, rails share switches.
"""

from dataclasses import dataclass, replace

import numpy as np

from testbed.research.cluster_plans.clos import clos

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


def with_spares(fabric: Fabric, switches: int) -> Fabric:
    """A fabric with that many more switches (section IV-C), whose ports are empty."""
    return replace(fabric, switches=fabric.switches + switches)


def switches_left(before: Fabric, usd_saved: float, watts_saved: float) -> float:
    """The fraction of `before`'s switches that is left, from the fractions saved: Equations 4 and 5, solved."""
    ports, transceivers = before.switches * before.radix, before.transceivers
    parts = [
        [ports * SWITCH_USD_PER_PORT, transceivers * TRANSCEIVER_USD],
        [ports * SWITCH_W_PER_PORT, transceivers * TRANSCEIVER_W],
    ]
    left = [before.usd * (1 - usd_saved), before.watts * (1 - watts_saved)]
    return float(np.linalg.solve(parts, left)[0])


def _clos(endpoints: int, radix: int, copies: int) -> Fabric:
    parts = clos(endpoints, radix, copies)
    return Fabric(radix, parts.tiers, parts.switches, parts.transceivers)
