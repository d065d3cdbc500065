# SPDX-License-Identifier: Apache-2.0
"""Forecasts of a job's flows: training sends the same bytes between the same hosts in every step.

A flow is what a job sends from one host to another. A flow may start several times in a period of its job, for example
in a pipeline's forward and backward pass. So the forecast looks for the lag, up to `MAX_LAG` starts, at which starts
have been a constant time apart for longest; the next start is expected that time after the start `lag` starts before
it. Until such a lag is known, the period that the host has announced is used.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

MAX_LAG = 4
"""The most starts of one flow in a period of its job."""

TOLERANCE = 0.2
"""The part of a period by which a start may deviate and still count as forecast. Intervals may differ by half of it."""

_INTERVALS = 3  # that must agree before a period is used
_STARTS = 3 * MAX_LAG  # kept per flow: a false lag holds for less than two periods
_MOST_FLOWS = 100_000
MOST_OF_SOURCE = 4_096
"""Flows that are kept of one source, so that one host cannot make `Forecast.expected` slow."""
_PHASE_GAP = 0.1  # of the period: a longer gap between starts separates two phases


@dataclass(frozen=True, slots=True)
class Announced:
    """An elephant has begun. `repeat_s` is the period that the host has announced, if any."""

    at_s: float
    job: str
    src: str
    dst: str
    bytes: int
    repeat_s: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class Expected:
    """An elephant that is expected to begin at `at_s`. Ordered by time."""

    at_s: float
    job: str
    src: str
    dst: str
    bytes: int
    period_s: float

    @property
    def latest_s(self) -> float:
        """The latest start that counts as forecast."""
        return self.at_s + TOLERANCE * self.period_s


@dataclass(frozen=True, slots=True)
class HitRate:
    """The quality of forecasts.

    `hits`: starts that came as forecast. `misses`: forecast starts that did not come in time. `unforeseen`: starts
    without a forecast, such as the first ones of every flow.
    """

    hits: int
    misses: int
    unforeseen: int

    @property
    def rate(self) -> float | None:
        """The part of forecast starts that came; None before the first forecast."""
        starts = self.hits + self.misses
        return self.hits / starts if starts else None


@dataclass(slots=True)
class _Flow:
    starts: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_STARTS))
    next: Expected | None = None


class Forecast:
    """Forecasts every job's flows. Not for several threads at once.

    Keeps the `most_flows` flows announced last, and of one source `MOST_OF_SOURCE`. The same events give the same
    forecasts.
    """

    def __init__(self, most_flows: int = _MOST_FLOWS) -> None:
        self._most_flows = most_flows
        self._flows: OrderedDict[tuple[str, str, str], _Flow] = OrderedDict()
        self._of_source: dict[str, OrderedDict[tuple[str, str, str], None]] = {}
        self._hits = self._misses = self._unforeseen = 0

    def observe(self, event: Announced) -> None:
        """Records the start of an elephant. A start that is not later than the last one of its flow is ignored."""
        key = event.job, event.src, event.dst
        flow = self._flows.setdefault(key, _Flow())
        if flow.starts and event.at_s <= flow.starts[-1][0]:
            return
        self._flows.move_to_end(key)
        of_source = self._of_source.setdefault(event.src, OrderedDict())
        of_source[key] = None
        of_source.move_to_end(key)
        if flow.next is None:
            self._unforeseen += 1
        elif abs(event.at_s - flow.next.at_s) <= TOLERANCE * flow.next.period_s:
            self._hits += 1
        else:
            self._misses += 1
        flow.starts.append((event.at_s, event.bytes))
        flow.next = _next_start(event, flow.starts)
        if len(of_source) > MOST_OF_SOURCE:
            self._forget(next(iter(of_source)))
        if len(self._flows) > self._most_flows:
            self._forget(next(iter(self._flows)))

    def _forget(self, key: tuple[str, str, str]) -> None:
        of_source = self._of_source[key[1]]
        del self._flows[key], of_source[key]
        if not of_source:
            del self._of_source[key[1]]

    def expected(self, now_s: float, within_s: float = float("inf")) -> list[Expected]:
        """Elephants that are expected up to `now_s` + `within_s`, including late ones. Linear in the flows."""
        found = []
        for flow in self._flows.values():
            if flow.next is None:
                continue
            if flow.next.latest_s < now_s:  # the job has ended, or its period has changed
                flow.next = None
                self._misses += 1
            elif flow.next.at_s <= now_s + within_s:
                found.append(flow.next)
        return sorted(found)

    @property
    def hit_rate(self) -> HitRate:
        """The quality of forecasts so far."""
        return HitRate(self._hits, self._misses, self._unforeseen)

    def __len__(self) -> int:
        """The number of flows that are kept."""
        return len(self._flows)


def phases(expected: Iterable[Expected]) -> list[tuple[Expected, ...]]:
    """Groups of one job's expected flows, without a gap of a tenth of its period between starts, by first start."""
    groups: list[list[Expected]] = []
    for _, flows in groupby(sorted(expected, key=lambda start: (start.job, start)), key=lambda start: start.job):
        fresh = True
        for flow in flows:
            if fresh or flow.at_s - groups[-1][-1].at_s > _PHASE_GAP * flow.period_s:
                groups.append([])
            groups[-1].append(flow)
            fresh = False
    return sorted(tuple(group) for group in groups)


def _next_start(event: Announced, starts: Sequence[tuple[float, int]]) -> Expected | None:
    """The start expected after `starts`, (time, bytes) ascending in time, of which `event` is the last."""
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
    """The number of last intervals that agree within half of TOLERANCE."""
    usual_s = median(intervals[-_INTERVALS:])
    for count, interval in enumerate(reversed(intervals)):
        if abs(interval - usual_s) > TOLERANCE / 2 * usual_s:
            return count
    return len(intervals)
