# SPDX-License-Identifier: Apache-2.0
"""What operators ask of plans of measured paths. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from netmodel import PortRef
from sdn.measured.discovery import PairKey
from sdn.measured.fabric import Links

Via = tuple[frozenset[PortRef], ...]
"""A path has a link of each of these sets."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What operators ask of the plan."""

    drained: frozenset[PortRef] = frozenset()
    pins: Mapping[tuple[int, int], Via] = field(default_factory=dict)
    """By source and destination NIC."""

    def __bool__(self) -> bool:
        return bool(self.drained or self.pins)

    def permits(self, pair: PairKey, path: Links) -> bool:
        """Whether a path is as it is asked for."""
        via = self.pins.get(pair[:2], ())
        return self.drained.isdisjoint(path) and not any(some.isdisjoint(path) for some in via)

    def allowed(
        self, pair: PairKey, paths: list[Links], known: list[Links], is_alive: Callable[[Links], bool]
    ) -> list[Links]:
        """The paths that a plan may choose from, of all `paths` and those that are `known`.

        Where none that is known is as it is asked for, those are planned that are: then ports are looked for. Where
        there is none at all, what is asked for is left aside: first the pin, and then the drain.
        """
        if not self:
            return known
        fitting = [path for path in known if self.permits(pair, path)]
        if pair[:2] not in self.pins and (fitting or not known):
            return fitting
        fitting = [path for path in paths if is_alive(path) and self.permits(pair, path)]
        return fitting or [path for path in known if self.drained.isdisjoint(path)] or known
