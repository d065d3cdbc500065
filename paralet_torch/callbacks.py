# SPDX-License-Identifier: Apache-2.0
"""Threads for the callbacks of futures: code of others, which may wait for the results of other callbacks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

PATIENCE_S = 0.01
"""How long a call waits for a thread when all are in calls that wait, before another one is started."""

_AT_ONCE = 4
"""Threads that are started without delay, and stay."""
_LAST_CALLS_S = 5.0


class CallbackThreads:
    """Runs calls in the order in which they were added, without ever depending on the end of one that runs.

    Call `relieve` every `PATIENCE_S` seconds while calls are `waiting`. The number of threads is then at most four, or
    one more than the number of calls that wait at the same time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._moved_at = 0.0  # when a call was last added to none, or taken, or a thread was started for it
        self._stopped = False

    @property
    def waiting(self) -> bool:
        """Whether calls wait for a thread."""
        return bool(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        """Run a call on one of the threads."""
        with self._changed:
            if not self._calls:
                self._moved_at = time.monotonic()
            self._calls.append(call)
            self._changed.notify()
            if len(self._calls) > self._idle and len(self._threads) < _AT_ONCE:
                self._start()

    def relieve(self) -> None:
        """Start one more thread if no call was taken for `PATIENCE_S`."""
        with self._changed:
            if self._calls and time.monotonic() - self._moved_at >= PATIENCE_S:
                self._start()

    def stop(self) -> None:
        """Let the threads end after the last call. Waits for them, but not for calls that do not end in 5 seconds."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        until = time.monotonic() + _LAST_CALLS_S
        while (others := self._threads - {threading.current_thread()}) and time.monotonic() < until:
            others.pop().join(PATIENCE_S)
            self.relieve()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-callbacks", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # the process may start no more threads now: `relieve` tries again
        self._threads.add(thread)
        self._moved_at = time.monotonic()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # with its tensors, before the next wait

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._calls:
                if self._stopped or len(self._threads) > _AT_ONCE:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._moved_at = time.monotonic()
            return self._calls.popleft()
