# SPDX-License-Identifier: Apache-2.0
"""Changes that two services have: one is answered when it is on the disks of both, as long as one follows the other."""

import asyncio
from collections.abc import Callable

from sdn.path_service.control.book import Change, Draft, State
from sdn.path_service.control.store import StoreError
from sdn.path_service.control.writer import Writer


class Shared:
    """Where a service that may have another beside it writes changes. See `sdn.path_service.control.writer.Written`."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.closed: str | None = "this path service does not lead yet"
        self.ready = asyncio.Event()
        """Not set while this service has begun to lead and the disk does not say so yet: changes wait."""
        self.wrote: Callable[[Change], None] = lambda change: None
        """Called with each change that is on the disk here."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def generation(self) -> int:
        return self.writer.generation

    @property
    def last(self) -> int:
        return self.writer.last

    @property
    def entries(self) -> State:
        return self.writer.entries

    async def write(self, draft: Draft) -> Change:
        """Writes a change. Raises StoreError, also where the other service has taken over and may have it or not."""
        if self.closed is not None:
            raise StoreError(self.closed)
        await self.ready.wait()
        if self.closed is not None:
            raise StoreError(self.closed)
        change = await self.writer.write(draft)
        there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change.number, there))
        self.wrote(change)
        await there
        return change

    async def changes(self, after: int, most: int) -> list[Change]:
        return await self.writer.changes(after, most)

    def settle(self, last: int | None) -> None:
        """All up to this change is where it has to be; None: all."""
        for number, there in self._waiting:
            if (last is None or number <= last) and not there.done():
                there.set_result(None)
        self._waiting = [(number, there) for number, there in self._waiting if not there.done()]

    def give_up(self) -> None:
        """The other service leads now, or may."""
        for number, there in self._waiting:
            if not there.done():
                there.set_exception(
                    StoreError(f"the other path service takes over, with change {number} or without: ask that one")
                )
        self._waiting.clear()
