# SPDX-License-Identifier: Apache-2.0
"""Commits to a store beside the event loop: what comes while one is under way is written together by the next."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from sdn.path_service.control.book import Change, Draft, State
from sdn.path_service.control.store import MOST_CHANGES, Store, StoreError, rfc3339

_COPIED = 1000
"""Changes that a copy has."""


class Copy(NamedTuple):
    """What a store has at a moment, with its last changes."""

    last: int
    entries: State
    changes: list[Change]


class Written(Protocol):
    """Where changes are written."""

    @property
    def closed(self) -> str | None:
        """Why nothing can be written now: one sentence."""
        ...

    @property
    def generation(self) -> int:
        """Of the service that writes."""
        ...

    @property
    def last(self) -> int:
        """The number of the last change that was written."""
        ...

    @property
    def entries(self) -> State:
        """The entries with which the service has begun."""
        ...

    async def write(self, draft: Draft) -> Change:
        """Writes a change. Raises StoreError, with nothing written."""
        ...

    async def changes(self, after: int, most: int) -> list[Change]:
        """The first `most` changes after this number that are kept. Raises StoreError."""
        ...


class Unstored:
    """Changes that are forgotten with the process."""

    def __init__(self) -> None:
        self.closed: str | None = None
        self.generation, self.last = 1, 0
        self.entries: State = {}
        self._changes: list[Change] = []

    async def write(self, draft: Draft) -> Change:
        self.last += 1
        at = rfc3339(time.time())
        self._changes.append(Change(self.last, self.generation, at, draft.who, draft.what, draft.edits))
        del self._changes[:-MOST_CHANGES]
        return self._changes[-1]

    async def changes(self, after: int, most: int) -> list[Change]:
        return [change for change in self._changes if change.number > after][:most]


class Writer:
    """Writes changes to a store in a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.closed: str | None = None
        self.generation, self.last, self.is_alone = store.generation, store.last, store.is_alone
        self.entries: State = store.entries
        self._waiting: list[tuple[Draft, asyncio.Future[Change]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "store")

    async def write(self, draft: Draft) -> Change:
        """Writes a change. It is on the disk when this returns. Raises StoreError, with nothing written."""
        future: asyncio.Future[Change] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def changes(self, after: int, most: int) -> list[Change]:
        """As `Store.changes`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.changes, after, most)

    async def keep(self, generation: int, alone: bool) -> None:
        """As `Store.keep`."""
        await self._do(self._store.keep, generation, alone)

    async def replace(self, generation: int, copy: Copy) -> None:
        """As `Store.replace`."""
        await self._do(self._store.replace, generation, copy.last, dict(copy.entries), copy.changes)

    async def follow(self, changes: Sequence[Change]) -> None:
        """As `Store.follow`."""
        await self._do(self._store.follow, changes)

    async def copy(self) -> Copy:
        """What is in the store now. Raises StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._copy)

    def _copy(self) -> Copy:
        store = self._store
        return Copy(store.last, store.entries, store.changes(max(0, store.last - _COPIED)))

    async def _do(self, work: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        store = self._store
        self.generation, self.last, self.entries = store.generation, store.last, store.entries

    def close(self) -> None:
        """Waits for what is being written, and closes the store."""
        self._thread.shutdown()
        self._store.close()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._task = None

    async def _write(self, batch: list[tuple[Draft, "asyncio.Future[Change]"]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            changes = await loop.run_in_executor(self._thread, self._store.write, [draft for draft, _ in batch])
        except StoreError as error:
            if len(batch) > 1:  # one of them may be what is wrong
                for each in batch:
                    await self._write([each])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
        else:
            self.last = changes[-1].number
            for (_, future), change in zip(batch, changes, strict=True):
                if not future.done():
                    future.set_result(change)
