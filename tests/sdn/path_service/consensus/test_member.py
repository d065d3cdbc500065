# SPDX-License-Identifier: Apache-2.0
"""One of several path services on real sockets, beside a store that the test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from sdn.path_service.consensus.member import Elected, Shared
from sdn.path_service.consensus.store import Seen
from sdn.path_service.control.book import Change, Draft, State
from sdn.path_service.control.control import Control
from sdn.path_service.links import links_named
from sdn.path_service.messages import Hello, Welcome, to_line
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from tests.sdn.path_service.sample import LANES, TOKEN, address
from tests.sdn.path_service.test_server import TOPOLOGY, Host, run


class Store:
    """A store in which this service leads, and which has no changes."""

    def __init__(self) -> None:
        self.lease_s = 1000.0
        self.entries: State = {}
        self.last = 0

    def look(self) -> Seen:
        return Seen("me", True, False, 1, 1, 0)

    def lead(self, above: int) -> int | None:
        raise AssertionError("it leads")

    def settle(self, above: int) -> int | None:
        return 1

    def write(self, draft: Draft) -> Change:
        raise AssertionError("nothing is written")

    def changes(self, after: int, most: int) -> list[Change]:
        return []

    def leave(self) -> None: ...


@asynccontextmanager
async def led() -> AsyncIterator[tuple[Elected, Server, tuple[str, int]]]:
    """A service that leads. It looks when the test has it look, and nobody watches its lease."""
    server = Server(PathService(TOPOLOGY), TOKEN)
    at = await server.start(bind("127.0.0.1", 0))
    store = Store()
    shared = Shared(store)
    member = Elected(server, Control(server, shared), shared, store)
    await member._look()
    assert member.may_assign()
    try:
        yield member, server, at
    finally:
        await server.close()


def said(number: int) -> bytes:
    return to_line(Hello(2, TOKEN, address(TOPOLOGY, number), f"{number:016x}", LANES, generation=1))


def test_hosts_come_back_after_answers_were_dropped_as_the_lease_was_renewed_too_late() -> None:
    """Whatever this service has decided between the end of its lease and a look, no host was told."""

    async def body() -> None:
        async with led() as (member, server, at):
            host = await Host.to(at)
            host.say(said(1))
            assert isinstance(await host.hear(), Welcome)
            member._until_s = 0.0
            dead = frozenset(links_named(TOPOLOGY, "leaf1-spine1"))
            server.constrain(replace(server.service.constraints, dead=dead))
            late = await Host.to(at)
            late.say(said(2))
            while not server.held:
                await asyncio.sleep(0)
            await member._look()
            assert member.may_assign()
            assert not server.connections
            assert await host.refused() == "standby"
            assert await late.refused() == "standby"
            again = await Host.to(at)
            again.say(said(1))
            assert isinstance(await again.hear(), Welcome)

    run(body)
