# SPDX-License-Identifier: Apache-2.0
"""The path client by TLS, against the real path service: who connects, and what the user of a host is told."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hostlib import Device, DeviceError
from netmodel import leaf_spine
from sdn.path_service.channels import Channels, PlainChannels
from sdn.path_service.server import Server, bind
from sdn.path_service.service import PathService
from sdn.path_service.tls import TlsChannels, TlsFiles
from tests.certificates import Authority, Issued

from .conftest import DEADLINE_S, A, B, join
from .path_service import TOKEN, eventually

LANES = 4
OTHER = "127.0.0.9"


@pytest.fixture(scope="module")
def service(authority: Authority) -> Issued:
    return authority.issue("service", "127.0.0.1", dns=("localhost",))


@pytest.fixture(scope="module")
def host(authority: Authority) -> Issued:
    return authority.issue("host", A, use="clientAuth")


class Running:
    """A path service on a thread of its own."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.server = server
        self.port = port
        self._loop = loop

    def counts(self) -> dict[str, int]:
        return dict(self.server.counts)

    def hosts(self) -> int:
        """Devices that are connected."""

        async def ask() -> int:
            return int(self.server.service.status()["hosts"])

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(DEADLINE_S)


@contextmanager
def serving(channels: Channels) -> Iterator[Running]:
    """For devices at A and B, which are on two leaves."""
    topology = leaf_spine(2, 4, 1, 10**9)
    nics = [
        replace(h.nics[0], address=type(h.nics[0].address)(at)) for h, at in zip(topology.hosts, (A, B), strict=True)
    ]
    hosts = tuple(replace(h, nics=(nic,)) for h, nic in zip(topology.hosts, nics, strict=True))
    server = Server(PathService(replace(topology, hosts=hosts)), TOKEN, channels=channels)
    loop = asyncio.new_event_loop()
    _, port = loop.run_until_complete(server.start(bind("127.0.0.1", 0)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Running(server, loop, port)
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def by_tls(issued: Issued) -> Channels:
    return TlsChannels(TlsFiles(issued.ca, issued.certificate, issued.key))


def options(running: Running, issued: Issued | None, ca: Path | None = None, name: str = "127.0.0.1") -> dict[str, Any]:
    """Of a device that connects with a certificate, to a service of a CA, by this name."""
    out = {"lanes": LANES, "policy": "controller", "path_service": f"{name}:{running.port}", "token": TOKEN}
    if issued is None:
        return out
    return {**out, "tls_ca": ca or issued.ca, "tls_certificate": issued.certificate, "tls_key": issued.key}


def connected(device: Device) -> bool:
    return bool(device.counters()["path_client"]["connected"])


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_device_gets_its_ports_by_tls(name: str, service: Issued, host: Issued) -> None:
    with serving(by_tls(service)) as running, Device(B, lanes=LANES) as other:
        with Device(A, **options(running, host, name=name), elephant_bytes=2**16) as device:
            pair = join(device, other)
            eventually(lambda: connected(device), "never connected")
            message, buffer = bytes(2**20), bytearray(2**20)
            receiving, sending = pair.back.recv(buffer), pair.to.send(message)
            assert sending.wait(DEADLINE_S) == receiving.wait(DEADLINE_S) == len(message)
            eventually(lambda: device.counters()["path_client"]["assigned"] == 1, "the elephant got no ports")
            assert running.hosts() == 1
            assert running.counts() == {}
        eventually(lambda: running.hosts() == 0, "the service never noticed that the host is gone")


def expired(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return authority.issue("late", A, days=-1), authority.ca


def of_a_foreign_ca(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return foreign.issue("stranger", A), authority.ca


def of_a_server(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return authority.issue("server", A, use="serverAuth"), authority.ca


def of_another_host(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return authority.issue("liar", OTHER, use="clientAuth"), authority.ca


def good(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return authority.issue("good", A), authority.ca


def that_trusts_another_ca(authority: Authority, foreign: Authority) -> tuple[Issued, Path]:
    return authority.issue("good", A), foreign.ca


def none(authority: Authority, foreign: Authority) -> tuple[None, None]:
    return None, None


def right(authority: Authority) -> Channels:
    return by_tls(authority.issue("right", "127.0.0.1"))


def late(authority: Authority) -> Channels:
    return by_tls(authority.issue("late-service", "127.0.0.1", days=-1))


def elsewhere(authority: Authority) -> Channels:
    return by_tls(authority.issue("elsewhere", OTHER, dns=("127.0.0.1",)))


def of_a_client(authority: Authority) -> Channels:
    return by_tls(authority.issue("client", "127.0.0.1", use="clientAuth"))


def plain(authority: Authority) -> Channels:
    return PlainChannels()


NOT_TRUSTED = "it refuses this host's certificate"


@pytest.mark.parametrize(
    ("channels", "device", "said", "counted"),
    [
        (right, expired, f"{NOT_TRUSTED}, which has expired", "tls"),
        (right, of_a_foreign_ca, f"{NOT_TRUSTED}, which is not from its CA", "tls"),
        (right, of_a_server, f"{NOT_TRUSTED}, which is not for clients (extendedKeyUsage)", "tls"),
        (right, of_another_host, f"it says certificate: its certificate is not for {A}", "certificate"),
        (right, that_trusts_another_ca, "its certificate is not from a CA in", "tls"),
        (right, none, "it says tls: this path service speaks TLS", "tls"),
        (late, good, "its certificate has expired", "tls"),
        (elsewhere, good, "its certificate is not for 127.0.0.1", "tls"),
        (of_a_client, good, "its certificate is refused: unsuitable certificate purpose", "tls"),
        (plain, good, "it does not speak TLS: start it with --tls-certificate, or leave the certificates out", "tls"),
    ],
)
def test_a_device_that_may_not_connect_is_told_in_one_sentence(
    channels: Callable[[Authority], Channels],
    device: Callable[[Authority, Authority], tuple[Issued | None, Path | None]],
    said: str,
    counted: str,
    authority: Authority,
    foreign: Authority,
    capfd: pytest.CaptureFixture[str],
) -> None:
    heard: list[str] = []

    def hears() -> bool:
        heard.append(capfd.readouterr().err)
        return "no path service at" in "".join(heard)

    with serving(channels(authority)) as running, Device(A, **options(running, *device(authority, foreign))) as one:
        eventually(hears, "no sentence")
        eventually(lambda: running.counts().get(counted), lambda: f"counted: {running.counts()}")
        assert not connected(one)
        assert running.hosts() == 0
        assert set(running.counts()) == {counted}
    assert f"lanes use ECMP until it answers: {said}" in "".join(heard)


def test_a_certificate_that_is_renewed_is_used_for_the_next_connection(
    authority: Authority, service: Issued, host: Issued, tmp_path: Path
) -> None:
    now = Issued(tmp_path / "ca.pem", tmp_path / "host.pem", tmp_path / "host-key.pem")

    def put(issued: Issued) -> None:
        for source, to in ((issued.ca, now.ca), (issued.certificate, now.certificate), (issued.key, now.key)):
            shutil.copy(source, to)

    put(authority.issue("late", A, days=-1))
    with serving(by_tls(service)) as running, Device(A, **options(running, now), reconnect_s=(0.01, 0.05)) as device:
        eventually(lambda: running.counts().get("tls"), "the expired certificate was not refused")
        put(host)
        eventually(lambda: connected(device), "never connected")


def test_files_that_cannot_be_used_are_named_when_the_device_opens(
    host: Issued, authority: Authority, tmp_path: Path
) -> None:
    empty, open_key, locked = tmp_path / "empty", tmp_path / "open.pem", tmp_path / "locked.pem"
    empty.touch(0o600)
    shutil.copy(host.key, open_key)
    open_key.chmod(0o640)
    encrypt = ["openssl", "ec", "-in", host.key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(encrypt, check=True, capture_output=True)
    locked.chmod(0o600)
    files = {"tls_ca": host.ca, "tls_certificate": host.certificate, "tls_key": host.key}
    common: dict[str, Any] = {"policy": "controller", "path_service": "127.0.0.1:1", "token": TOKEN}
    for wrong, why in (
        ({"tls_ca": tmp_path / "none"}, "the file of CA certificates .*none cannot be read: No such file"),
        ({"tls_ca": empty}, "the file of CA certificates .*empty has none"),
        ({"tls_certificate": empty}, "the certificate .*empty cannot be used"),
        ({"tls_key": open_key}, "the key file .*open.pem is open to others: make it your own with chmod 600"),
        ({"tls_key": locked}, "the key .*locked.pem cannot be used"),
        ({"tls_key": authority.issue("other", A).key}, "the key .* cannot be used with the certificate .*: key values"),
    ):
        with pytest.raises(DeviceError, match=why):
            Device(A, **common, **{**files, **wrong})
    with pytest.raises(ValueError, match="belong together: give all three"):
        Device(A, **common, tls_ca=host.ca)
    with pytest.raises(ValueError, match="are only for policy='controller', not for 'ecmp'"):
        Device(A, **files)


CHILD = """
import sys
from hostlib import Device, DeviceError
files = dict(zip(("tls_ca", "tls_certificate", "tls_key"), sys.argv[1:]))
try:
    with Device("127.0.0.1", policy="controller", path_service="127.0.0.1:1", token="t", **files):
        print("libssl" in open("/proc/self/maps").read())
except DeviceError as error:
    print(error)
"""


def child(*files: Path, **environment: str) -> str:
    argv = [sys.executable, "-c", CHILD, *map(str, files)]
    ran = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=DEADLINE_S)
    return ran.stdout.strip()


def test_openssl_is_loaded_only_for_tls(host: Issued, tmp_path: Path) -> None:
    files = (host.ca, host.certificate, host.key)
    assert child() == "False"
    assert child(*files) == "True"
    (tmp_path / "libssl.so.3").touch()  # is found first, and is no library
    said = child(*files, LD_LIBRARY_PATH=str(tmp_path))
    assert said == "TLS to a path service needs libssl.so.3: install OpenSSL 3 (Debian: apt-get install libssl3)"


@pytest.mark.parametrize(
    ("number", "what"), [(0, "file of CA certificates"), (1, "certificate"), (2, "key file")], ids=["ca", "cert", "key"]
)
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(
    number: int, what: str, host: Issued, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    files = [host.ca, host.certificate, host.key]
    files[number] = pipe
    assert child(*files) == f"the {what} {pipe} is not a regular file"
