# SPDX-License-Identifier: Apache-2.0
"""The next flows of jobs, learned from what repeats: training sends the same bytes between the same hosts every step.

A flow is what a job sends from one host to another. Its starts repeat with the job's period, maybe several times in
each (a pipeline's forward and backward pass, say): the lag up to `MAX_LAG` is sought at which starts have been a
constant time apart for longest, and the next start is that much later than the one so many before it. Until that is
seen, the period that the host itself has announced stands in.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

MAX_LAG = 4
"""Starts of one flow in a period of its job, at most."""

TOLERANCE = 0.2
"""By which part of the period a start may be off and still count as foreseen, and intervals differ and still be one."""

_INTERVALS = 3  # that must agree before a period is believed
_STARTS = 3 * MAX_LAG  # remembered: a false lag holds for less than two periods
_MOST_FLOWS = 100_000
_PHASE_GAP = 0.1  # of the period: flows whose starts are farther apart belong to different phases


@dataclass(frozen=True, slots=True)
class Announced:
    """An elephant begins. `repeat_s`: the period that the host expects, if it says so."""

    at_s: float
    job: str
    src: str
    dst: str
    bytes: int
    repeat_s: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class Expected:
    """An elephant that should begin at `at_s`. Ordered by time."""

    at_s: float
    job: str
    src: str
    dst: str
    bytes: int
    period_s: float

    @property
    def latest_s(self) -> float:
        """Begun later than this, it does not count as foreseen."""
        return self.at_s + TOLERANCE * self.period_s


@dataclass(frozen=True, slots=True)
class HitRate:
    """How good the forecast has been.

    `hits`: starts that came as foreseen. `misses`: foreseen ones that did not come in time. `unforeseen`: starts of
    which nothing was known, as the first ones of every flow are.
    """

    hits: int
    misses: int
    unforeseen: int

    @property
    def rate(self) -> float | None:
        """The part of what was foreseen that came; None before anything was foreseen."""
        told = self.hits + self.misses
        return self.hits / told if told else None


@dataclass(slots=True)
class _Flow:
    starts: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_STARTS))
    next: Expected | None = None


class Forecast:
    """What is known of every job's flows. Not for several threads at once.

    Remembers `most_flows` flows, those announced last. The same events give the same answers.
    """

    def __init__(self, most_flows: int = _MOST_FLOWS) -> None:
        self._most_flows = most_flows
        self._flows: OrderedDict[tuple[str, str, str], _Flow] = OrderedDict()
        self._hits = self._misses = self._unforeseen = 0

    def observe(self, event: Announced) -> None:
        """Takes in that an elephant has begun. Times must not run backwards within a flow; one that does is ignored."""
        key = event.job, event.src, event.dst
        flow = self._flows.setdefault(key, _Flow())
        if flow.starts and event.at_s <= flow.starts[-1][0]:
            return
        self._flows.move_to_end(key)
        if flow.next is None:
            self._unforeseen += 1
        elif abs(event.at_s - flow.next.at_s) <= TOLERANCE * flow.next.period_s:
            self._hits += 1
        else:
            self._misses += 1
        flow.starts.append((event.at_s, event.bytes))
        flow.next = _next_start(event, flow.starts)
        if len(self._flows) > self._most_flows:
            self._flows.popitem(last=False)

    def expected(self, now_s: float, within_s: float = float("inf")) -> list[Expected]:
        """What should begin until `now_s` + `within_s`, or should have already and still may. Linear in the flows."""
        found = []
        for flow in self._flows.values():
            if flow.next is None:
                continue
            if flow.next.latest_s < now_s:  # the job has ended, or changed its ways; it has to be learned anew
                flow.next = None
                self._misses += 1
            elif flow.next.at_s <= now_s + within_s:
                found.append(flow.next)
        return sorted(found)

    @property
    def hit_rate(self) -> HitRate:
        """How good it has been so far."""
        return HitRate(self._hits, self._misses, self._unforeseen)

    def __len__(self) -> int:
        """How many flows are remembered."""
        return len(self._flows)


def phases(expected: Iterable[Expected]) -> list[tuple[Expected, ...]]:
    """Expected flows in groups that begin together: one job's, with no gap of a tenth of its period. By first start."""
    groups: list[list[Expected]] = []
    for _, flows in groupby(sorted(expected, key=lambda one: (one.job, one)), key=lambda one: one.job):
        fresh = True
        for flow in flows:
            if fresh or flow.at_s - groups[-1][-1].at_s > _PHASE_GAP * flow.period_s:
                groups.append([])
            groups[-1].append(flow)
            fresh = False
    return sorted(tuple(group) for group in groups)


def _next_start(event: Announced, starts: Sequence[tuple[float, int]]) -> Expected | None:
    """What follows `starts`, (time, bytes) ascending in time, of which `event` is the last."""
    times = [at_s for at_s, _ in starts]
    longest, lag, period_s = 0, 0, 0.0
    for candidate in range(1, min(MAX_LAG, len(times) - _INTERVALS) + 1):
        intervals = [later - earlier for earlier, later in zip(times, times[candidate:], strict=False)]
        steady = _steady(intervals)
        if steady > longest:
            longest, lag, period_s = steady, candidate, median(intervals[-steady:])
    if longest >= _INTERVALS:
        at_s, size = starts[-lag]
        return Expected(at_s + period_s, event.job, event.src, event.dst, size, period_s)
    if event.repeat_s is not None and event.repeat_s > 0:
        return Expected(event.at_s + event.repeat_s, event.job, event.src, event.dst, event.bytes, event.repeat_s)
    return None


def _steady(intervals: Sequence[float]) -> int:
    """How many of the last intervals are alike."""
    usual_s = median(intervals[-_INTERVALS:])
    for count, interval in enumerate(reversed(intervals)):
        if abs(interval - usual_s) > TOLERANCE / 2 * usual_s:
            return count
    return len(intervals)
