# SPDX-License-Identifier: Apache-2.0
"""One of several path services, of which a consensus store lets one lead: guards a server by what the store says."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn, TypeVar

from sdn.path_service.availability.member import clock
from sdn.path_service.availability.state import State
from sdn.path_service.consensus.store import ConsensusError, ConsensusStore, Seen, UnknownError
from sdn.path_service.control.book import Change, Draft
from sdn.path_service.control.book import State as Entries
from sdn.path_service.control.control import Control, RefusedError
from sdn.path_service.control.store import StoreError
from sdn.path_service.messages import Hello, Voted
from sdn.path_service.server import Server

_HELD = 0.9
"""Share of the lease for which this service leads after it has renewed it: the store's clock may run faster."""
_LOOKS = 10  # per lease
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.1, 0.5
_WATCH_S = 0.05
WAIT_S = 0.5
"""Between two lines to a host that waits. It leaves after 1.5 s without one."""
_T = TypeVar("_T")


class Shared:
    """Where changes are written while this service leads. See `sdn.path_service.control.writer.Written`."""

    def __init__(self, store: ConsensusStore) -> None:
        self.closed: str | None = "this path service does not lead yet"
        self.generation = self.last = 0
        self.entries: Entries = {}
        self.is_unsure = False
        """The store may have a change that this service was not told of."""
        self.lock = asyncio.Lock()
        """While a change is being written."""
        self._store = store
        self._thread = ThreadPoolExecutor(1, "changes")

    async def write(self, draft: Draft) -> Change:
        """Writes a change. Raises StoreError, also where the store has not said whether it has the change."""
        async with self.lock:
            if self.closed is not None:
                raise StoreError(self.closed)
            try:
                change = await asyncio.get_running_loop().run_in_executor(self._thread, self._store.write, draft)
            except UnknownError as error:
                self.is_unsure, self.closed = True, str(error)
                raise StoreError(str(error)) from error
            except ConsensusError as error:
                raise StoreError(str(error)) from error
            self.last = change.number
            return change

    async def changes(self, after: int, most: int) -> list[Change]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.changes, after, most)
        except ConsensusError as error:
            raise StoreError(str(error)) from error


class Elected:
    """Guards a `Server`, as its `guard`. Create it in the event loop, and `await run` beside the server."""

    def __init__(self, server: Server, control: Control, shared: Shared, store: ConsensusStore) -> None:
        self._server = server
        self._control = control
        self._shared = shared
        self._store = store
        self.role = "waiting"
        self.takeovers = 0
        self._has_followed = False  # since this service has led last
        self._until_s = 0.0  # when this service leads no more, unless it renews the lease
        self._seen: Seen | None = None
        self._seen_s = 0.0
        self._above = 0  # the highest generation that hosts have named
        self._wrong = ""  # what was told last
        self._thread = ThreadPoolExecutor(1, "lease")
        server.guard = self

    def state(self) -> State:
        """What holds now."""
        seen = self._seen
        leads = self.role == "leading"
        lag_s = round(clock() - self._seen_s, 3) if seen is not None and self.role != "waiting" else None
        return State(
            self.role,
            self._shared.generation,
            (seen.leader or "") if seen is not None and not leads else "",
            leads and seen is not None and seen.services > 1,
            lag_s,
            0,
            self.takeovers,
            len(self._server.held),
            decides="etcd",
        )

    def promote(self, who: str) -> NoReturn:
        raise RefusedError("etcd decides which path service leads: make sure that this one reaches it")

    async def run(self) -> None:
        """Looks into the store, until it is cancelled; then gives the lease back, so that another service leads."""
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                await self._look()
                await asyncio.sleep(min(max(_LEAST_PAUSE_S, self._store.lease_s / _LOOKS), _MOST_PAUSE_S))
        finally:
            watch.cancel()
            self._step_down("it stops")
            with suppress(ConsensusError):
                await self._in_thread(self._store.leave)
            self._thread.shutdown(wait=False)

    # -- for the server ------------------------------------------------------------------------------------------------

    def may_assign(self) -> bool:
        return self.role == "leading" and clock() < self._until_s

    def refusal(self, hello: Hello) -> str | None:
        named = hello.generation or 0
        if named > self._server.generation:
            self._above = max(self._above, named)
            if self.role == "leading":  # the next look has it lead in a higher one, or find that it leads no more
                return self._elsewhere()
        if self.may_assign() or (hello.generation is not None and self._is_open()):
            return None
        return self._elsewhere()

    def greeted(self, number: int, hello: Hello) -> None: ...

    def left(self, number: int) -> None: ...

    def voted(self, number: int, vote: Voted) -> None: ...

    def is_meant(self, line: bytes) -> bool:
        return False

    def meet(self, transport: asyncio.Transport, first: bytes, rest: bytes) -> NoReturn:
        raise AssertionError("services that share a store do not speak to each other")

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        sent_s = clock()
        try:
            seen = await self._in_thread(self._store.look)
            self._seen, self._seen_s = seen, sent_s
            if not seen.is_this and (seen.leader is not None or seen.generation > self._shared.generation):
                self._control.forget_owed()  # another service has led since
            if seen.is_this:
                if self.role == "leading" and clock() >= self._until_s:  # `deliver` may have dropped answers since
                    self._step_down("etcd has not renewed its lease in time")
                self._until_s = sent_s + _HELD * self._store.lease_s
                if self.role != "leading" or self._shared.is_unsure or self._above > self._shared.generation:
                    await self._begin(self._store.settle)
            elif seen.leader is None:
                if self.role == "leading":
                    self._step_down("its lease has ended")
                self._until_s = sent_s + _HELD * self._store.lease_s
                await self._begin(self._store.lead)
            else:
                self._follow(seen)
        except ConsensusError as error:
            if str(error) != self._wrong:
                self._wrong = str(error)
                self._server.tell(self._wrong)
        else:
            self._wrong = ""

    async def _begin(self, begin: Callable[[int], int | None]) -> None:
        """Leads if the store lets it, with what is in the store. Raises ConsensusError."""
        shared = self._shared
        async with shared.lock:
            generation = await self._in_thread(begin, self._above)
            if generation is None:
                self._step_down("another path service leads")
                return
            shared.generation = self._server.generation = generation
            shared.last, shared.is_unsure, shared.closed = self._store.last, False, None
            self._control.resume(self._store.entries)
        if self.role == "leading":
            return
        self.takeovers += self._has_followed
        self.role, self._has_followed = "leading", False
        self._server.tell(f"leading in generation {generation}: etcd lets it")
        self._server.release()

    def _follow(self, seen: Seen) -> None:
        if self.role == "leading":
            self._step_down("another path service leads")
        if self.role != "following":
            self.role, self._has_followed = "following", True
            self._server.tell(f"following in generation {seen.generation}: {seen.leader} leads")
        self._shared.generation, self._shared.last = seen.generation, seen.last
        self._server.generation = seen.generation
        self._shared.closed = self._elsewhere()
        if not self._is_open():
            self._server.turn_away(self._elsewhere(), held_only=True)

    def _step_down(self, why: str) -> None:
        self._shared.closed = self._elsewhere()
        if self.role == "leading":
            self.role = "waiting"
            self._server.tell(f"waiting in generation {self._shared.generation}: {why}")
            self._server.turn_away(self._elsewhere())

    async def _watch(self) -> None:
        said_s = 0.0
        while True:
            await asyncio.sleep(_WATCH_S)
            now_s = clock()
            if self.role == "leading" and now_s >= self._until_s:
                self._step_down("etcd has not renewed its lease")
            if self.role == "following" and now_s >= self._seen_s + self._store.lease_s:
                self.role = "waiting"
            if self._server.held and not self._is_open():
                self._server.turn_away(self._elsewhere(), held_only=True)
            if now_s >= said_s + WAIT_S:
                said_s = now_s
                self._server.keep_waiting()

    def _is_open(self) -> bool:
        """Whether this service may lead soon, so that hosts that come had better stay."""
        seen = self._seen
        is_fresh = seen is not None and clock() < self._seen_s + self._store.lease_s
        return seen is not None and is_fresh and (seen.leader is None or seen.is_failing or seen.is_this)

    def _elsewhere(self) -> str:
        leader = None if self._seen is None or self._seen.is_this else self._seen.leader
        return f"this path service does not lead: ask {'another one' if leader is None else leader}"

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
