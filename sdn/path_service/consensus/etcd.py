# SPDX-License-Identifier: Apache-2.0
"""Requests to etcd: its API of version 3 as JSON over HTTP, by the standard library.

https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ describes it: 64-bit numbers are strings, keys and values base64.
"""

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from netmodel.printable import printable
from sdn.path_service.consensus.store import ConsensusError

_AGAIN = {4, 13, 14}
"""Codes of gRPC after which another member may do better: timeouts, no leader, a broken member."""
_MOST_ANSWER = 64 * 1024 * 1024


class UnansweredError(ConsensusError):
    """No member of etcd has answered: a request that changes something was carried out or not."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a member of etcd answers."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


def endpoints_of(text: str) -> list[Endpoint]:
    """The endpoints in a list with commas, such as https://10.0.0.7:2379. Raises ValueError with one sentence."""
    found = []
    for one in text.split(","):
        try:
            parts = urlsplit(one.strip())
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_whole = parts.scheme in ("http", "https") and parts.hostname and port
        if not is_whole or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{one!r} is not where etcd answers: write http://HOST:PORT or https://HOST:PORT")
        assert parts.hostname is not None
        assert port is not None
        found.append(Endpoint(parts.hostname, port, parts.scheme == "https"))
    if len({endpoint.is_tls for endpoint in found}) > 1:
        raise ValueError("either all members of etcd are asked by https, or none is")
    return found


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """TLS to etcd, with the certificate of its authority and one of this client. Raises ValueError with one sentence.

    Without `ca` the authorities of the system are trusted. The key may be in the file of the certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the certificate of an authority, {ca}, cannot be read: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ValueError(f"the certificate {certificate} with its key cannot be used: {error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


class Etcd:
    """Members of one etcd. A request goes to the member that has answered last, or else to the next. For one thread."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._endpoints = list(endpoints)
        self._tls = tls
        self._timeout_s = timeout_s
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to a request; each member has `timeout_s` for it.

        Raises ConsensusError when etcd refuses, UnansweredError when no member answers.
        """
        why: list[str] = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._at]
            try:
                return self._ask_one(endpoint, path, body)
            except ConsensusError as error:
                if not why:
                    raise
                why.append(str(error))  # and a member before has not said whether it has carried it out
                break
            except (OSError, http.client.HTTPException, _MemberError) as error:
                why.append(f"{endpoint}: {error or type(error).__name__}")
                self.close()
                self._at = (self._at + 1) % len(self._endpoints)
        raise UnansweredError(printable(f"etcd does not answer ({'; '.join(why)})"))

    def close(self) -> None:
        """Ends the connection. The next request makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask_one(self, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> Any:
        text = json.dumps(body).encode()
        is_new = self._connection is None
        try:
            return self._answer(self._connected(endpoint), path, text)
        except (ConnectionError, http.client.BadStatusLine):
            if is_new:
                raise
        self.close()  # a member that was started again has forgotten the connection
        return self._answer(self._connected(endpoint), path, text)

    def _connected(self, endpoint: Endpoint) -> http.client.HTTPConnection:
        if self._connection is None:
            made: http.client.HTTPConnection
            if endpoint.is_tls:
                made = http.client.HTTPSConnection(
                    endpoint.host, endpoint.port, timeout=self._timeout_s, context=self._tls
                )
            else:
                made = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=self._timeout_s)
            made.connect()
            with suppress(OSError):
                made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = made
        return self._connection

    def _answer(self, connection: http.client.HTTPConnection, path: str, text: bytes) -> Any:
        connection.request("POST", path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read(_MOST_ANSWER)
        try:
            answer = json.loads(said)
        except ValueError:
            raise _MemberError(f"HTTP status {response.status}, and no JSON: is this etcd 3.4 or later?") from None
        if response.status == http.client.OK and isinstance(answer, dict) and "error" not in answer:
            return answer
        what, code = (answer.get("error"), answer.get("code")) if isinstance(answer, dict) else (answer, None)
        if code in _AGAIN or code is None:
            raise _MemberError(f"it says {what!r}")
        raise ConsensusError(printable(f"etcd refuses: {what}"))


class _MemberError(Exception):
    """A member cannot do what it is asked, and another one may."""


def text_of(key: str | bytes) -> str:
    """A key or a value as JSON has it."""
    return base64.b64encode(key.encode() if isinstance(key, str) else key).decode()


def bytes_of(text: str) -> bytes:
    """A value of an answer."""
    return base64.b64decode(text)


def end_of(prefix: str) -> str:
    """The key after all keys with this prefix, which ends with an ASCII character other than the last."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
