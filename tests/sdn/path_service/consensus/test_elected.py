# SPDX-License-Identifier: Apache-2.0
"""Path services of which a real etcd elects one: they are on real sockets, and so is etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sdn.path_service.admin import AdminError
from sdn.path_service.consensus.etcd import Endpoint, UnansweredError, endpoints_of
from sdn.path_service.consensus.etcd_store import EtcdStore
from sdn.path_service.consensus.member import Elected, Shared
from sdn.path_service.control.control import Control
from sdn.path_service.messages import Announce, Hello, Wait, Welcome, to_line
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from testbed.bench.takeover_hosts import Proxy
from tests.sdn.path_service.consensus.etcd_process import Member, etcd, needs_etcd
from tests.sdn.path_service.operated import Operated
from tests.sdn.path_service.sample import LANES, address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run

TOKEN = "a-token-of-them-all"
LEASE_S = 20.0
"""A lease that no load of this machine outlasts."""
SHORT_LEASE_S = 4.0
"""One that is waited for."""
pytestmark = needs_etcd


class One(Operated):
    """A path service that reaches each member of etcd by a proxy of its own."""

    def __init__(self, folder: Path, members: list[Member], lease_s: float = LEASE_S) -> None:
        super().__init__(folder, TOKEN)
        self.proxies = [Proxy(member.at) for member in members]
        self._lease_s = lease_s

    async def start(self) -> None:
        for proxy in self.proxies:
            await proxy.start()
        self.server = Server(PathService(TOPOLOGY), TOKEN)
        self.at = await self.server.start(bind("127.0.0.1", 0))
        endpoints = [Endpoint(*proxy.at, False) for proxy in self.proxies]
        self.store = EtcdStore(endpoints, None, "/fabric", f"{self.at[0]}:{self.at[1]}", self._lease_s)
        shared = Shared(self.store)
        control = Control(self.server, shared)
        self.member = Elected(self.server, control, shared, self.store)
        await self.take_part(control)

    def cut(self, *, back_only: bool = False) -> None:
        for proxy in self.proxies:
            proxy.forth, proxy.back = back_only, False

    def mend(self) -> None:
        for proxy in self.proxies:
            proxy.forth = proxy.back = True

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies:
            await proxy.close()


@asynccontextmanager
async def some(
    folder: Path, members: list[Member], count: int = 2, lease_s: float = LEASE_S
) -> AsyncIterator[list[One]]:
    """Path services of which the first one leads."""
    services = [One(folder / f"s{number}", members, lease_s) for number in range(count)]
    started: list[One] = []
    try:
        for service in services:
            await service.start()
            started.append(service)
            await service.until(role="leading" if service is services[0] else "following")
        await services[0].until(followed=count > 1)
        yield services
    finally:
        for service in started:
            service.mend()
            await service.close()


def saying(host: Host, number: int, generation: int = 0) -> None:
    host.say(to_line(Hello(2, TOKEN, address(TOPOLOGY, number), f"{number:016x}", LANES, generation=generation)))


def test_the_next_service_has_what_was_asked_of_the_one_before(tmp_path: Path) -> None:
    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members) as (first, other):
                assert (await first.ask("drain", "spine2")).change.number == 1
                assert (await first.ask("pin", "h1", "h5", ["spine3"])).change.number == 2
                with pytest.raises(AdminError, match=f"does not lead: ask 127.0.0.1:{first.at[1]}"):
                    await other.ask("drain", "spine1")
                with pytest.raises(AdminError, match="etcd decides which path service leads"):
                    await other.ask("promote")
                host = await Host.to(other.at)
                saying(host, 1)
                assert await host.refused() == "standby"
                host = await Host.to(first.at)
                saying(host, 1)
                welcome = await host.hear()
                assert isinstance(welcome, Welcome)
                assert welcome.generation == 1
                held = first.server.service.constraints
                await first.close()
                assert await host.refused() == "standby"
                await other.until(role="leading", generation=2, takeovers=1, followed=False)
                assert other.server.service.constraints == held
                assert [change.what for change in (await other.ask("changes")).changes] == [
                    "drain spine2",
                    "pin h1 h5 via spine3",
                ]
                assert (await other.ask("undo", 1)).change.number == 3
                status = (await other.ask("status"))["availability"]
                assert (status["decides"], status["role"]) == ("etcd", "leading")
                await first.start()
                await first.until(role="following", generation=2)

    run(body)


def test_a_service_that_is_cut_off_from_etcd_steps_down_before_another_one_leads(tmp_path: Path) -> None:
    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members, lease_s=SHORT_LEASE_S) as (first, other):
                host = await Host.to(first.at)
                saying(host, 1)
                assert isinstance(await host.hear(), Welcome)
                first.cut()
                async with asyncio.timeout(TIMEOUT_S):
                    while not other.member.may_assign():
                        assert not (first.member.may_assign() and other.member.may_assign())
                        await asyncio.sleep(0.002)
                assert not first.member.may_assign()
                assert first.member.role == "waiting"
                assert await host.refused() == "standby"
                host = await Host.to(other.at)
                saying(host, 1, 1)
                welcome = await host.hear()
                assert isinstance(welcome, Welcome)
                assert welcome.generation == 2
                with pytest.raises(AdminError, match="does not lead"):
                    await first.ask("drain", "spine2")
                first.mend()
                await first.until(role="following", generation=2)

    run(body)


def test_hosts_wait_at_the_service_that_will_lead(tmp_path: Path) -> None:
    """Those that come before the lease of the one that led is over need not come again."""

    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members, lease_s=SHORT_LEASE_S) as (first, other):
                first.cut()
                async with asyncio.timeout(TIMEOUT_S):
                    while other.member._seen is None or not other.member._seen.is_failing:
                        await asyncio.sleep(0.01)
                host = await Host.to(other.at)
                saying(host, 1, 1)
                welcome = await host.hear()
                while welcome == Wait():
                    welcome = await host.hear()
                assert isinstance(welcome, Welcome)
                assert welcome.generation == 2
                host.say(Announce(1, address(TOPOLOGY, 5), 1))
                await host.hear()

    run(body)


def test_a_change_whose_answer_was_lost_is_found(tmp_path: Path) -> None:
    """The operator was told that it is unknown whether the change holds: etcd has it, so it does."""

    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members, count=1) as (service,):
                assert (await service.ask("drain", "spine1")).change.number == 1  # the connection is there
                service.cut(back_only=True)
                with pytest.raises(AdminError, match="change 2 may be written or not"):
                    await service.ask("drain", "spine2")
                with pytest.raises(AdminError, match="change 2 may be written or not"):
                    await service.ask("drain", "spine3")
                service.mend()
                async with asyncio.timeout(TIMEOUT_S):
                    while len((await service.ask("control")).drains) < 2:
                        await asyncio.sleep(0.01)
                assert (await service.ask("undrain", "spine2")).change.number == 3
                assert service.member.state().generation == 1

    run(body)


def test_a_service_that_leads_no_more_cannot_write(tmp_path: Path) -> None:
    """Even if it has not noticed: etcd compares who has created the key of the service that leads."""

    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members, count=1) as (service,):
                shared = service.member._shared
                service.stays.cancel()  # it looks no more
                await asyncio.gather(service.stays, return_exceptions=True)
                service.store._leads, service.store._head_at = 2, 2
                shared.closed = None
                with pytest.raises(AdminError, match="another path service leads"):
                    await service.ask("drain", "spine2")
                found = members[0].ask("/v3/kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
                assert int(found["count"]) == 1, "only the head is there"

    run(body)


def test_hosts_that_have_met_a_higher_generation_come_back(tmp_path: Path) -> None:
    """As when etcd was made anew, or two services that voted are replaced by those that share it."""

    async def body() -> None:
        with etcd(tmp_path) as members:
            async with some(tmp_path, members, count=1) as (service,):
                host = await Host.to(service.at)
                saying(host, 1, 70)
                assert await host.refused() == "standby"
                await service.until(role="leading", generation=71)
                host = await Host.to(service.at)
                saying(host, 1, 70)
                welcome = await host.hear()
                assert isinstance(welcome, Welcome)
                assert welcome.generation == 71

    run(body)


def test_a_service_leads_on_after_a_lost_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member of etcd does what it is asked, and its answer is lost. The next one finds that head has changed."""

    async def body() -> None:
        with etcd(tmp_path) as members:
            proxies = [Proxy(members[0].at) for _ in range(2)]
            for proxy in proxies:
                await proxy.start()
            store = EtcdStore([Endpoint(*proxy.at, False) for proxy in proxies], None, "/fabric", "me", LEASE_S)
            await asyncio.to_thread(store.look)
            assert await asyncio.to_thread(store.lead, 0) == 1
            read_head = store._read_head

            def read_head_and_cut() -> Any:
                head = read_head()
                proxies[0].back = False
                return head

            with monkeypatch.context() as patch:
                patch.setattr(store, "_read_head", read_head_and_cut)
                with pytest.raises(UnansweredError):
                    await asyncio.to_thread(store.settle, 5)
            proxies[0].back = True
            seen = await asyncio.to_thread(store.look)
            assert (seen.is_this, seen.generation) == (True, 6)
            assert await asyncio.to_thread(store.settle, 5) == 6
            for proxy in proxies:
                await proxy.close()

    run(body)


def test_etcd_may_lose_its_leader(tmp_path: Path) -> None:
    async def body() -> None:
        with etcd(tmp_path, 3) as members:
            async with some(tmp_path, members) as (first, other):
                assert (await first.ask("drain", "spine1")).change.number == 1
                next(member for member in members if member.leads()).kill()
                async with asyncio.timeout(TIMEOUT_S):
                    while True:
                        try:
                            await first.ask("drain", "spine2")
                            break
                        except AdminError:  # while etcd elects
                            await asyncio.sleep(0.05)
                assert {drain.what for drain in (await first.ask("control")).drains} == {"spine1", "spine2"}
                assert (first.member.role, other.member.role) == ("leading", "following")
                assert first.member.state().generation == 1

    run(body)


def test_a_renewal_that_a_former_leader_of_etcd_has_confirmed_does_not_count() -> None:
    """A member that leads etcd no more may renew a lease that the others end (etcd-io/etcd issue 15247)."""
    terms = iter(["3", "4", "4"])
    asked: list[str] = []

    class Fake:
        def ask(self, path: str, body: Any) -> Any:
            asked.append(path)
            header = {"member_id": "1", "raft_term": next(terms) if "keepalive" in path else "4", "revision": "9"}
            if "keepalive" in path:
                return {"result": {"header": header, "TTL": "2"}}
            return {"header": header, "responses": [{"response_range": {}}] * 3}

    store = EtcdStore(endpoints_of("http://127.0.0.1:1"), None, "/x", "me", 2.0)
    store._id = "77"
    store._lease = Fake()  # type: ignore[assignment]
    assert store.look().leader is None
    assert asked == ["/v3/lease/keepalive", "/v3/kv/txn"] * 2
