# SPDX-License-Identifier: Apache-2.0
"""A flood of TLS handshakes: hosts that are connected have their decisions meanwhile, and a new one gets in."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from sdn.path_service import tls
from sdn.path_service.limits import Limits
from tests.certificates import Authority, Issued
from tests.sdn.path_service.sample import SERVICE, address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run
from tests.sdn.path_service.test_tls import client, counted, greeted, served

STRANGERS = 150
WITHOUT_RATE = Limits(lines_per_s=1e6, burst_lines=1 << 20)


@pytest.fixture(scope="module")
def second(authority: Authority) -> Issued:
    return authority.issue("second", address(TOPOLOGY, 1), use="clientAuth")


def first_flight(authority: Authority) -> bytes:
    """What a side says first, and has the service do asymmetric cryptography."""
    to_send = ssl.MemoryBIO()
    session = client(None, authority.ca).wrap_bio(ssl.MemoryBIO(), to_send, server_hostname=SERVICE)
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return to_send.read()


class Flood:
    """Strangers that have all said their first flight at once, and wait for the service's."""

    def __init__(self, hosts: list[Host], flight: bytes) -> None:
        for host in hosts:
            host.say(flight)
        self._heard = asyncio.gather(*(host.reader.read(1) for host in hosts))

    @property
    def lasts(self) -> bool:
        return not self._heard.done()

    async def over(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            assert all(await self._heard), "the service has answered each of them"


@pytest.mark.parametrize("addresses", [1, STRANGERS])
def test_a_connected_host_has_decisions_between_the_handshakes_of_strangers(
    addresses: int, authority: Authority, service: Issued, first: Issued
) -> None:
    """Before, it had one while 150 handshakes were done. Now it has 39, fewer where several fit in a turn."""

    async def body() -> None:
        async with served(service, WITHOUT_RATE) as (_, at):
            host = await greeted(at, first, 0)
            strangers = [await Host.to(at, f"127.0.1.{1 + number % addresses}") for number in range(STRANGERS)]
            flood, decisions = Flood(strangers, first_flight(authority)), 0
            while flood.lasts:
                await host.works()
                decisions += 1
            await flood.over()
            assert decisions > STRANGERS / 20

    run(body)


def test_a_host_that_connects_waits_for_one_handshake_of_an_address_and_not_for_all(
    authority: Authority, service: Issued, second: Issued
) -> None:
    async def body() -> None:
        async with served(service, WITHOUT_RATE) as (_, at):
            strangers = [await Host.to(at, "127.0.1.1") for _ in range(STRANGERS)]
            flood = Flood(strangers, first_flight(authority))
            await (await greeted(at, second, 1)).works()
            assert flood.lasts
            await flood.over()

    run(body)


def test_a_handshake_that_has_begun_ends_before_those_that_begin_later(
    authority: Authority, service: Issued, second: Issued
) -> None:
    """So thousands of hosts that come at once are served one after the other, and do not all wait for the last one."""

    async def body() -> None:
        async with served(service, WITHOUT_RATE) as (server, at):
            strangers = [await Host.to(at, f"127.0.1.{1 + number}") for number in range(STRANGERS)]
            host = asyncio.create_task(greeted(at, second, 1))
            while not server.channels._shaking:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            flood = Flood(strangers, first_flight(authority))
            await (await host).works()
            assert flood.lasts
            await flood.over()

    run(body)


def test_bytes_that_come_before_a_handshake_has_ended_are_bounded(
    authority: Authority, service: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_MOST_EARLY", 1 << 10)

    async def body() -> None:
        async with served(service) as (server, at):
            host = await Host.to(at)
            host.say(first_flight(authority) + b"\x17\x03\x03\x40\x00" + bytes(1 << 14))
            await counted(server, tls=1)
            await host.closed()

    run(body)


def test_a_handshake_that_was_refused_while_it_waited_holds_no_memory(authority: Authority, service: Issued) -> None:
    """Before, its session, with all that had come, was held until its turn."""

    async def body() -> None:
        async with served(service) as (server, at):
            begun: list[Any] = []
            server._wait_as_stranger = lambda host, worker, has_begun: begun.append(worker)  # type: ignore[method-assign]
            hosts = [await Host.to(at) for _ in range(2)]
            for host in hosts:
                host.say(first_flight(authority))
            async with asyncio.timeout(TIMEOUT_S):
                while len(begun) < 2:
                    await asyncio.sleep(0.01)
                begun[0].fail("tls", "others need the room")
                begun[1].abort()
                while any(worker._session is not None for worker in begun):
                    await asyncio.sleep(0.01)
            assert not any(worker.turn(0.0) for worker in begun)

    run(body)
