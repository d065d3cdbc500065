# SPDX-License-Identifier: Apache-2.0
"""Planners by name: ours, and those of other packages, which are imported when they are asked for."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from sdn.planners.model import Clos, Commodities, Plan
from sdn.planners.planner import Planner

GROUP = "paralet.planners"


class NamedPlanners(Mapping[str, Planner]):
    """All planners by name. An entry point of the group `paralet.planners` adds one, and cannot replace one of ours.

    It leads to a `Planner`, or to a function from a `Clos` and its `Commodities` to a `Plan`. Asking for one that
    cannot be imported raises ValueError, which says why.
    """

    def __init__(self, ours: Mapping[str, Planner]) -> None:
        self.ours = ours

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in self.ours}

    def __iter__(self) -> Iterator[str]:
        return iter((*self.ours, *self._others))

    def __len__(self) -> int:
        return len(self.ours) + len(self._others)

    def __getitem__(self, name: str) -> Planner:
        if name in self.ours:
            return self.ours[name]
        other = self._others[name]
        try:
            found: Planner | Callable[[Clos, Commodities], Plan] = other.load()
        except Exception as error:  # whatever its module does
            raise ValueError(f"planner {name} is {other.value}, which cannot be imported: {error}") from error
        if not callable(found):
            raise ValueError(f"planner {name} is {other.value}, which is no function and no sdn.planners.Planner")
        return found if isinstance(found, Planner) else Planner(found)

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self._others
