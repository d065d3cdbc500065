# SPDX-License-Identifier: Apache-2.0
"""Numbers for the links of a topology. Each direction of a cable is a link of its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from netmodel import PortRef, Topology

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_Number = TypeVar("_Number", int, npt.NDArray[np.int64])


@dataclass(frozen=True, eq=False)
class Links:
    """Each direction of each link of `topology`, identified by its egress port."""

    topology: Topology

    @cached_property
    def ports(self) -> tuple[PortRef, ...]:
        """The egress port of each link, by the link's number."""
        return tuple(end for link in self.topology.links for end in (link.a, link.b))

    @cached_property
    def rate_bps(self) -> Floats:
        """Rate of each link in bit/s."""
        return np.repeat(np.array([link.rate_bps for link in self.topology.links], dtype=np.float64), 2)

    def delay_s(self, default_s: float) -> Floats:
        """Delay of each link in seconds; `default_s` where the topology gives none."""
        own = (default_s if link.delay_s is None else link.delay_s for link in self.topology.links)
        return np.repeat(np.fromiter(own, dtype=np.float64, count=len(self.topology.links)), 2)

    @cached_property
    def _numbers(self) -> dict[PortRef, int]:
        return {port: number for number, port in enumerate(self.ports)}

    def __len__(self) -> int:
        return 2 * len(self.topology.links)

    def number(self, port: PortRef) -> int:
        """The link that leaves by `port`. Raises KeyError when no cable is plugged in there."""
        self.topology.link_at(port)  # raises KeyError with a message
        return self._numbers[port]

    def row(self, path: Iterable[PortRef]) -> list[int]:
        """The link numbers of a path."""
        return [self.number(port) for port in path]

    @staticmethod
    def back(number: _Number) -> _Number:
        """The reverse direction of a link, or of each link of an array."""
        return number ^ 1
