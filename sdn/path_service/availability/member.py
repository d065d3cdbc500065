# SPDX-License-Identifier: Apache-2.0
"""One of two path services: connects to the other one, and does what `Pair` decides with hosts and the disk."""

import asyncio
import hmac
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from netmodel.printable import printable
from sdn.path_service.availability.link import Link
from sdn.path_service.availability.messages import Follow, Ours, Snapshot, Yield, is_follow
from sdn.path_service.availability.pair import (
    Action,
    Adopt,
    Ask,
    Close,
    Keep,
    Pair,
    Position,
    Send,
    Times,
    Turn,
)
from sdn.path_service.availability.shared import Shared
from sdn.path_service.availability.state import State
from sdn.path_service.control.book import Change
from sdn.path_service.control.control import Control
from sdn.path_service.control.store import StoreError
from sdn.path_service.control.writer import Copy
from sdn.path_service.messages import Hello, Vote, Voted, to_line
from sdn.path_service.server import Server

_LOOK_S = 0.05
_DIAL_S = 0.25
_DIAL_ALONE_S = 2.0  # while this service leads, to find out whether the other one does too
_DIAL_TIMEOUT_S = 1.0
_MOST_LINKS = 8
_AGAIN_S = 0.5  # until what the disk has not taken is written again
_BROKEN_S = 5.0  # without following, after the disk has not taken what the other service has


def clock() -> float:
    """Seconds, also while the machine is suspended, when a lease goes on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Beside:
    """The other service, and how the two share hosts."""

    address: str
    port: int
    standby: bool = False
    """With the same data, the other one leads."""
    times: Times = field(default_factory=Times)

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Member:
    """Guards a `Server`, as its `guard`. Create it in the event loop, and `await run` beside the server."""

    def __init__(self, server: Server, control: Control, shared: Shared, beside: Beside, name: str) -> None:
        self._server = server
        self._control = control
        self._shared = shared
        self._beside = beside
        writer = shared.writer
        position = Position(writer.generation, writer.last)
        self.pair = Pair(name, position, standby=beside.standby, alone=writer.is_alone, times=beside.times)
        self.takeovers = 0
        self._links: dict[int, _Open] = {}
        self._numbers = count(1)
        self._hosts: dict[int, str] = {}  # that are served and vote, by connection
        self._asked: dict[tuple[int, int, bool], float] = {}  # when, by connection, generation and whether as a trial
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._wrong: str | None = None  # with the last connection to the other service, as was told
        self._elsewhere = f"this path service does not lead: ask the other one, {beside}"
        self._began_s = clock()
        self._dialled_s = 0.0
        self._is_resumed = False  # it leads, and has what is in the store
        self._unkept: str | None = None  # why the disk does not say in which generation this service leads
        self._keep_at_s = 0.0  # when it is told again
        self._is_whole = False  # no change is missing of those that were sent since the last snapshot
        self._whole_s = 0.0  # when this service may follow again after its disk has failed
        self._loop = asyncio.get_running_loop()
        server.guard = self
        server.generation = self.pair.data_generation
        shared.wrote = self._wrote

    def state(self) -> State:
        """What holds now."""
        pair, now_s = self.pair, clock()
        lag_s = None
        if pair.role == "following":
            lag_s = round(now_s - pair.heard_s, 3)
        elif pair.followed_s is not None:
            lag_s = round(now_s - pair.followed_s, 3)
        behind = pair.last - pair.peer_last if pair.is_followed() else 0
        return State(
            pair.role,
            pair.data_generation,
            str(self._beside),
            pair.is_followed(),
            lag_s,
            behind,
            self.takeovers,
            len(self._server.held),
            len(pair.witnesses),
        )

    def promote(self, who: str) -> None:
        """An operator says that the other service does not lead."""
        self._server.tell(f"{who} has this service lead")
        self._do(self.pair.promote())

    async def run(self) -> None:
        """Looks after the other service, until it is cancelled."""
        tasks = [asyncio.create_task(work()) for work in (self._act, self._dial, self._watch)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for opened in list(self._links.values()):
                opened.link.close()

    # -- for the server ------------------------------------------------------------------------------------------------

    def may_assign(self) -> bool:
        may = self.pair.may_assign(clock())
        if not may and self.pair.role == "leading":
            self._do(self.pair.tick(clock()))
        return may

    def refusal(self, hello: Hello) -> str | None:
        self._do(self.pair.seen(clock(), hello.generation or 0, hello.voted))
        if self.may_assign() or (hello.generation is not None and self.pair.suspects(clock())):
            return None
        return self._elsewhere

    def greeted(self, number: int, hello: Hello) -> None:
        if hello.generation is not None:
            self._hosts[number] = hello.instance
            self.pair.joined(hello.instance)

    def left(self, number: int) -> None:
        host = self._hosts.pop(number, None)
        if host is not None:
            self.pair.left(host)

    def voted(self, number: int, vote: Voted) -> None:
        hello = self._server.held.get(number)
        host = self._hosts.get(number) if hello is None else hello.instance
        if host is not None:
            self._do(self.pair.voted(clock(), host, vote.generation, vote.service, vote.trial))

    def is_meant(self, line: bytes) -> bool:
        return is_follow(line)

    def meet(self, transport: asyncio.Transport, first: bytes, rest: bytes) -> None:
        number = self._open(is_dialled=False)
        self._links[number].link.take(transport, first + b"\n" + rest)
        if number in self._links and len(self._links) > _MOST_LINKS:  # only one that has the token takes room
            oldest = next(iter(self._links))
            self._close(oldest)
            self._do(self.pair.lost(clock(), oldest))

    # -- links ---------------------------------------------------------------------------------------------------------

    def _open(self, *, is_dialled: bool) -> int:
        number = next(self._numbers)
        link = Link(lambda message: self._said(number, message), lambda why: self._ended(number, why))
        self._links[number] = _Open(link, is_dialled, clock(), is_known=is_dialled)
        return number

    def _said(self, number: int, message: Ours) -> None:
        opened = self._links[number]
        if not opened.is_known:
            token = self._server.token.encode()
            if not isinstance(message, Follow) or not hmac.compare_digest(message.token.encode(), token):
                self._server.refused("token", "another path service refused: the token is not this service's")
                self._close(number)
                return
            certified = opened.link.certified
            if certified is not None and self._beside.address not in certified:
                why = f"its certificate is not for {self._beside.address}"
                self._server.refused("certificate", f"another path service refused: {why}")
                self._close(number)
                return
            if message.lease_s != self._beside.times.lease_s:
                said = f"the other path service has --lease {message.lease_s:g}, and this one"
                self._server.tell(f"{said} {self._beside.times.lease_s:g}: give both the same")
                self._close(number)
                return
            opened.is_known = True
            self.pair.linked(number)
        elif isinstance(message, Follow):
            self._close(number)
            self._do(self.pair.lost(clock(), number))
            return
        self._wrong = None
        self._do(self.pair.heard(clock(), number, message))

    def _ended(self, number: int, why: str | None) -> None:
        if self._links.pop(number, None) is None:
            return
        if why is not None and why != self._wrong:
            self._wrong = why
            self._server.tell(f"no connection to the other path service, {self._beside}: {why}")
        self._do(self.pair.lost(clock(), number))

    def _close(self, number: int) -> None:
        opened = self._links.pop(number, None)
        if opened is not None:
            opened.link.close()

    async def _dial(self) -> None:
        """Keeps a link to the other service while this one does not lead; while it does, looks whether both do."""
        while True:
            await asyncio.sleep(_DIAL_S)
            now_s, pair = clock(), self.pair
            if pair.role == "leading" and (not pair.alone or now_s < self._dialled_s + _DIAL_ALONE_S):
                continue
            if pair.role == "waiting" and now_s < self._whole_s:  # each time that it follows and ends, hosts vote
                continue
            for number, opened in list(self._links.items()):
                late = now_s > opened.since_s + 2 * _DIAL_TIMEOUT_S
                if opened.is_dialled and late and (pair.role != "following" or pair.suspects(now_s)):
                    self._close(number)
                    self._do(pair.lost(now_s, number))
            fresh = any(
                opened.is_dialled and not (pair.role == "following" and pair.suspects(now_s))
                for opened in self._links.values()
            )
            if not fresh:
                await self._dial_now()

    async def _dial_now(self) -> None:
        self._dialled_s = clock()
        number = self._open(is_dialled=True)
        link, channels = self._links[number].link, self._server.channels
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                await self._loop.create_connection(
                    lambda: channels.dial(link, lambda code, why: link.fail(why), self._beside.address),
                    self._beside.address,
                    self._beside.port,
                )
        except (OSError, TimeoutError):
            self._links.pop(number, None)
            return
        if number not in self._links:  # closed meanwhile
            link.close()
            return
        self.pair.linked(number)
        link.write(self.pair.follow(self._server.token))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s, pair = clock(), self.pair
            if pair.role == "waiting" and pair.alone and now_s > self._began_s + pair.times.lease_s:
                self._do(pair.start())
            self._do(pair.tick(now_s))
            if self._unkept is not None and now_s > self._keep_at_s and pair.role != "following":
                self._keep_at_s = now_s + _AGAIN_S  # where it follows, a snapshot tells the disk
                self._do([Keep(pair.data_generation, pair.alone)])
            if self._server.held and pair.role != "leading" and not pair.suspects(now_s):
                self._server.turn_away(self._elsewhere, held_only=True)

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._actions.put_nowait(action)
        if self.pair.role != "leading":
            self._shared.closed, self._is_resumed = self._elsewhere, False
            self._shared.give_up()
            self._shared.ready.set()
        else:
            (self._shared.ready.set if self._is_resumed else self._shared.ready.clear)()
            self._server.generation = self.pair.data_generation
            self._shared.closed = self._unkept
            self._shared.settle(None if self.pair.alone else self.pair.peer_last)

    async def _act(self) -> None:
        while True:
            action = await self._actions.get()
            try:
                await self._do_one(action)
            except StoreError as error:
                self._server.tell(str(error))
                if isinstance(action, Adopt):
                    self._whole_s = clock() + _BROKEN_S
                    self._is_whole = False
                    position = Position(self._shared.writer.generation, self._shared.writer.last)
                    is_all = isinstance(action.message, Snapshot)
                    self._do(self.pair.broken(str(error), position, all_of_it=is_all))
                elif isinstance(action, Keep):
                    self._unkept, self._keep_at_s = str(error), clock() + _AGAIN_S
                for number in list(self._links):
                    self._close(number)
                    self._do(self.pair.lost(clock(), number))

    async def _do_one(self, action: Action) -> None:
        """Does one thing. Raises StoreError."""
        writer = self._shared.writer
        match action:
            case Send():
                opened = self._links.get(action.link)
                if opened is None:
                    return
                message = action.message
                if isinstance(message, Yield) and self._unkept is not None:  # a restart would have this one lead
                    raise StoreError(self._unkept)
                if isinstance(message, Snapshot):
                    message = _with_data(message, await writer.copy())
                opened.link.write(message)
            case Close():
                self._close(action.link)
            case Keep():
                await writer.keep(action.generation, action.alone)
                self._unkept = None
                if action.alone:
                    self._server.tell(f"leading alone in generation {action.generation}: the other one cannot lead")
            case Adopt():
                if isinstance(action.message, Snapshot):
                    await writer.replace(action.message.generation, _data_of(action.message))
                    self._unkept, self._is_whole = None, True
                elif self._is_whole:
                    await writer.follow(action.message.changes)
                self._control.adopt(writer.entries)
            case Ask():
                self._ask(action)
            case Turn():
                if action.role == "leading":
                    await self._resume()
                self._turn(action)

    async def _resume(self) -> None:
        """Has what is in the store: it may have been written as this service ceased to lead."""
        try:
            self._control.resume((await self._shared.writer.copy()).entries)
        except StoreError as error:
            self._server.tell(str(error))
        self._is_resumed = self.pair.role == "leading"
        self._do(())

    def _ask(self, ask: Ask) -> None:
        now_s, again_s = clock(), self.pair.times.beat_s
        self._asked = {ask: last_s for ask, last_s in self._asked.items() if now_s < last_s + again_s}
        held = {number: hello.instance for number, hello in self._server.held.items()}
        hosts = {**self._hosts, **held}
        for number, host in hosts.items():
            connection = self._server.connections.get(number)
            for generation in ask.generations:
                is_due = (number, generation, ask.trial) not in self._asked
                if connection is not None and is_due and not self.pair.has_vote(host, generation, ask.trial):
                    self._asked[number, generation, ask.trial] = now_s
                    connection.write(to_line(Vote(generation, self.pair.name, ask.trial)))

    def _turn(self, turn: Turn) -> None:
        self._asked.clear()
        self._server.tell(f"{turn.role} in generation {self.pair.generation}: {printable(turn.why)}")
        if turn.role == "leading":
            if self.pair.role != "leading":
                return
            self.takeovers += turn.takes_over
            self._server.release()
        else:
            self._server.turn_away(self._elsewhere)

    def _wrote(self, change: Change) -> None:
        self._do(self.pair.wrote((change,)))


@dataclass(slots=True)
class _Open:
    link: Link
    is_dialled: bool
    since_s: float
    is_known: bool
    """Whether it has given the token, or this service has."""


def _with_data(message: Snapshot, copy: Copy) -> Snapshot:
    entries = tuple((kind, name, entry) for (kind, name), entry in copy.entries.items())
    head = message.number, message.name, message.generation, message.witnesses
    return Snapshot(*head, copy.last, entries, tuple(copy.changes))


def _data_of(message: Snapshot) -> Copy:
    entries = {(kind, name): entry for kind, name, entry in message.entries}
    return Copy(message.last, entries, list(message.changes))
