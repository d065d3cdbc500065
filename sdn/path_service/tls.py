# SPDX-License-Identifier: Apache-2.0
"""Connections by TLS 1.3 with certificates on both sides, by Python's ssl.

The bytes go through memory, so a connection is admitted, timed and refused as one without TLS is, and a host without
TLS can be told so: asyncio's own TLS tells a protocol nothing of a connection before its handshake has succeeded.
"""

import asyncio
import logging
import math
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sdn.path_service.certificates import addresses, sentence
from sdn.path_service.channels import CERTIFIED, TLS_HANDSHAKE, Certified, Refuse, Wait
from sdn.path_service.turns import Worker

MOST_HANDSHAKES = 4096
"""Handshakes of hosts under way at the same time, each of which may hold some 50 KB; beyond this the oldest ends."""
_CHUNK = 1 << 16
_MOST_EARLY = 1 << 16  # bytes received before a handshake has ended: it is a few KB, and hello


log = logging.getLogger(__name__)


class TlsError(ValueError):
    """The files cannot be used: one sentence."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a path service, in PEM format."""

    ca: Path
    """Certificates of the CAs from one of which the certificates of hosts and of the other service are."""
    certificate: Path
    """This service's, followed by those of CAs in between, if any."""
    key: Path
    """Of `certificate`; others may not access it."""


class TlsChannels:
    """Connections with the certificate that the files have now."""

    are_plain = False

    def __init__(self, files: TlsFiles) -> None:
        """Raises TlsError."""
        self._accepts = _context(files, ssl.PROTOCOL_TLS_SERVER)
        self._accepts.verify_mode = ssl.CERT_REQUIRED
        self._accepts.num_tickets = 0  # a session that is resumed would not show its certificate again
        self._dials = _context(files, ssl.PROTOCOL_TLS_CLIENT)
        self._shaking: dict[_Tls, None] = {}

    def accept(self, inner: asyncio.Protocol, refuse: Refuse, wait: Wait) -> asyncio.Protocol:
        return _Tls(inner, refuse, self._begin, self._done, wait)

    def dial(self, inner: asyncio.Protocol, refuse: Refuse, address: str) -> asyncio.Protocol:
        session = _Session(self._dials, server_hostname=address)
        return _Tls(inner, refuse, lambda connection: session, lambda connection: None, _at_once, session)

    def _begin(self, connection: "_Tls") -> "_Session":
        if len(self._shaking) >= MOST_HANDSHAKES:
            next(iter(self._shaking)).fail("tls", "its handshake has not ended, and others need the room")
        self._shaking[connection] = None
        return _Session(self._accepts)

    def _done(self, connection: "_Tls") -> None:
        self._shaking.pop(connection, None)


def _at_once(host: str, worker: Worker, has_begun: bool) -> None:
    worker.turn(math.inf)


class _Session:
    """TLS in memory: bytes from and for a socket."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        self.received = ssl.MemoryBIO()
        self.to_send = ssl.MemoryBIO()
        server_side = server_hostname is None
        self.tls = context.wrap_bio(self.received, self.to_send, server_side, server_hostname)

    def read(self) -> tuple[bytes, bool]:
        """What the other side has said, and whether it says no more. Raises SSLError."""
        chunks: list[bytes] = []
        try:
            while self.received.pending or self.tls.pending():
                chunk = self.tls.read(_CHUNK)
                if not chunk:
                    return b"".join(chunks), True
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        return b"".join(chunks), False


class _Tls(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of `inner`.

    A connection that was accepted has no session until its first byte: one that sends none costs no more than without
    TLS.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        refuse: Refuse,
        begin: Callable[["_Tls"], _Session],
        done: Callable[["_Tls"], None],
        wait: Wait,
        session: _Session | None = None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._refuse = refuse
        self._begin = begin
        self._done = done
        self._wait = wait
        self._session = session
        self._has_begun = False  # the handshake
        self._is_open = False
        self._is_over = False  # what comes is not read any more
        self._has_failed = False  # TLS, of which an alert tells the other side
        self._is_plain = False  # the other side does not speak TLS
        self._early = b""  # written before the handshake has ended
        self._certified: Certified = None

    def fail(self, code: Any, text: str) -> None:
        """Ends the connection for a reason."""
        self._is_over = True
        self._done(self)
        self._refuse(code, text)
        self._session = None  # it may wait for a turn yet

    def turn(self, until_s: float) -> bool:
        """Goes on with the handshake by what has come, in one step, however long that takes."""
        if self._is_over or self._session is None:
            return False
        self._has_begun = True
        try:
            has_ended = self._shake(self._session)
            if not self._raw.is_closing():
                self._raw.resume_reading()
            if has_ended:
                self._read(self._session)
        except Exception:
            log.exception("a connection was dropped: its handshake cannot be handled")
            self.abort()
        return False

    # -- the socket's protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._inner.connection_made(self)
        if self._session is not None and not self._is_over:
            self._shake(self._session)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._session is None:
            if data[0] != TLS_HANDSHAKE:
                self._is_plain = True
                self.fail("tls", "this path service speaks TLS: give the host certificates (PARALET_PATH_SERVICE_CA)")
                return
            self._session = self._begin(self)
        self._session.received.write(data)
        if self._is_open:
            self._read(self._session)
        elif self._session.received.pending > _MOST_EARLY:
            self.fail("tls", f"its handshake has not ended within {_MOST_EARLY} bytes")
        else:  # a handshake is much work, and anybody can ask for it
            self._raw.pause_reading()
            self._wait(str((self._raw.get_extra_info("peername") or ("?",))[0]), self, self._has_begun)

    def eof_received(self) -> bool | None:
        self._end()
        return None if self._is_over else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._is_over = True
        self._done(self)
        self._session = None
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # -- the transport of `inner` --------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_open and self._session is not None:
            self._session.tls.write(data)
            self._flush(self._session)
        elif self._is_plain:
            self._raw.write(data)
        elif not self._is_over:
            self._early += data

    def close(self) -> None:
        self._is_over = True
        if self._is_open and self._session is not None:
            with suppress(ssl.SSLError):  # the other side need not say so, too
                self._session.tls.unwrap()
            self._flush(self._session)
            self._is_open = False
        if self._has_failed and not self._raw.is_closing():
            self._raw.write_eof()  # closed with bytes unread, the connection would be reset, and the alert lost
        else:
            self._raw.close()

    def abort(self) -> None:
        self._is_over = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._is_over or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._certified if name == CERTIFIED else self._raw.get_extra_info(name, default)

    # -- internal ------------------------------------------------------------------------------------------------------

    def _shake(self, session: _Session) -> bool:
        """Goes on with the handshake. Returns whether it has ended."""
        try:
            session.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush(session)
            return False
        except ssl.SSLError as error:
            self._break(session, error)
            return False
        self._done(self)
        self._is_open = True
        self._certified = addresses(session.tls.getpeercert())
        early, self._early = self._early, b""
        if early:
            session.tls.write(early)
        self._flush(session)
        return True

    def _end(self) -> None:
        """The other side says no more."""
        if self._session is not None and not self._is_open and not self._is_over:
            self.fail("tls", "it ended the handshake")

    def _read(self, session: _Session) -> None:
        try:
            said, is_last = session.read()
        except ssl.SSLError as error:
            self._break(session, error)
            return
        if session.to_send.pending:  # an answer to a change of keys
            self._flush(session)
        if said:
            self._inner.data_received(said)
        if is_last and not self._is_over and not self._inner.eof_received():
            self.close()

    def _break(self, session: _Session, error: ssl.SSLError) -> None:
        self._is_open, self._has_failed = False, True
        self._flush(session)  # an alert tells the other side why
        self.fail("tls", sentence(error))

    def _flush(self, session: _Session) -> None:
        if session.to_send.pending:
            self._raw.write(session.to_send.read())


def is_open_to_others(key: os.stat_result, user: int) -> bool:
    """Whether others than a user may read or write a key. One of root's may be read by its group, as systemd's
    credentials and secrets of Kubernetes are."""
    by_group = key.st_uid == 0 and user != 0
    return bool(key.st_mode & (0o037 if by_group else 0o077))


def _context(files: TlsFiles, side: int) -> ssl.SSLContext:
    """Raises TlsError."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    for option, path in (("--tls-ca", files.ca), ("--tls-certificate", files.certificate), ("--tls-key", files.key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise TlsError(f"{option} {path} cannot be read: {error.strerror}") from None
    if is_open_to_others(files.key.stat(), os.geteuid()):
        raise TlsError(f"--tls-key {files.key} is open to others: chmod 600 {files.key}")
    try:
        context.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise TlsError(f"--tls-ca {files.ca} has no certificate in PEM format") from error

    def no_password() -> str:
        raise TlsError(f"--tls-key {files.key} has a password: give a key without one, which its owner alone may read")

    try:
        context.load_cert_chain(files.certificate, files.key, no_password)
    except ssl.SSLError as error:
        wrong = sentence(error) if error.reason else "one of them is not in PEM format"
        raise TlsError(f"--tls-certificate {files.certificate} and --tls-key {files.key}: {wrong}") from error
    return context
