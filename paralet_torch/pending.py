# SPDX-License-Identifier: Apache-2.0
"""The works of a group that have not ended, and the thread that concludes those that nobody waits for."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator

import torch.distributed as dist

from hostlib.collectives import Group
from paralet_torch.callbacks import PATIENCE_S, CallbackThreads
from paralet_torch.work import ParaletWork

_MANY = 64


class PendingWorks:
    """Keeps works, and with them the memory of their operations, until they have ended, also if the caller drops them.

    A thread of its own, started with the first asynchronous work, moves their data and takes note of their ends. It
    runs no code of others: `CallbackThreads` complete the futures, because that runs their callbacks.
    """

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self._name = name
        self._lock = threading.Lock()
        self._works: dict[int, ParaletWork] = {}  # by operation
        self._thread: threading.Thread | None = None
        self._callbacks = CallbackThreads(f"paralet-{name}")
        _open.add(self)

    @contextlib.contextmanager
    def issuing(self, asynchronous: bool) -> Iterator[None]:
        """Around issue and `add`, so that the thread meets no operation that it does not know.

        Raises DistBackendError when the thread cannot be started.
        """
        with self._lock:
            if asynchronous and self._thread is None:
                thread = threading.Thread(target=self._run, name=f"paralet-{self._name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise dist.DistBackendError(
                        "cannot start a thread: raise the limit of this user with `ulimit -u`, or that of the "
                        "container (pids.max)"
                    ) from error
                self._thread = thread
            yield

    def add(self, work: ParaletWork) -> None:
        """Keep a work. Call it within `issuing`."""
        if len(self._works) >= _MANY:  # works that nobody waited for
            for kept in list(self._works.values()):
                if all(operation.done for operation in kept.operations):
                    self.discard(kept)
        for operation in work.operations:
            self._works[operation.id] = work

    def discard(self, work: ParaletWork) -> None:
        """Forget a work that has ended. Takes no lock: it is called from everywhere."""
        for operation in work.operations:
            self._works.pop(operation.id, None)

    def stop(self) -> None:
        """Close the group: its works fail, and the threads end. In a forked child there is neither."""
        self._group.close()
        _open.discard(self)
        if self._group.inherited:
            return
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        works = set(self._works.values())
        self._works.clear()
        for work in works:
            self._conclude(work)
        self._callbacks.stop()

    def _run(self) -> None:
        while not self._group.closed:
            self._conclude_finished(PATIENCE_S if self._callbacks.waiting else None)
            self._callbacks.relieve()

    def _conclude_finished(self, timeout_s: float | None) -> None:
        """Wait for operations that end. Returns with no reference to their works, and so to their tensors."""
        operations = self._group.take_finished(timeout_s)
        with self._lock:
            works = [self._works.pop(operation.id, None) for operation in operations]
        for work in works:
            if work is not None:
                self._conclude(work)

    def _conclude(self, work: ParaletWork) -> None:
        if work.conclude() and work.has_future:
            self._callbacks.add(work.complete_future)


_open: weakref.WeakSet[PendingWorks] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At exit, for programs that do not destroy their groups: no thread may be in the engine when Python ends."""
    for works in list(_open):
        works.stop()
