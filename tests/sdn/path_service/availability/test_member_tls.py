# SPDX-License-Identifier: Apache-2.0
"""Two path services that know each other by their certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sdn.path_service.availability.messages import Follow, line_of
from sdn.path_service.channels import Channels, PlainChannels
from sdn.path_service.tls import TlsChannels, TlsFiles
from tests.certificates import Authority, Issued
from tests.sdn.path_service.availability.test_member import TIMES, TOKEN, One
from tests.sdn.path_service.sample import address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run


def channels(issued: Issued) -> Channels:
    return TlsChannels(TlsFiles(issued.ca, issued.certificate, issued.key))


@pytest.fixture(scope="module")
def service(authority: Authority) -> Issued:
    """Of both services, which listen on one address here."""
    return authority.issue("service", "127.0.0.1")


@asynccontextmanager
async def two(tmp_path: Path, first_by: Channels, other_by: Channels) -> AsyncIterator[tuple[One, One]]:
    first, other = One(tmp_path / "one"), One(tmp_path / "other")
    await other.start(first, standby=True, channels=other_by)
    await first.start(other, channels=first_by)
    try:
        yield first, other
    finally:
        await first.close()
        await other.close()


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while text not in caplog.text:
            await asyncio.sleep(0.01)


def test_one_follows_the_other_by_tls(tmp_path: Path, service: Issued) -> None:
    async def body() -> None:
        async with two(tmp_path, channels(service), channels(service)) as (first, other):
            await first.until(role="leading", followed=True)
            assert (await first.ask("drain", "spine2")).change.number == 1
            assert await other.writer.copy() == await first.writer.copy()

    run(body)


def test_a_host_cannot_follow_with_its_certificate(
    tmp_path: Path, service: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = authority.issue("host", address(TOPOLOGY, 0))

    async def body() -> None:
        async with two(tmp_path, channels(service), channels(service)) as (first, _):
            await first.until(role="leading", followed=True)
            generation = first.member.state().generation
            context = ssl.create_default_context(cafile=str(host.ca))
            context.load_cert_chain(host.certificate, host.key)
            liar = Host(*await asyncio.open_connection(*first.at, ssl=context, server_hostname="127.0.0.1"))
            lease_s = TIMES.lease_s
            liar.say(line_of(Follow(TOKEN, "me", generation, 0, generation + 5, lease_s=lease_s)))
            assert await liar.closed() == b""
            assert first.server.counts == {"certificate": 1}
            state = first.member.state()
            assert (state.role, state.followed, state.generation) == ("leading", True, generation)

    run(body)
    assert "another path service refused: its certificate is not for 127.0.0.1" in caplog.text


def test_a_service_whose_certificate_is_for_another_address_is_told(
    tmp_path: Path, service: Issued, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = authority.issue("wrong", "127.0.0.2")

    async def body() -> None:
        async with two(tmp_path, channels(service), channels(wrong)) as (first, other):
            await logged(caplog, f"no connection to the other path service, 127.0.0.1:{other.at[1]}: its certificate")
            await logged(caplog, "another path service refused: its certificate is not for 127.0.0.1")
            assert first.member.state().role == other.member.state().role == "waiting"
            assert first.server.counts["certificate"] >= 1

    run(body)


@pytest.mark.parametrize("first_has_it", [True, False])
def test_a_service_without_tls_beside_one_with_it_is_told(
    first_has_it: bool, tmp_path: Path, service: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kinds: list[Channels] = [channels(service), PlainChannels()]

    async def body() -> None:
        async with two(tmp_path, *(kinds if first_has_it else reversed(kinds))) as (first, other):
            plain = other if first_has_it else first
            secured = first if first_has_it else other
            lacks = (
                f"no connection to the other path service, 127.0.0.1:{secured.at[1]}: it says tls: this path service"
            )
            await logged(caplog, lacks)
            await logged(
                caplog, f"no connection to the other path service, 127.0.0.1:{plain.at[1]}: it does not speak TLS"
            )
            assert first.member.state().role == other.member.state().role == "waiting"
            assert caplog.text.count(lacks) == 1  # each connection fails, a few times a second

    run(body)
