# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's handle of an operation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hostlib import TransportError
from hostlib.collectives import Operation
from paralet_torch.promise import Promise

_NO_LIMIT = timedelta(0)


class ParaletWork(dist.Work):
    """One or more operations of a group under way, as one `torch.distributed.Work`.

    Keeps the tensors of the operations alive. `settle` runs once when all have succeeded, before anybody learns of it:
    it copies results to their place. `on_end` is called once, after success and after failure.
    """

    def __init__(
        self,
        title: str,
        operations: Sequence[Operation],
        outputs: list[torch.Tensor],
        memory: Sequence[Any],
        settle: Sequence[Callable[[], None]] = (),
        on_end: Callable[[ParaletWork], None] | None = None,
    ) -> None:
        super().__init__()
        self.title = title
        self.operations = tuple(operations)
        self._outputs = outputs
        self._memory = memory
        self._settle = settle
        self._on_end = on_end
        self._lock = threading.Lock()
        self._promise: Promise | None = None
        self._over = False
        self._error: Exception | None = None

    @classmethod
    def of_all(cls, works: Sequence[ParaletWork]) -> ParaletWork:
        """One work of several, which ends when the last of them has."""
        operations = [operation for work in works for operation in work.operations]
        outputs = [output for work in works for output in work._outputs]
        return cls("coalesced operations", operations, outputs, works, [work.check for work in works])

    def check(self) -> None:
        """Take note of the end. Raises DistBackendError when it failed, and before the end."""
        if not self.finish():
            raise dist.DistBackendError(f"{self.title} is not complete")
        if self._error is not None:
            raise self._error

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait for the end; a `timeout` of 0 means without a limit.

        Raises DistBackendError when an operation failed, or is not done in time; it continues then.
        """
        limit_s = timeout.total_seconds()
        deadline = time.monotonic() + limit_s if limit_s > 0 else None
        for operation in self.operations:
            try:
                operation.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise dist.DistBackendError(f"{self.title} timed out: not done after {limit_s:g} s") from error
            except TransportError:
                continue  # it failed, and so will the others: check() says it in torch's words
        self.check()
        return True

    def is_completed(self) -> bool:
        """Whether all operations have ended, with success or not."""
        return self.finish()

    def is_success(self) -> bool:
        """Whether all operations have ended with success."""
        return self.finish() and self._error is None

    def exception(self) -> Exception | None:
        """Why it failed; None while it is under way and after success."""
        self.finish()
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The output tensors. Raises DistBackendError unless the work has succeeded."""
        if not self.is_success():
            raise self._error or dist.DistBackendError(f"{self.title} is not complete: wait() first")
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output tensors. Its wait() raises RuntimeError when the work failed.

        In a child that is forked before the end it raises DistBackendError.
        """
        self.finish()
        with self._lock:
            if self._promise is None:
                self._promise = Promise(self._outcome)
            promise, over = self._promise, self._over
        if over:
            promise.complete()
        return promise.future

    def source_rank(self) -> int:
        """Of a finished receive: the rank in the group that sent the message."""
        sources = [operation.source for operation in self.operations]
        if len(sources) != 1 or sources[0] is None:
            raise dist.DistBackendError(f"{self.title} has no source rank")
        return sources[0]

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Nothing to do for CPU tensors."""

    def finish(self) -> bool:
        """Take note if all operations have ended, and complete the future. Returns whether they have.

        Raises DistBackendError in a forked child, where an operation of the parent never ends.
        """
        if not self.conclude():
            return False
        self.complete_future()
        return True

    def conclude(self) -> bool:
        """As `finish`, but leaves the future: this runs no callback."""
        if not self._over:
            try:
                if not all(operation.done for operation in self.operations):
                    return False
            except TransportError as error:
                raise dist.DistBackendError(f"{self.title}: {error}") from error
            with self._lock:
                if self._over:
                    return True
                self._settle_all()
                self._over = True
            if self._on_end is not None:
                self._on_end(self)
        return True

    @property
    def has_future(self) -> bool:
        """Whether somebody has asked for the future, and it is not complete."""
        return self._promise is not None and self._promise.pending

    def complete_future(self) -> None:
        """Complete the future of a work that has ended. Its callbacks run on this thread."""
        if self._promise is not None:
            self._promise.complete()

    def _settle_all(self) -> None:
        errors = [operation.error for operation in self.operations if operation.error is not None]
        if errors:
            self._error = dist.DistBackendError(f"{self.title} failed: {errors[0]}")
        else:
            try:
                with torch.no_grad():
                    for step in self._settle:
                        step()
            except Exception as error:  # belongs to the caller that waits, on whichever thread this is
                self._error = error
        self._memory = self._settle = ()

    def _outcome(self) -> list[torch.Tensor]:
        self.conclude()  # raises in a forked child, unless the work was over before
        if self._error is not None:
            raise self._error
        return self._outputs
