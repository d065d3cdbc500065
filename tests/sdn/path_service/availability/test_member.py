# SPDX-License-Identifier: Apache-2.0
"""Two path services on real sockets, with a store each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sdn.path_service.admin import AdminError
from sdn.path_service.availability.member import Beside, Member
from sdn.path_service.availability.pair import Times
from sdn.path_service.availability.shared import Shared
from sdn.path_service.channels import Channels
from sdn.path_service.control.control import Control
from sdn.path_service.control.store import Store, StoreError
from sdn.path_service.control.writer import Writer
from sdn.path_service.messages import Announce, Error, Hello, Vote, Voted, Welcome, to_line
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from tests.sdn.path_service.operated import Operated
from tests.sdn.path_service.sample import LANES, address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run

TOKEN = "a-token-of-the-two"
TIMES = Times(lease_s=20.0, beat_s=0.05)
"""A lease that no load of this machine outlasts."""


class One(Operated):
    """One of two services, and its operator."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TOKEN)
        self.listener = bind("127.0.0.1", 0)
        self.at: tuple[str, int] = self.listener.getsockname()

    async def start(
        self, other: One, times: Times = TIMES, *, standby: bool = False, channels: Channels | None = None
    ) -> None:
        self.writer = Writer(Store(self.folder / "state", begins=False))
        self.server = Server(PathService(TOPOLOGY), TOKEN, channels=channels)
        await self.server.start(self.listener)
        shared = Shared(self.writer)
        control = Control(self.server, shared)
        self.member = Member(self.server, control, shared, Beside(*other.at, standby, times), str(self.at[1]))
        await self.take_part(control)

    async def close(self) -> None:
        await super().close()
        self.writer.close()


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[One, One]]:
    """The one that leads, and the one that follows."""
    first, other = One(tmp_path / "one"), One(tmp_path / "other")
    await other.start(first, standby=True)
    await first.start(other)
    try:
        await first.until(role="leading", followed=True)
        yield first, other
    finally:
        await first.close()
        await other.close()


def saying(host: Host, number: int, generation: int = 0) -> None:
    host.say(to_line(Hello(2, TOKEN, address(TOPOLOGY, number), f"{number:016x}", LANES, generation=generation)))


def test_a_change_is_on_both_disks_when_it_is_answered(tmp_path: Path) -> None:
    async def body() -> None:
        async with two(tmp_path) as (first, other):
            assert (await first.ask("drain", "spine2")).change.number == 1
            assert await other.writer.copy() == await first.writer.copy()
            assert other.server.service.constraints == first.server.service.constraints
            with pytest.raises(AdminError, match=f"does not lead: ask the other one, 127.0.0.1:{first.at[1]}"):
                await other.ask("drain", "spine1")
            with pytest.raises(AdminError, match="does not lead"):
                await other.ask("link", "spine1")
            (await first.ask("undo", 1)), await first.ask("pin", "h1", "h5", ["spine3"])
            assert await other.writer.copy() == await first.writer.copy()
            status = await other.ask("status")
            assert (status["availability"]["role"], status["control"]["last"]) == ("following", 3)
            assert [change.what for change in (await other.ask("changes")).changes][-1] == "pin h1 h5 via spine3"

    run(body)


def test_hosts_are_served_by_the_one_that_leads_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with two(tmp_path) as (first, other):
            host = await Host.to(other.at)
            saying(host, 1)
            assert await host.refused() == "standby"
            host = await Host.to(first.at)
            saying(host, 1)
            welcome = await host.hear()
            assert isinstance(welcome, Welcome)
            assert welcome.generation == first.member.state().generation == other.member.state().generation
            host.say(Announce(1, address(TOPOLOGY, 5), 1))
            await host.hear()
            liar = await Host.to(first.at)
            saying(liar, 2, 2**63 - 1)  # after which there is none
            assert await liar.refused() == "message"
            assert first.member.state().role == "leading"
            late = await Host.to(first.at)
            saying(late, 2, welcome.generation + 50)  # it has met a service that has taken over
            assert await late.refused() == "standby"
            assert await host.refused() == "standby"
            await first.until(role="leading", followed=True)
            assert first.member.state().generation > welcome.generation + 50

    run(body)


def test_a_host_that_votes_has_the_other_one_lead(tmp_path: Path) -> None:
    async def body() -> None:
        first, other = One(tmp_path / "one"), One(tmp_path / "other")
        times = Times(lease_s=3.0, beat_s=0.05)
        await other.start(first, times, standby=True)
        await first.start(other, times)
        await first.until(role="leading", followed=True)
        host = await Host.to(first.at)
        saying(host, 1)
        welcome = await host.hear()
        assert isinstance(welcome, Welcome)
        async with asyncio.timeout(TIMEOUT_S):
            while not other.member.pair.witnesses:
                await asyncio.sleep(0.01)
        await first.close()
        host = await Host.to(other.at)
        saying(host, 1, welcome.generation)
        asked: list[bool] = []
        while not isinstance(said := await host.hear(), Welcome):
            if isinstance(said, Error):  # it has not noticed yet
                host = await Host.to(other.at)
                saying(host, 1, welcome.generation)
                continue
            assert isinstance(said, Vote)
            asked.append(said.trial)
            host.say(to_line(Voted(said.generation, said.service, said.trial)))
        assert said.generation > welcome.generation
        assert asked[0], "a trial comes first"
        assert not asked[-1]
        assert other.member.state().takeovers == 1
        host.say(Announce(1, address(TOPOLOGY, 5), 1))
        await host.hear()
        await other.close()

    run(body)


def test_a_service_whose_disk_is_full_does_not_try_to_follow_all_the_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it would and cannot, the one that leads needs the votes of most hosts to go on."""
    caplog.set_level("INFO")

    async def body() -> None:
        async with two(tmp_path) as (first, other):

            async def full(changes: object) -> None:
                raise StoreError("the disk is full")

            monkeypatch.setattr(other.writer, "follow", full)
            monkeypatch.setattr(other.writer, "replace", lambda generation, copy: full(copy))
            assert (await first.ask("drain", "spine2")).change.number == 1
            await first.until(role="leading", followed=False)
            generation = first.member.state().generation
            await asyncio.sleep(1.0)
            assert other.member.state().role == "waiting"
            position = other.member.pair.data_generation, other.member.pair.last
            assert position == (other.writer.generation, 0), "it says that it has what it has not"
            assert first.member.state().generation == generation
            assert caplog.text.count("the disk is full") <= 2

    run(body)


def test_changes_wait_until_the_disk_says_who_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would be of the generation before, and lost when the other service has more of that."""

    async def body() -> None:
        first, other = One(tmp_path / "one"), One(tmp_path / "other")
        other.listener.close()
        await first.start(other)
        kept = first.writer.keep

        async def full(generation: int, alone: bool) -> None:
            raise StoreError("the disk is full")

        monkeypatch.setattr(first.writer, "keep", full)
        assert (await first.ask("promote"))["role"] == "leading"
        async with asyncio.timeout(TIMEOUT_S):
            while first.member._shared.closed is None:
                await asyncio.sleep(0.01)
        with pytest.raises(AdminError, match="the disk is full"):
            await first.ask("drain", "spine2")
        monkeypatch.setattr(first.writer, "keep", kept)
        async with asyncio.timeout(TIMEOUT_S):
            while first.member._shared.closed is not None:
                await asyncio.sleep(0.01)
        assert (await first.ask("drain", "spine2")).change.generation == first.member.state().generation > 0
        await first.close()

    run(body)


def test_a_service_tells_once_that_it_goes_on_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From then on the other one cannot take over, which an operator has to know."""
    caplog.set_level("INFO")

    async def body() -> None:
        first, other = One(tmp_path / "one"), One(tmp_path / "other")
        await other.start(first, standby=True)
        await first.start(other)
        await first.until(role="leading", followed=True)
        caplog.clear()
        await other.close()
        async with asyncio.timeout(TIMEOUT_S):
            while not first.member.pair.alone:
                await asyncio.sleep(0.01)
        while not first.member._actions.empty():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # it might be told again
        generation = first.member.state().generation
        await first.close()
        assert caplog.text.count(f"leading alone in generation {generation}: the other one cannot lead") == 1
        assert caplog.text.count("leading alone") == 1

    run(body)


def test_only_links_with_the_token_take_room(tmp_path: Path) -> None:
    async def body() -> None:
        async with two(tmp_path) as (first, _):
            links = dict(first.member._links)
            for _ in range(12):
                stranger = await Host.to(first.at)
                said = {"type": "follow", "token": "guess", "name": "x", "generation": 0, "last": 0, "above": 0}
                stranger.say(json.dumps(said).encode() + b"\n")
                assert await stranger.closed() == b""
            assert first.member._links == links
            assert first.member.state().followed

    run(body)


def test_services_whose_leases_differ_do_not_follow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One would have the other lead for the time of its own lease, and take over after that of the other."""
    caplog.set_level("INFO")

    async def body() -> None:
        first, other = One(tmp_path / "one"), One(tmp_path / "other")
        await first.start(other, Times(lease_s=10.0))
        await other.start(first, Times(lease_s=1.0), standby=True)
        async with asyncio.timeout(TIMEOUT_S):
            while "has --lease 1, and this one 10: give both the same" not in caplog.text:
                await asyncio.sleep(0.01)
        assert {first.member.state().role, other.member.state().role} == {"waiting"}
        await first.close()
        await other.close()

    run(body)


def test_without_the_token_nothing_follows_and_without_the_other_one_nothing_leads(tmp_path: Path) -> None:
    async def body() -> None:
        first, other = One(tmp_path / "one"), One(tmp_path / "other")
        other.listener.close()
        await first.start(other)
        stranger = await Host.to(first.at)
        said = {"type": "follow", "token": "guess", "name": "x", "generation": 99, "last": 9, "above": 99}
        stranger.say(json.dumps(said).encode() + b"\n")
        assert await stranger.closed() == b""
        assert first.server.counts["token"] == 1
        assert first.member.state().role == "waiting"
        assert (await first.ask("promote"))["role"] == "leading"
        host = await Host.to(first.at)
        saying(host, 1)
        assert isinstance(await host.hear(), Welcome)
        assert (await first.ask("drain", "spine2")).change.number == 1
        await first.close()
        again = One(tmp_path / "one")
        await again.start(other, Times(lease_s=0.2))
        await again.until(role="leading")  # the other one cannot lead, as this one led alone
        await again.close()

    run(body)


def test_a_service_that_leads_again_has_what_it_wrote_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator was told that it is unknown whether the change holds: it is on the disk, so it does."""

    async def body() -> None:
        async with two(tmp_path) as (first, other):
            goes_on = asyncio.Event()
            follow = other.writer.follow

            async def slow(changes: Any) -> None:
                await goes_on.wait()
                await follow(changes)

            monkeypatch.setattr(other.writer, "follow", slow)
            asked = []
            for method, what in (("drain", "spine2"), ("link", "leaf1:3")):
                asked.append(asyncio.create_task(first.ask(method, what)))
                async with asyncio.timeout(TIMEOUT_S):
                    while first.writer.last < len(asked):
                        await asyncio.sleep(0.01)
            late = await Host.to(first.at)
            saying(late, 2, first.member.state().generation + 50)
            said = await asyncio.gather(*asked, return_exceptions=True)
            assert all("or without" in str(each) for each in said)
            goes_on.set()
            await first.until(role="leading", followed=True)
            assert first.server.service.constraints == other.server.service.constraints
            assert first.server.service.constraints.drained
            assert (await first.ask("undrain", "spine2")).change.number == 3
            assert first.server.service.constraints == other.server.service.constraints

    run(body)
