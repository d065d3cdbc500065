# SPDX-License-Identifier: Apache-2.0
"""Whether ports keep their path: a change of routes, or switches that spray packets, told apart by time.

A port that is probed twice at one TTL and named two routers was moved. After a change of routes all ports stay again,
until the next change. Where switches spray (adaptive routing, flowlet switching), at most half of the ports that are
probed again stay, at any time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from netmodel.probing.observations import Observation

Verdict: TypeAlias = Literal["steady", "moved", "sprayed", "unclear"]

_STAYS_PER_CHANGE = 7
"""Sprayed packets stay that often, for one change, with a probability below 1 %: (1/2)^7, with two paths."""
_SPRAYED_STAYS_PER_CHANGE = 2
"""With two paths, a sprayed port stays about once for each time that it moves; with more paths, more rarely."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What repeated probes of ports tell about one pair of hosts."""

    changes_s: tuple[float, ...]
    """The fewest times that explain every move of a port, ascending: each is between two probes of that port."""
    stays: int
    """Pairs of successive probes of one port at one TTL, without a change between them: both named one router."""

    @property
    def verdict(self) -> Verdict:
        """`steady`: no port moved. `moved`: routes changed, and ports stay since. `unclear`: probe ports again."""
        changes = len(self.changes_s)
        if not changes:
            return "steady"
        if self.stays >= _STAYS_PER_CHANGE * changes:
            return "moved"
        return "sprayed" if changes > 1 and self.stays <= _SPRAYED_STAYS_PER_CHANGE * changes else "unclear"


def steadiness(observations: Iterable[Observation]) -> Steadiness:
    """How steady the ports of one pair are. The observations are those of one pair, in any order."""
    seen: dict[tuple[int, int], list[tuple[float, str]]] = {}
    for observation in observations:
        if observation.answer == "hop" and observation.router is not None:
            seen.setdefault((observation.source_port, observation.ttl), []).append(
                (observation.at_s, observation.router)
            )
    moves: list[tuple[float, float]] = []
    stays: list[tuple[float, float]] = []
    for answers in seen.values():
        answers.sort()
        for (before_s, before), (after_s, after) in pairwise(answers):
            (stays if before == after else moves).append((before_s, after_s))
    changes_s = _fewest_times(moves)
    free = sum(bisect_left(changes_s, begin_s) == bisect_right(changes_s, end_s) for begin_s, end_s in stays)
    return Steadiness(changes_s, free)


def _fewest_times(intervals: list[tuple[float, float]]) -> tuple[float, ...]:
    """The fewest times of which at least one lies in every interval: always the end of the first one without."""
    times: list[float] = []
    for begin_s, end_s in sorted(intervals, key=lambda interval: interval[1]):
        if not times or times[-1] < begin_s:
            times.append(end_s)
    return tuple(times)
