# SPDX-License-Identifier: Apache-2.0
"""The path service by TLS, on real sockets: who is served, who is refused and how each is told."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sdn.path_service import tls
from sdn.path_service.certificates import addresses
from sdn.path_service.control.control import Control, RefusedError
from sdn.path_service.control.files import Files, ReadError
from sdn.path_service.control.writer import Unstored
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.log_file import LogFile
from sdn.path_service.messages import Error, Ping, Pong, Welcome, from_service, to_line
from sdn.path_service.server import Server, bind
from sdn.path_service.service import Options, PathService
from sdn.path_service.tls import TlsChannels, TlsError, TlsFiles
from tests.certificates import Authority, Issued
from tests.sdn.path_service.sample import SERVICE, TOKEN, address, hello
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run


def files(issued: Issued) -> TlsFiles:
    return TlsFiles(issued.ca, issued.certificate, issued.key)


def client(issued: Issued | None, ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    return context


@asynccontextmanager
async def served(
    issued: Issued, limits: Limits | None = None, journal: Journal | None = None, send_bytes: int | None = None
) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    channels = TlsChannels(files(issued))
    server = Server(PathService(TOPOLOGY), TOKEN, limits=limits, journal=journal, channels=channels)
    listener = bind(SERVICE, 0)
    if send_bytes is not None:  # that the kernel takes for a host
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    at = await server.start(listener)
    try:
        yield server, at
    finally:
        await server.close()


async def by_tls(at: tuple[str, int], context: ssl.SSLContext) -> Host:
    return Host(*await asyncio.open_connection(*at, limit=1 << 21, ssl=context, server_hostname=SERVICE))


async def greeted(at: tuple[str, int], issued: Issued, number: int) -> Host:
    host = await by_tls(at, client(issued, issued.ca))
    host.say(hello(TOPOLOGY, number))
    assert isinstance(await host.hear(), Welcome)
    return host


async def tried(at: tuple[str, int], context: ssl.SSLContext) -> None:
    """Has host 0 connect, and waits for what the service says."""
    host = await by_tls(at, context)
    host.say(hello(TOPOLOGY, 0))
    await host.hear()


async def counted(server: Server, **expected: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while server.counts != expected:
            await asyncio.sleep(0.005)


def dumped(number: int) -> bytes:
    return to_line(hello(TOPOLOGY, number))


def told(caplog: pytest.LogCaptureFixture) -> str:
    """The one line that says that something was refused."""
    (line,) = [record.getMessage() for record in caplog.records if " refused: " in record.getMessage()]
    return line


def test_a_host_with_a_certificate_is_served(service: Issued, first: Issued) -> None:
    async def body() -> None:
        async with served(service) as (server, at):
            host = await greeted(at, first, 0)
            await host.works()
            tls_object = host.writer.get_extra_info("ssl_object")
            assert tls_object.version() == "TLSv1.3"
            await server.close()
            assert await host.refused() == "stopping"

    run(body)


def test_a_handshake_and_lines_may_come_byte_by_byte(service: Issued, first: Issued) -> None:
    async def body() -> None:
        async with served(service) as (_, at):
            reader, writer = await asyncio.open_connection(*at)
            received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = client(first, first.ca).wrap_bio(received, to_send, server_hostname=SERVICE)
            heard = b""
            said = False
            async with asyncio.timeout(TIMEOUT_S):
                while heard.count(b"\n") < 2:
                    try:
                        if not said:
                            session.do_handshake()
                            session.write(hello_line + b'{"type":"ping","nonce":7}\n')
                            said = True
                        heard += session.read()
                    except ssl.SSLWantReadError:
                        for byte in to_send.read():
                            writer.write(bytes([byte]))
                            await writer.drain()
                            await asyncio.sleep(0)
                        if heard.count(b"\n") < 2:
                            received.write(await reader.read(1))
            welcome, pong = (from_service(line) for line in heard.splitlines())
            assert isinstance(welcome, Welcome)
            assert pong == Pong(7)
            writer.close()

    hello_line = dumped(0)
    run(body)


def no_certificate(authority: Authority, foreign: Authority) -> ssl.SSLContext:
    return client(None, authority.ca)


def of_a_foreign_ca(authority: Authority, foreign: Authority) -> ssl.SSLContext:
    return client(foreign.issue("stranger", address(TOPOLOGY, 0)), authority.ca)


def expired(authority: Authority, foreign: Authority) -> ssl.SSLContext:
    return client(authority.issue("late", address(TOPOLOGY, 0), days=-1), authority.ca)


def of_a_server(authority: Authority, foreign: Authority) -> ssl.SSLContext:
    return client(authority.issue("server", address(TOPOLOGY, 0), use="serverAuth"), authority.ca)


def of_tls_1_2(authority: Authority, foreign: Authority) -> ssl.SSLContext:
    context = client(authority.issue("old", address(TOPOLOGY, 0)), authority.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (no_certificate, "it has no certificate"),
        (of_a_foreign_ca, "its certificate is not from a CA of --tls-ca"),
        (expired, "its certificate has expired"),
        (of_a_server, "its certificate is not for this use (extendedKeyUsage)"),
        (of_tls_1_2, "it does not speak TLS 1.3"),
    ],
)
def test_a_host_that_cannot_be_trusted_is_refused_in_one_sentence(
    context: Callable[[Authority, Authority], ssl.SSLContext],
    why: str,
    authority: Authority,
    service: Issued,
    first: Issued,
    foreign: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served(service) as (server, at):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await tried(at, context(authority, foreign))
            await counted(server, tls=1)
            assert server.service.status()["hosts"] == 0
            await (await greeted(at, first, 0)).works()

    run(body)
    assert told(caplog).endswith(f"refused: tls: {why}")


@pytest.mark.parametrize(
    ("says", "why"),
    [(True, "it refuses this certificate, which is not from its CA"), (False, "it ended the handshake")],
)
def test_a_host_that_does_not_trust_the_service_is_told_of(
    says: bool, why: str, service: Issued, first: Issued, foreign: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served(service) as (server, at):
            reader, writer = await asyncio.open_connection(*at)
            received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = client(first, foreign.ca).wrap_bio(received, to_send, server_hostname=SERVICE)

            async def shake_hands() -> None:
                while True:
                    try:
                        session.do_handshake()
                    except ssl.SSLWantReadError:
                        writer.write(to_send.read())
                        received.write(await reader.read(1 << 16))

            with pytest.raises(ssl.SSLCertVerificationError):
                await shake_hands()
            if says:
                writer.write(to_send.read())
            writer.write_eof()
            await counted(server, tls=1)
            writer.close()

    run(body)
    assert told(caplog).endswith(f"refused: tls: {why}")


def test_a_host_without_tls_is_told(service: Issued, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served(service) as (server, at):
            host = await Host.to(at)
            host.say(hello(TOPOLOGY, 0))
            error = await host.hear()
            assert error == Error(
                "tls", "this path service speaks TLS: give the host certificates (PARALET_PATH_SERVICE_CA)"
            )
            assert await host.closed() == b""
            assert server.counts == {"tls": 1}
            assert server.service.status()["hosts"] == 0

    run(body)
    assert "this path service speaks TLS" in told(caplog)


def test_a_host_with_tls_at_a_service_without_is_told(first: Issued, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def body() -> None:
        server = Server(PathService(TOPOLOGY), TOKEN)
        at = await server.start(bind(SERVICE, 0))
        reader, writer = await asyncio.open_connection(*at)
        to_send = ssl.MemoryBIO()
        session = client(first, first.ca).wrap_bio(ssl.MemoryBIO(), to_send, server_hostname=SERVICE)
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        writer.write(to_send.read())
        async with asyncio.timeout(TIMEOUT_S):
            error = from_service(await reader.read())
        assert isinstance(error, Error)
        assert error.code == "tls"
        assert server.counts == {"tls": 1}
        writer.close()
        await server.close()

    run(body)
    assert "it speaks TLS, and this path service was started without --tls-certificate" in told(caplog)


def test_a_host_cannot_speak_for_the_address_of_another(
    service: Issued, first: Issued, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor replace it by its instance, whatever else is right."""
    caplog.set_level(logging.INFO)
    victim, log = address(TOPOLOGY, 1), tmp_path / "events.jsonl"
    second = authority.issue("second", victim, "fd00::7")

    async def body() -> None:
        with LogFile(log) as lines:
            async with served(service, journal=Journal(lines)) as (server, at):
                honest = await greeted(at, second, 1)
                liar = await by_tls(at, client(first, first.ca))
                liar.say(hello(TOPOLOGY, 1))
                error = await liar.hear()
                assert error == Error("certificate", f"its certificate is not for {victim}")
                assert await liar.closed() == b""
                assert server.counts == {"certificate": 1}
                await honest.works()
                host = await greeted(at, first, 0)
                host.say(hello(TOPOLOGY, 1))  # a second hello on a connection that was accepted
                assert await host.refused() == "message"

    run(body)
    audited = [entry for line in log.read_text().splitlines() if "refused" in (entry := json.loads(line))]
    assert len(audited) == 1
    assert audited[0]["refused"] == f"certificate: its certificate is not for {victim}"
    assert audited[0]["who"].startswith("127.0.0.1:")
    assert sum("not for" in record.getMessage() for record in caplog.records) == 1


def test_addresses_of_a_certificate_are_compared_as_addresses() -> None:
    names = (("IP Address", "FD00:0:0:0:0:0:0:1\n"), ("DNS", "10.0.0.9"), ("IP Address", "10.0.0.1"))
    assert addresses({"subjectAltName": (*names, ("IP Address", "<invalid>"))}) == {"fd00::1", "10.0.0.1"}
    assert addresses({"subject": ()}) == addresses(None) == frozenset()


def test_a_certificate_that_is_renewed_counts_for_the_next_connection(
    service: Issued, first: Issued, authority: Authority, tmp_path: Path
) -> None:
    renewed = authority.issue("renewed", SERVICE)
    now = Issued(tmp_path / "ca.pem", tmp_path / "service.pem", tmp_path / "service-key.pem")

    def put(issued: Issued) -> None:
        for source, to in ((issued.ca, now.ca), (issued.certificate, now.certificate), (issued.key, now.key)):
            shutil.copy(source, to)

    def reread() -> Files:
        try:
            return Files(TOPOLOGY, None, None, TOKEN, Options(), TlsChannels(files(now)))
        except TlsError as error:
            raise ReadError(str(error)) from error

    def serial(host: Host) -> str:
        return str(host.writer.get_extra_info("peercert")["serialNumber"])

    put(service)

    async def body() -> None:
        async with served(now) as (server, at):
            control = Control(server, Unstored(), reread=reread)
            old = await greeted(at, first, 0)
            put(renewed)
            await control.reload("a test")
            new = await greeted(at, authority.issue("second", address(TOPOLOGY, 1)), 1)
            assert serial(new) != serial(old)
            await old.works()
            now.key.write_bytes(service.key.read_bytes())
            with pytest.raises(RefusedError, match=r"nothing was changed: .*: the key is not that of the certificate"):
                await control.reload("a test")
            late = await greeted(at, authority.issue("third", address(TOPOLOGY, 2)), 2)
            assert serial(late) == serial(new)
            await old.works()

    run(body)


def test_handshakes_under_way_are_bounded(
    service: Issued, first: Issued, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "MOST_HANDSHAKES", 3)
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with served(service) as (server, at):
            begun = [await Host.to(at) for _ in range(4)]
            for count, host in enumerate(begun, 1):
                host.say(b"\x16\x03\x01")
                if count <= 3:
                    async with asyncio.timeout(TIMEOUT_S):
                        while len(server.channels._shaking) < count:  # type: ignore[attr-defined]
                            await asyncio.sleep(0.005)
            assert await begun[0].closed() == b""
            await counted(server, tls=1)
            await (await greeted(at, first, 0)).works()
            assert server.counts == {"tls": 2}

    run(body)
    assert "its handshake has not ended, and others need the room" in caplog.text


def test_a_handshake_has_the_time_of_a_hello(service: Issued) -> None:
    async def body() -> None:
        async with served(service, Limits(hello_s=0.2)) as (server, at):
            silent, begun = await Host.to(at), await Host.to(at)
            begun.say(b"\x16\x03\x01")
            assert await silent.closed() == await begun.closed() == b""
            assert server.counts == {"hello": 2}
            assert not server.connections

    run(body)


def test_a_host_that_does_not_read_is_dropped(service: Issued, first: Issued) -> None:
    async def body() -> None:
        limits = Limits(unread_bytes=1 << 14, lines_per_s=1e6, burst_lines=1 << 20)
        async with served(service, limits, send_bytes=1 << 13) as (server, at):
            host = await greeted(at, first, 0)
            host.writer.transport.pause_reading()
            async with asyncio.timeout(TIMEOUT_S):
                while not server.counts["unread"]:
                    host.say(*[Ping(number) for number in range(1000)])
                    await asyncio.sleep(0.001)
            assert server.counts == {"unread": 1}

    run(body)


@pytest.mark.parametrize(
    ("mode", "owner", "user", "is_open"),
    [
        (0o600, 7, 7, False),
        (0o400, 0, 0, False),
        (0o640, 7, 7, True),
        (0o640, 0, 0, True),
        (0o440, 0, 7, False),  # a credential of systemd
        (0o460, 0, 7, True),
        (0o444, 0, 7, True),
    ],
)
def test_who_may_read_a_key(mode: int, owner: int, user: int, is_open: bool) -> None:
    key = os.stat_result((0o100000 | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
    assert tls.is_open_to_others(key, user) is is_open


def test_files_that_cannot_be_used_are_named(service: Issued, authority: Authority, tmp_path: Path) -> None:
    good = files(service)
    empty, open_key, locked = tmp_path / "empty", tmp_path / "open.pem", tmp_path / "locked.pem"
    empty.touch(0o600)
    shutil.copy(good.key, open_key)
    open_key.chmod(0o640)
    subprocess.run(
        ["openssl", "ec", "-in", good.key, "-aes256", "-passout", "pass:secret", "-out", locked],
        check=True,
        capture_output=True,
    )
    locked.chmod(0o600)
    other = authority.issue("other", SERVICE)
    for wrong, why in (
        ({"ca": tmp_path / "none"}, "--tls-ca .*none cannot be read: No such file or directory"),
        ({"ca": empty}, "--tls-ca .*empty has no certificate in PEM format"),
        ({"certificate": empty}, "one of them is not in PEM format"),
        ({"key": tmp_path}, "--tls-key .* cannot be read: Is a directory"),
        ({"key": open_key}, "--tls-key .*open.pem is open to others: chmod 600"),
        ({"key": locked}, "--tls-key .*locked.pem has a password"),
        ({"key": other.key}, "the key is not that of the certificate"),
    ):
        with pytest.raises(TlsError, match=why):
            TlsChannels(dataclasses.replace(good, **wrong))  # type: ignore[arg-type]
