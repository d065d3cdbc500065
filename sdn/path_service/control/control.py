# SPDX-License-Identifier: Apache-2.0
"""What operators' requests do: they are checked, written to the store, applied, and then answered.

Drains and pins are wishes: one that cannot be written is refused, and nothing changes. Dead links are facts: hosts get
other ports at once, and the store gets them as soon as it can.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from netmodel import dump_topology
from netmodel.printable import printable
from sdn.path_service.admin import Drain, LinkChange, ListChanges, NextHopsRead, Pin, Undo, Undrain, Unpin, WhatIf
from sdn.path_service.constraints import Constraints
from sdn.path_service.control.answers import Changed, Changes, ControlState, DrainState, Effects, PinState, Reloaded
from sdn.path_service.control.book import (
    Change,
    ConflictError,
    Draft,
    Edit,
    Entry,
    State,
    applied,
    edit_of,
    expired,
    named,
)
from sdn.path_service.control.effects import effects
from sdn.path_service.control.files import Reread
from sdn.path_service.control.resolve import constraints_of, dead_name, pinned_paths
from sdn.path_service.control.store import StoreError
from sdn.path_service.control.writer import Written
from sdn.path_service.links import links_named
from sdn.path_service.server import Server
from sdn.path_service.service import PathService
from sdn.path_service.work import Work, finished

WISHES = Drain | Undrain | Pin | Unpin | Undo
EVERY_S = 0.5
"""Seconds between two looks for entries whose time is over, and for the store's room."""


class RefusedError(ValueError):
    """A request cannot be carried out: one sentence."""


class Control:
    """What operators have asked of one path service. Create it when the service is new, and `await run` beside it."""

    def __init__(
        self,
        server: Server,
        written: Written,
        clock: Callable[[], float] = time.time,
        reread: Reread | None = None,
        hash_name: str | None = None,
    ) -> None:
        self._server = server
        self._reread = reread
        self._hash_name = hash_name
        self._written = written
        self._clock = clock
        self._state: State = dict(written.entries)
        self._lock = asyncio.Lock()  # wishes come one by one
        self._paying = asyncio.Lock()
        self._owed: list[_Owed] = []  # changes of dead links that the store could not take
        self._rehearse()
        if self._state:
            constraints, wrong = self._constraints(self._state)
            server.constrain(constraints, {"what": "what was asked before the start"})
            for sentence in wrong:
                server.tell(f"without effect: {sentence}")

    def _rehearse(self) -> None:
        """Fills the caches that the first change needs, before hosts come: for those it would take long."""
        topology = self._server.service.topology
        with suppress(LookupError):  # it has no such hosts or links
            pinned_paths(topology, topology.hosts[0].name, topology.hosts[-1].name, [topology.switches[-1].name])
        finished(self._effects(self._server.service.constraints))

    def adopt(self, state: State) -> None:
        """The store has this now, which came from the service that leads."""
        self._state = dict(state)
        self._owed.clear()
        self._server.constrain(self._constraints(self._state)[0], {"what": "what the service that leads has"})

    def resume(self, state: State) -> None:
        """The service leads, and its store has this, perhaps with changes that were written and not answered."""
        owed, self._owed = self._owed, []
        for each in owed:
            try:
                state = applied(state, each.draft.edits)
            except ConflictError:
                continue  # it was written
            self._owed.append(each)
        if state != self._state:
            self._state = dict(state)
            self._server.constrain(self._constraints(self._state)[0], {"what": "what was written before"})

    def forget_owed(self) -> None:
        """Another service has led since: dead links that the store could not take may be up again by now."""
        self._owed.clear()

    def _check(self) -> None:
        """Raises RefusedError where nothing can be changed here."""
        if self._written.closed is not None:
            raise RefusedError(self._written.closed)

    async def run(self) -> None:
        """Ends what is to end by itself, and writes what could not be written, until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._written.closed is not None:
                continue
            try:
                await self._pay()
                async with self._lock:
                    if edits := expired(self._state, self._clock()):
                        await self._commit("expiry", f"expiry of {_said(edits)}", edits)
            except StoreError as error:
                self._server.tell(str(error))

    async def wish(self, request: WISHES, who: str) -> Changed:
        """Carries out a drain, a pin or the end of one. Raises RefusedError and StoreError, with nothing changed."""
        self._check()
        async with self._lock:
            try:
                what, edits = await self._asked(request)
                then = applied(self._state, edits)
            except KeyError as error:
                raise RefusedError(error.args[0]) from None
            except ConflictError as error:
                raise RefusedError(f"{self._what(request)} is not possible: {error}") from None
            constraints, _ = self._constraints(then)
            idle = await self._server.spare.finish(self._idle(request, then, constraints))
            does = await self._server.spare.finish(self._effects(constraints))
            if request.dry_run or not edits:
                return Changed(None, does, idle)
            await self._pay()
            return Changed(await self._commit(who, what, edits), does, idle)

    async def what_if(self, request: WhatIf) -> Effects:
        """What would happen without some links. Raises RefusedError."""
        return await self._server.spare.finish(self._without(request.without))

    async def links(self, request: LinkChange, who: str) -> dict[str, Any]:
        """Links have gone down, or have come back. Raises RefusedError, and StoreError after hosts were told."""
        self._check()
        try:
            links = links_named(self._server.service.topology, request.link)
        except KeyError as error:
            raise RefusedError(error.args[0]) from None
        after = None if request.up else Entry()
        edits = [edit for link in links for edit in edit_of(self._state, "dead", dead_name(link), after)]
        self._server.tell(f"{', '.join(f'{link.a} to {link.b}' for link in links)}: {'up' if request.up else 'down'}")
        number = await self._fact(who, f"link {request.link} {'up' if request.up else 'down'}", edits)
        return {"links": [f"{link.a} {link.b}" for link in links], "up": request.up, "change": number}

    async def next_hops(self, request: NextHopsRead, who: str) -> dict[str, Any]:
        """Switches were read. Raises RefusedError, and StoreError after hosts were told."""
        self._check()
        try:
            self._server.next_hops(request.groups)
        except ValueError as error:
            raise RefusedError(f"the next hops cannot be taken over: {error}") from None
        dead = {dead_name(link): Entry() for link in self._server.service.constraints.dead}
        known = named(self._state, "dead")
        edits = [edit for name in {*dead, *known} for edit in edit_of(self._state, "dead", name, dead.get(name))]
        await self._fact(who, "next hops were read", edits)
        return {"switches": len(request.groups)}

    async def reload(self, who: str) -> Reloaded:
        """Reads topology, options, token and certificates anew. Raises RefusedError, with nothing changed."""
        if self._reread is None:
            raise RefusedError("this path service has no files to read anew: start it again")
        async with self._lock:
            try:
                files = await asyncio.to_thread(self._reread)
                old = self._server.service
                other = dump_topology(files.topology) != dump_topology(old.topology)
                decides = (files.options, files.hash_name) != (old.options, self._hash_name)
                new = None
                if other or decides:
                    new = await asyncio.to_thread(PathService, files.topology, files.options, files.ecmp_hash)
                constraints, wrong = constraints_of(files.topology, self._state)  # links may have died meanwhile
                if new is not None:
                    self._server.succeed(new, constraints, files.hash_name, who)
            except ValueError as error:
                raise RefusedError(f"nothing was changed: {error}") from None
            renewed, self._server.token = files.token != self._server.token, files.token
            self._hash_name = files.hash_name
            self._server.channels = files.channels
        said = f"{'another' if other else 'the same'} topology, {'other' if decides else 'the same'} options"
        self._server.tell(f"reload by {who}: {said}")
        return Reloaded(other, renewed, len(files.topology.hosts), wrong, decides)

    async def changes(self, request: ListChanges) -> Changes:
        """Changes by number. Raises StoreError."""
        found = await self._written.changes(request.after, request.most)
        return Changes(self._written.generation, self._written.last, found)

    def status(self) -> ControlState:
        """What holds now."""
        _, wrong = self._constraints(self._state)
        drains = [self._drain(name, entry) for name, entry in named(self._state, "drain").items()]
        pins = []
        for name, entry in named(self._state, "pin").items():
            src, dst = name.split(" ")
            pins.append(PinState(src, dst, list(entry.via), entry.until))
        return ControlState(self._written.generation, self._written.last, drains, pins, wrong, len(self._owed))

    def _drain(self, name: str, entry: Entry) -> DrainState:
        service = self._server.service
        try:
            links = links_named(service.topology, name)
        except KeyError:
            return DrainState(name, 0, 0.0, 0, True, entry.until)
        elephants, random = service.load_of(links)
        return DrainState(
            name, len(links), round(elephants, 3), random, not elephants and not service.busy, entry.until
        )

    async def _asked(self, request: WISHES) -> tuple[str, tuple[Edit, ...]]:
        """What a request asks, in words and as edits. Raises KeyError, ConflictError, RefusedError and StoreError."""
        topology, what = self._server.service.topology, self._what(request)
        match request:
            case Drain():
                links_named(topology, request.what)
                return what, edit_of(self._state, "drain", request.what, Entry((), self._until(request.for_s)))
            case Pin():
                pinned_paths(topology, request.src, request.dst, request.via)
                entry = Entry(request.via, self._until(request.for_s))
                return what, edit_of(self._state, "pin", f"{request.src} {request.dst}", entry)
            case Undrain():
                return what, self._ended("drain", request.what, f"{request.what} is not drained")
            case Unpin():
                name = f"{request.src} {request.dst}"
                return what, self._ended("pin", name, f"{request.src} to {request.dst} is not pinned")
            case Undo():
                found = await self._written.changes(request.change - 1, 1)
                if not found or found[0].number != request.change:
                    raise RefusedError(
                        f"there is no change {request.change}: `paralet path-service changes` lists them"
                    )
                return f"{what}: {found[0].what}", tuple(edit.inverse for edit in found[0].edits)

    def _idle(self, request: WISHES, then: State, constraints: Constraints) -> Work[list[str]]:
        """The pins that are asked for and have no effect under these constraints, and those that lose it: sentences."""
        topology, idle = self._server.service.topology, []
        before, avoided = self._server.service.constraints.avoided, constraints.avoided
        asked = f"{request.src} {request.dst}" if isinstance(request, Pin) else None
        for name, entry in named(then, "pin").items():
            is_asked = name == asked or self._state.get(("pin", name)) != entry
            if not is_asked and avoided <= before:
                continue
            (src, dst), via = name.split(" "), entry.via
            with suppress(KeyError):  # the topology has no such path any more, which `status` says
                paths = pinned_paths(topology, src, dst, via)
                if all(path & avoided for path in paths) and (is_asked or not all(path & before for path in paths)):
                    which = f"all paths with {' and '.join(via)} are dead or drained"
                    idle.append(f"the pin from {src} to {dst}: {which}, so others are taken until one is back")
            yield
        return idle

    def _ended(self, kind: Any, name: str, why_not: str) -> tuple[Edit, ...]:
        if (kind, name) not in self._state:
            asked = sorted(named(self._state, kind))
            raise RefusedError(f"{why_not}; {', '.join(asked) or 'nothing'} is")
        return edit_of(self._state, kind, name, None)

    def _what(self, request: WISHES) -> str:
        match request:
            case Drain() | Undrain():
                return f"{'drain' if isinstance(request, Drain) else 'undrain'} {request.what}"
            case Pin():
                return f"pin {request.src} {request.dst} via {' '.join(request.via)}"
            case Unpin():
                return f"unpin {request.src} {request.dst}"
            case Undo():
                return f"undo of change {request.change}"

    def _until(self, for_s: float | None) -> float | None:
        return None if for_s is None else round(self._clock() + for_s, 3)

    def _constraints(self, state: State) -> tuple[Constraints, list[str]]:
        return constraints_of(self._server.service.topology, state)

    def _without(self, names: Iterable[str]) -> Work[Effects]:
        """The effects of the loss of these links at the first step. Raises RefusedError."""
        service = self._server.service
        try:
            gone = {link for name in names for link in links_named(service.topology, name)}
        except KeyError as error:
            raise RefusedError(error.args[0]) from None
        now = service.constraints
        return (yield from self._effects(replace(now, drained=now.drained | gone)))

    def _effects(self, constraints: Constraints) -> Work[Effects]:
        service = self._server.service
        preview = yield from service.preview(constraints)
        yield
        return effects(preview, service.cables)

    async def _commit(self, who: str, what: str, edits: tuple[Edit, ...]) -> Change:
        """Writes a wish and then applies it. Raises StoreError, with nothing changed."""
        change = await self._written.write(Draft(who, what, edits))
        with suppress(ConflictError):  # `resume` has found it in the store
            self._apply(change.edits, {"change": change.number, "who": who, "what": what})
        self._server.tell(f"change {change.number} by {who}: {what}")
        return change

    async def _fact(self, who: str, what: str, edits: Iterable[Edit]) -> int | None:
        """Applies edits of dead links and then writes them. Raises StoreError where that is still to be done."""
        draft = Draft(who, what, tuple(edits))
        if not draft.edits:
            return None
        self._apply(draft.edits, {"who": who, "what": what})
        owed = _Owed(draft)
        self._owed.append(owed)
        await self._pay()
        return owed.number

    async def _pay(self) -> None:
        """Writes the changes that the store lacks, in order. Raises StoreError."""
        async with self._paying:
            batch = list(self._owed)
            done = await asyncio.gather(*(self._written.write(owed.draft) for owed in batch), return_exceptions=True)
            for owed, change in zip(batch, done, strict=True):
                if isinstance(change, BaseException):
                    raise change
                owed.number = change.number
                if owed in self._owed:  # it was not forgotten meanwhile
                    self._owed.remove(owed)

    def _apply(self, edits: Iterable[Edit], reason: dict[str, Any]) -> None:
        self._state = applied(self._state, edits)
        self._server.constrain(self._constraints(self._state)[0], reason)


@dataclass(eq=False, slots=True)
class _Owed:
    """A change that the store is to take."""

    draft: Draft
    number: int | None = None
    """When it was written."""


def _said(edits: Iterable[Edit]) -> str:
    return printable(", ".join(f"{edit.kind} {edit.name}" for edit in edits))
