# SPDX-License-Identifier: Apache-2.0
"""Collectives among GPUs in high-bandwidth (HB) domains: rank d * x + g is GPU g of domain d, on rail g (from 0)."""

from dataclasses import dataclass

from pydantic import Field

from testbed.conflict import Conflict
from testbed.workloads.base import VerifiedWorkload


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of y domains with x GPUs each."""

    x: int
    y: int

    def rank(self, domain: int, gpu: int) -> int:
        """The rank of the GPU with this domain and number."""
        return domain * self.x + gpu

    def place(self, rank: int) -> tuple[int, int]:
        """Domain and GPU of a rank."""
        return divmod(rank, self.x)


class GridWorkload(VerifiedWorkload):
    """The base of collectives on such a grid. `gpus_per_domain` is x.

    With `separate_phases` a rank starts on a network when it has completed its transfers on the previous one, as the
    equations of Rail-only (arXiv 2307.12169v5) assume. Without it, data is forwarded as soon as it has arrived.
    """

    gpus_per_domain: int = Field(ge=1)
    separate_phases: bool = True

    def check_ranks(self, ranks: int) -> None:
        """Raises Conflict when `ranks` do not fill whole domains."""
        super().check_ranks(ranks)
        if ranks % self.gpus_per_domain:
            raise Conflict(
                f"{ranks} ranks do not fill domains of {self.gpus_per_domain} GPUs; take a divisor of {ranks}",
                "gpus_per_domain",
            )

    def grid(self, ranks: int) -> Grid:
        """The grid of `ranks` ranks."""
        return Grid(self.gpus_per_domain, ranks // self.gpus_per_domain)
