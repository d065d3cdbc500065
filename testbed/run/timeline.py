# SPDX-License-Identifier: Apache-2.0
"""The events of a spec, made to happen while a run goes on, each by a given action, in a thread of their own."""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from testbed.analysis.observations import HappenedEvent
from testbed.spec import Event

_CLOSE_BEFORE_S, _CLOSE_AFTER_S = 0.5, 2.5


def near_event(events: Sequence[Event], at_s: float) -> bool:
    """Whether a moment of a run is one to look at closely: something is about to happen, or has just happened."""
    return any(event.at_s - _CLOSE_BEFORE_S <= at_s <= event.at_s + _CLOSE_AFTER_S for event in events)


class Timeline:
    """A context manager: while it is entered, `act` is called with each event when its time has come.

    Before that `look` tells whom the event will concern. `act` returns when hosts had been sent what follows from it,
    if they are. Times count from `start_s` of the monotonic clock. Leaving it drops what has not begun, waits for what
    has, and raises what was raised.
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
