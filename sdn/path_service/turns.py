# SPDX-License-Identifier: Apache-2.0
"""Turns: hosts share the service's time fairly, however much work their lines are. No I/O.

Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996): every host has a virtual
time, which advances by the time that its turns take. The host that is least far goes next, so a host that asks for
little never waits for more than the turn in progress. The connections of one host go round.

A host of which nothing is kept begins at a virtual time that goes on with the work that is done. If it began with the
host whose turn it is, addresses that are new again and again would go before all others for ever.

Turns may be within other turns, as one worker there: so all that is done for strangers together has a part of the time,
which they share fairly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from time import perf_counter
from typing import Protocol
from weakref import WeakValueDictionary

TURN_S = 0.001
"""Seconds after which a turn ends, at the next line."""


class Worker(Protocol):
    """Something with work to do in turns, such as a connection with lines to handle."""

    def turn(self, until_s: float) -> bool:
        """Works until this time of the clock, or until nothing is left. Returns whether something is left."""
        ...


class Share:
    """One host's part of the time, `weight` times as large as that of a share of weight 1."""

    __slots__ = ("__weakref__", "end_s", "waiting", "weight")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.end_s = 0.0
        """The virtual time at which its last turn ended, or from which on it may have one."""
        self.waiting: deque[Worker] = deque()


class Turns:
    """Which worker works next. `clock` gives seconds and never goes back.

    `within` has the turns in which these are one worker, and their share of the time there.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, within: tuple[Turns, Share] | None = None) -> None:
        self._clock = clock
        self._within = within
        self._is_waiting = False  # within these
        self._now_s = 0.0  # the virtual time: when the present turn has begun
        self._new_s = 0.0  # the virtual time at which new shares begin
        self._most_s = 0.0  # the highest virtual time at which a turn has ended: new shares begin no later
        self._weight = 0.0  # of all shares with waiting workers
        self._queue: list[tuple[float, float, int, Share]] = []  # shares with waiting workers, by virtual time
        self._count = 0
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()

    def share(self, host: str) -> Share:
        """What the workers of a host share, by the address that it connects from."""
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = Share()
            share.end_s = max(self._new_s, self._now_s)
        return share

    def wait(self, share: Share, worker: Worker) -> None:
        """A worker that does not wait yet asks for turns, until nothing of its work is left."""
        share.waiting.append(worker)
        if len(share.waiting) == 1:
            self._weight += share.weight
            self._push(share)
        if self._within is not None and not self._is_waiting:
            self._is_waiting = True
            outer, ours = self._within
            outer.wait(ours, self)

    def turn(self, until_s: float) -> bool:
        """Gives turns until this time of the clock. Returns whether workers still wait."""
        self._is_waiting = self.run(until_s - self._clock())
        return self._is_waiting

    def charge(self, share: Share, took_s: float) -> None:
        """A host's work was done without a turn, while nobody waited, in this time."""
        if share.end_s > self._now_s:
            self._now_s = share.end_s
        share.end_s = self._now_s + took_s

    def run(self, most_s: float) -> bool:
        """Gives turns for this time in seconds. Returns whether workers still wait."""
        clock, queue = self._clock, self._queue
        now_s = clock()
        end_s = now_s + most_s
        while queue and now_s < end_s:
            begin_s = now_s
            self._now_s, _, _, share = heappop(queue)
            waiting = share.waiting
            until_s = min(begin_s + TURN_S, end_s)
            while waiting and now_s < until_s:
                worker = waiting[0]
                left = worker.turn(until_s)
                waiting.popleft()
                if left:
                    waiting.append(worker)
                now_s = clock()
            took_s = now_s - begin_s
            share.end_s = self._now_s + took_s / share.weight
            self._most_s = max(self._most_s, share.end_s)
            self._new_s = min(max(self._new_s, self._now_s) + took_s / self._weight, self._most_s)
            if waiting:
                self._push(share)
            else:
                self._weight -= share.weight
        return bool(queue)

    def _push(self, share: Share) -> None:
        self._count += 1
        # Of shares that are equally far, the one goes first whose last turn ended earlier.
        heappush(self._queue, (max(share.end_s, self._now_s), share.end_s, self._count, share))
