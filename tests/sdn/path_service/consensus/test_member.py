# SPDX-License-Identifier: Apache-2.0
"""One of several path services on real sockets, beside a store that the test answers for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sdn.path_service.admin import LinkChange
from sdn.path_service.consensus.member import WAIT_S, Elected, Shared
from sdn.path_service.consensus.store import ConsensusError, Seen
from sdn.path_service.control.book import Change, Draft, State
from sdn.path_service.control.control import Control
from sdn.path_service.control.store import StoreError
from sdn.path_service.links import links_named
from sdn.path_service.messages import Hello, Wait, Welcome, to_line
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from testbed.bench.takeover_hosts import _SILENT_S
from tests.sdn.path_service.sample import LANES, TOKEN, address
from tests.sdn.path_service.test_server import TOPOLOGY, Host, run

LEADS = Seen("me", True, False, 1, 1, 0)
FOLLOWS = Seen("another", False, False, 2, 2, 0)
NOBODY_LEADS = Seen(None, False, False, 1, 1, 0)


class Store:
    """A store in which this service leads at first, and which takes no changes."""

    def __init__(self) -> None:
        self.lease_s = 1000.0
        self.seen = LEADS
        self.entries: State = {}
        self.last = 0

    def look(self) -> Seen:
        return self.seen

    def lead(self, above: int) -> int | None:
        return self.seen.generation + 1

    def settle(self, above: int) -> int | None:
        return 1

    def write(self, draft: Draft) -> Change:
        raise ConsensusError("etcd does not answer")

    def changes(self, after: int, most: int) -> list[Change]:
        return []

    def leave(self) -> None: ...


class Led:
    """A service that leads. It looks when the test has it look, and nobody watches its lease."""

    def __init__(self) -> None:
        self.store = Store()
        self.server = Server(PathService(TOPOLOGY), TOKEN)
        shared = Shared(self.store)
        self.at = "", 0
        self.control = Control(self.server, shared)
        self.member = Elected(self.server, self.control, shared, self.store)

    async def look(self, seen: Seen) -> None:
        self.store.seen = seen
        await self.member._look()


@asynccontextmanager
async def led() -> AsyncIterator[Led]:
    one = Led()
    one.at = await one.server.start(bind("127.0.0.1", 0))
    await one.look(LEADS)
    assert one.member.may_assign()
    try:
        yield one
    finally:
        await one.server.close()


def said(number: int) -> bytes:
    return to_line(Hello(2, TOKEN, address(TOPOLOGY, number), f"{number:016x}", LANES, generation=1))


def test_hosts_come_back_after_answers_were_dropped_as_the_lease_was_renewed_too_late() -> None:
    """Whatever this service has decided between the end of its lease and a look, no host was told."""

    async def body() -> None:
        async with led() as one:
            member, server, at = one.member, one.server, one.at
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
            await one.look(LEADS)
            assert member.may_assign()
            assert not server.connections
            assert await host.refused() == "standby"
            assert await late.refused() == "standby"
            again = await Host.to(at)
            again.say(said(1))
            assert isinstance(await again.hear(), Welcome)

    run(body)


@pytest.mark.parametrize("between", [[FOLLOWS], []], ids=["followed", "was-away"])
def test_a_dead_link_is_forgotten_that_another_service_did_not_know_of(between: list[Seen]) -> None:
    """It may have come back while the other one led, which nobody would tell this service."""

    async def body() -> None:
        async with led() as one:
            await fails_link(one)
            for seen in between:
                await one.look(seen)
            await one.look(replace(NOBODY_LEADS, generation=2))
            assert one.member.role == "leading"
            assert not one.server.service.constraints.dead
            assert one.control.status().unwritten == 0

    run(body)


def test_a_dead_link_is_kept_while_nobody_else_has_led() -> None:
    async def body() -> None:
        async with led() as one:
            await fails_link(one)
            one.member._step_down("its lease is over")
            await one.look(NOBODY_LEADS)
            assert one.member.role == "leading"
            assert one.server.service.constraints.dead == frozenset(links_named(TOPOLOGY, "leaf1-spine1"))
            assert one.control.status().unwritten == 1

    run(body)


def test_hosts_that_wait_hear_of_the_service_until_it_leads() -> None:
    """They leave one that says nothing: `Client::welcome_by` of `hostlib`."""

    async def body() -> None:
        async with led() as one:
            one.member._step_down("its lease is over")
            watch = asyncio.create_task(one.member._watch())
            host = await Host.to(one.at)
            host.say(said(1))
            for _ in range(2):
                assert await host.hear() == Wait()
            await one.look(LEADS)
            welcome = await host.hear()
            while welcome == Wait():
                welcome = await host.hear()
            assert isinstance(welcome, Welcome)
            watch.cancel()

    run(body)
    assert 2 * WAIT_S < _SILENT_S, "a host hears one before it leaves, also where one is late"


async def fails_link(one: Led) -> None:
    """A link fails, and the store cannot take it."""
    with pytest.raises(StoreError):
        await one.control.links(LinkChange(TOKEN, "leaf1-spine1"), "me")
    assert one.server.service.constraints.dead
