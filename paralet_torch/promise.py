# SPDX-License-Identifier: Apache-2.0
"""Futures that end in a forked child too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import torch

from paralet_torch.callbacks import PATIENCE_S, CallbackThreads

_pending: set[Promise] = set()
_completing = threading.RLock()
"""Held from the moment a promise leaves `_pending` until its future is complete, and during a fork.

A child therefore never meets a future that a thread of its parent has half completed. It is let go before callbacks of
others run. It is reentrant for signal handlers that fork.
"""


class Promise:
    """The side of a `future` that completes it.

    The future has the result of `outcome`, or the exception that it raised. It is the result of a callback, because an
    exception of a callback is an error for C++ too. An exception that set_exception() sets is a value there, in which
    DistributedDataParallel would look for tensors and crash.
    """

    def __init__(self, outcome: Callable[[], list[torch.Tensor]]) -> None:
        self._ended: torch.futures.Future[None] = torch.futures.Future()
        self.future: torch.futures.Future[list[torch.Tensor]] = self._ended.then(lambda _: outcome())
        self.future.add_done_callback(lambda _: _completing.release())  # the first callback: it runs before others
        _pending.add(self)

    @property
    def pending(self) -> bool:
        """Whether `complete` was not called."""
        return self in _pending

    def complete(self) -> None:
        """Complete the future, once. Its callbacks run on this thread."""
        _completing.acquire()
        if self not in _pending:
            _completing.release()
            return
        _pending.remove(self)
        self._ended.set_result(None)


def _complete_all(promises: Sequence[Promise]) -> None:
    """Complete them on threads of their own: callbacks may wait for each other."""
    threads = CallbackThreads("paralet-fork")
    for promise in promises:
        threads.add(promise.complete)
    while threads.waiting:
        time.sleep(PATIENCE_S)
        threads.relieve()
    threads.stop()


def _end_in_child() -> None:
    """In a forked child no operation of the parent ends, so that the outcome of its promises is an error.

    The fork itself runs no callback and touches no future, because the parent's threads may have held their locks.
    """
    _completing.release()
    if _pending:
        threading.Thread(target=_complete_all, args=(list(_pending),), name="paralet-fork", daemon=True).start()


os.register_at_fork(before=_completing.acquire, after_in_parent=_completing.release, after_in_child=_end_in_child)
