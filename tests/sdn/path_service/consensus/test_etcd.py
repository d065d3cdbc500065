# SPDX-License-Identifier: Apache-2.0
"""How etcd is reached: endpoints, TLS with certificates of both sides, and members that do not answer."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sdn.path_service.consensus.etcd import Endpoint, Etcd, UnansweredError, endpoints_of, tls_context
from sdn.path_service.consensus.etcd_store import EtcdStore
from sdn.path_service.consensus.store import ConsensusError
from tests.sdn.path_service.consensus.etcd_process import DEADLINE_S, Member, address, etcd, needs_etcd

OPENSSL = shutil.which("openssl")


def test_endpoints_are_urls() -> None:
    assert endpoints_of("http://10.0.0.7:2379, http://[fd00::8]:2380") == [
        Endpoint("10.0.0.7", 2379, False),
        Endpoint("fd00::8", 2380, False),
    ]
    assert str(endpoints_of("https://[fd00::8]:1/")[0]) == "https://[fd00::8]:1"


@pytest.mark.parametrize("wrong", ["", "10.0.0.7:2379", "etcd://a:1", "http://a", "http://a:99999", "http://a:1/v3"])
def test_anything_else_is_refused_in_one_sentence(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"is not where etcd answers: write http://HOST:PORT"):
        endpoints_of(wrong)


def test_members_are_all_asked_by_tls_or_none() -> None:
    with pytest.raises(ValueError, match="either all members"):
        endpoints_of("http://a:1,https://b:1")


@needs_etcd
def test_a_member_that_does_not_answer_is_left_for_the_next(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, etcd(tmp_path) as (member,):
        endpoints = [Endpoint(*silent.getsockname(), False), Endpoint(*member.at, False)]
        client = Etcd(endpoints, None, 0.5)
        assert "header" in client.ask("/v3/kv/range", {"key": "AA=="})
        assert client._at == 1, "it stays with the one that answers"
        with pytest.raises(ConsensusError, match=r"etcd refuses: .*lease not found"):
            client.ask("/v3/kv/put", {"key": "AA==", "lease": "99"})
        member.kill()
        with pytest.raises(UnansweredError, match=r"http://127.0.0.1:\d+: timed out"):
            client.ask("/v3/kv/range", {"key": "AA=="})
        member.start()
        end_s = time.monotonic() + DEADLINE_S
        while not member.leads():
            assert time.monotonic() < end_s, member.log()
            time.sleep(0.05)
        assert "header" in client.ask("/v3/kv/range", {"key": "AA=="})


@needs_etcd
def test_a_service_is_counted_though_etcd_failed_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was granted, and its key was not written."""
    with etcd(tmp_path) as (member,):
        store = EtcdStore(endpoints_of(member.url), None, "/x", "me", 60.0)
        ask = store._lease.ask

        def ask_but_put_nothing(path: str, body: Any) -> Any:
            if path == "/v3/kv/put":
                raise UnansweredError("etcd does not answer")
            return ask(path, body)

        with monkeypatch.context() as patch:
            patch.setattr(store._lease, "ask", ask_but_put_nothing)
            with pytest.raises(UnansweredError):
                store.look()
        assert store.look().services == 1


@needs_etcd
def test_a_request_takes_a_part_of_the_lease_that_etcd_grants(tmp_path: Path) -> None:
    """etcd rounds up: two members that do not answer leave time for the third."""
    with etcd(tmp_path) as (member,):
        for asked_s in (0.2, 1.0, 2.5, 4.0):
            store = EtcdStore(endpoints_of(",".join([member.url] * 3)), None, "/x", "me", asked_s)
            granted = member.ask("/v3/lease/grant", {"TTL": store._asked_s})
            assert store._lease._timeout_s == float(granted["TTL"]) / 4


def test_a_server_that_is_no_etcd_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Etcd([Endpoint(*server.getsockname(), False)], None, 5.0)
        asked = subprocess.Popen(  # answers once
            ["/usr/bin/env", "python3", "-c", ANSWERS], stdin=server.detach(), stdout=subprocess.DEVNULL
        )
        with pytest.raises(UnansweredError, match="HTTP status 404, and no JSON: is this etcd"):
            client.ask("/v3/kv/range", {})
        asked.wait(DEADLINE_S)


ANSWERS = """
import socket
with socket.socket(fileno=0) as server:
    there, _ = server.accept()
    there.recv(65536)
    there.sendall(b"HTTP/1.1 404 Not Found\\r\\nContent-Length: 4\\r\\n\\r\\nnope")
    there.close()
"""


def made_certificates(folder: Path) -> None:
    """An authority, and certificates of the member and of a client that it has signed; another authority."""

    def openssl(*argv: str) -> None:
        assert OPENSSL is not None
        subprocess.run([OPENSSL, *argv], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        openssl(*new, "-x509", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    for name, more in (("member", f"subjectAltName=IP:{address(0)}"), ("client", "extendedKeyUsage=clientAuth")):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / "more").write_text(more)
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "more")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")


@needs_etcd
@pytest.mark.skipif(OPENSSL is None, reason="openssl is missing, which makes certificates")
def test_both_sides_show_certificates(tmp_path: Path) -> None:
    made_certificates(tmp_path)
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "member")}
    more = ("--client-cert-auth", "--trusted-ca-file", files["ca"], "--cert-file", files["member"])
    member = Member(tmp_path, 0, 1, [*more, "--key-file", str(tmp_path / "member.key")], "https")

    def store(ca: str, certificate: str | None) -> EtcdStore:
        mine = None if certificate is None else tmp_path / f"{certificate}.pem"
        key = None if certificate is None else tmp_path / f"{certificate}.key"
        return EtcdStore(endpoints_of(member.url), tls_context(tmp_path / f"{ca}.pem", mine, key), "/x", "me", 9.0)

    try:
        good = store("ca", "client")
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                assert good.look().leader is None
                break
            except ConsensusError:
                assert time.monotonic() < end_s, member.log()
                time.sleep(0.1)
        assert good.lead(0) == 1
        assert good.look().is_this
        with pytest.raises(UnansweredError):  # TLS 1.3 has nobody say why before the first request
            store("ca", None).look()
        with pytest.raises(ConsensusError, match="certificate verify failed"):
            store("other", "client").look()
    finally:
        member.kill()


def test_a_certificate_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    with pytest.raises(ValueError, match=f"the certificate of an authority, {wrong}, cannot be read"):
        tls_context(wrong, None, None)
    with pytest.raises(ValueError, match=f"the certificate {wrong} with its key cannot be used"):
        tls_context(None, wrong, None)
