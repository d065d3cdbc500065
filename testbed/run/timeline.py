# SPDX-License-Identifier: Apache-2.0
"""Carries out the events of a spec during a run, in a separate thread."""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from testbed.analysis.observations import HappenedEvent
from testbed.spec import Event

_CLOSE_BEFORE_S, _CLOSE_AFTER_S = 0.5, 2.5


def near_event(events: Sequence[Event], at_s: float) -> bool:
    """Whether `at_s` is at most 0.5 s before or 2.5 s after some event."""
    return any(event.at_s - _CLOSE_BEFORE_S <= at_s <= event.at_s + _CLOSE_AFTER_S for event in events)


class Timeline:
    """A context manager that calls `act` with each event when the event is due.

    `look` is called before and returns the switch ports that the event will concern. `act` returns the monotonic time
    at which hosts were sent new assignments, or None. Times of events count from `start_s` of the monotonic clock.
    Leaving the context drops events that have not begun, waits for one that has, and raises the error of `act` or
    `look`.
    """

    def __init__(
        self,
        events: Sequence[Event],
        start_s: float,
        act: Callable[[Event], float | None],
        look: Callable[[Event], list[str]],
    ) -> None:
        self.happened: list[HappenedEvent] = []
        self._events = sorted(events, key=lambda event: event.at_s)
        self._start_s = start_s
        self._act = act
        self._look = look
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)

    def __enter__(self) -> Self:
        if self._events:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._events:
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        for event in self._events:
            if self._over.wait(max(0.0, self._start_s + event.at_s - time.monotonic())):
                return
            try:
                concerned = self._look(event)
                at_s = time.monotonic() - self._start_s
                sent_s = self._act(event)
            except Exception as error:
                self._error = error
                return
            done_s = time.monotonic() - self._start_s
            self.happened.append(
                HappenedEvent(
                    what=event.what,
                    at_s=at_s,
                    done_s=done_s,
                    sent_s=None if sent_s is None else sent_s - self._start_s,
                    concerned=concerned,
                )
            )
