# SPDX-License-Identifier: Apache-2.0
"""The time that hosts leave: work that may wait is done in short steps between their lines.

Plans for failures have a small share of the time. What an operator waits for has a larger one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sdn.path_service.work import Work

Result = TypeVar("Result")

SPARE_EVERY_S = 0.02
"""Seconds between two calls of `SpareTime.prepare`."""
_IDLE_S = 0.02  # without a host's message for this time, the service is idle
_IDLE_SHARE = 0.25  # part of the time spent on failover plans while idle
_BUSY_SHARE = 0.05  # and while busy
_STEPS_S = 0.001  # of short steps before the event loop reads what has come
_REST = 4  # times as long as a step of an operator's work hosts have the time after it, while busy


class SpareTime:
    """Shares out the time that is left. `prepare_step` does one step ahead of failures, as `PathService.prepare`.

    `now` gives seconds. `note` gets when steps were begun, and how many were done. `clock` gives seconds too, also
    those of a step, which `now` may count later. `rest` waits for some seconds.
    """

    def __init__(
        self,
        now: Callable[[], float],
        prepare_step: Callable[[], bool],
        note: Callable[[float, int], None],
        clock: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.heard_s = 0.0
        """When a host has said something last."""
        self._now = now
        self._prepare_step = prepare_step
        self._note = note
        self._clock = clock
        self._rest = rest
        self._turn = asyncio.Lock()  # works of operators are done one by one
        self._rested_s = 0.0  # by the clock: until then hosts have the time after the last step of such a work
        self._prepared_s = 0.0
        self._spare_s = 0.0  # time that may be spent on failover plans; below 0 after a step that took long

    async def finish(self, work: Work[Result]) -> Result:
        """Does work that an operator waits for, once all that was asked for before is done."""
        async with self._turn:
            while True:
                await self._rest(max(0.0, self._rested_s - self._clock()))
                is_busy, begin_s = self._is_busy(), self._clock()  # during the step no host is heard
                try:
                    next(work)
                except StopIteration as ended:
                    result: Result = ended.value
                    return result
                finally:
                    end_s = self._clock()
                    self._rested_s = end_s + _REST * (end_s - begin_s) if is_busy else end_s

    def prepare(self) -> None:
        """Makes failover plans in a share of the time, a larger one while idle. A long step delays the next ones."""
        begin_s = self._now()
        share = _BUSY_SHARE if self._is_busy() else _IDLE_SHARE
        late = begin_s - self._prepared_s > 2 * SPARE_EVERY_S  # the event loop is overloaded
        self._prepared_s = begin_s
        self._spare_s = min(SPARE_EVERY_S, self._spare_s + share * SPARE_EVERY_S)
        if not late and self._spare_s >= 0:
            self._prepare_some()

    def _is_busy(self) -> bool:
        return self._now() - self.heard_s <= _IDLE_S

    def _prepare_some(self) -> None:
        """Spends spare time on failover plans, and lets the event loop read what has come meanwhile."""
        begin_s = self._now()
        steps, more, left_s = 0, True, min(self._spare_s, _STEPS_S)
        clock = self._clock
        begun_s = clock()
        while more and clock() - begun_s < left_s:
            more = self._prepare_step()
            steps += 1
        self._spare_s -= clock() - begun_s
        worked = steps if more else steps - 1  # a step that says that nothing is left has done nothing
        if worked > 0:
            self._note(begin_s, worked)
        if more and self._spare_s > 0:
            asyncio.get_running_loop().call_soon(self._prepare_some)
