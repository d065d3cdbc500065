# SPDX-License-Identifier: Apache-2.0
"""The operator's Unix socket of a path service.

Only the service's user and root may open it, and every request must have the token.
`sdn.path_service.admin` has the requests.
"""

import asyncio
import hmac
import json
import os
import pwd
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sdn.path_service.admin import (
    TIMEOUT_S,
    AdminError,
    Flows,
    LinkChange,
    ListChanges,
    NextHopsRead,
    Paths,
    Promote,
    Reload,
    Request,
    Status,
    WhatIf,
    short_name,
)
from sdn.path_service.availability.state import Availability
from sdn.path_service.control.control import Control, RefusedError
from sdn.path_service.control.store import StoreError
from sdn.path_service.server import Server

_MAX_LINE = 4 * 1024 * 1024  # the next hops of all switches
_MOST_REQUESTS = 16  # at the same time; beyond this the oldest one is ended
_CREDENTIALS = struct.Struct("3i")  # ucred: process, user, group
_PARTS = 32  # of an answer that are made before hosts are served again

_requests = msgspec.json.Decoder(Request)


async def listen(
    server: Server, token: str | None, bound: socket.socket, control: Control, member: Availability | None = None
) -> Callable[[], None]:
    """Answers requests at a socket that `bind` has made. Returns the function that stops it; the file stays.

    Without a `token` of their own operators have that of hosts. `member` is for one of several services.
    """

    serving: dict[asyncio.StreamWriter, None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(serving) >= _MOST_REQUESTS:
            next(iter(serving)).transport.abort()
        serving[writer] = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                line = await reader.readline()
                parts = await _answer(server, control, member, token or server.token, line, _who(writer))
                for count, part in enumerate(parts):
                    writer.write(part)
                    if count % _PARTS == 0:
                        await writer.drain()
                        await asyncio.sleep(0)
                await writer.drain()
        except (OSError, TimeoutError, ValueError):  # the client left, was too slow or sent too long a line
            pass
        finally:
            serving.pop(writer, None)
            writer.close()

    # From Python 3.13 on, asyncio would look at the name by which the socket was bound, which is no longer valid.
    options: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
    listener = await asyncio.start_unix_server(serve, sock=bound, limit=_MAX_LINE, **options)

    return listener.close


def bind(path: Path) -> socket.socket:
    """A socket at `path` that only this user may open.

    Raises AdminError when it cannot be made, or another path service listens there.
    """
    bound = socket.socket(socket.AF_UNIX)
    try:
        with short_name(path) as name:
            if path.is_socket():
                try:
                    bound.connect(name)
                except ConnectionRefusedError:
                    path.unlink()  # left behind by a process that was killed
                else:
                    raise AdminError(f"another path service listens at {path}")
            mask = os.umask(0o177)
            try:
                bound.bind(name)
                bound.listen()
            finally:
                os.umask(mask)
    except BaseException as error:
        bound.close()
        if isinstance(error, OSError):
            raise AdminError(f"the operator's socket {path} cannot be made: {error.strerror}") from error
        raise
    return bound


async def _answer(
    server: Server, control: Control, member: Availability | None, token: str, line: bytes, who: str
) -> Iterator[bytes]:
    """The answer to a request in parts. Hosts may be served between two of them."""
    try:
        request = _requests.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return _object({"error": f"this is not a request: {error}"})
    if not hmac.compare_digest(request.token.encode(), token.encode()):
        server.refused_operator(who, "wrong token")
        return _object(
            {"error": "the token is not this path service's: give the --token-file that it was started with"}
        )
    service = server.service
    match request:
        case Status():
            refused = dict(sorted(server.counts.items()))
            connections = len(server.connections)
            said = {"connections": connections, "refused": refused, "control": msgspec.to_builtins(control.status())}
            beside = None if member is None else msgspec.to_builtins(member.state())
            return _object({"now_s": server.now(), **service.status(), **said, "availability": beside})
        case Flows():
            return _object({"now_s": server.now()}, "flows", service.flows(request.most))
        case Paths():
            return _object({}, "links", service.paths())
        case Promote():
            if member is None:
                return _object({"error": "this path service has no other one beside it, so it leads"})
            try:
                member.promote(who)
            except RefusedError as error:
                return _object({"error": str(error)})
            return _object(msgspec.to_builtins(member.state()))
    try:
        return _object(await _controlled(control, request, who))
    except (RefusedError, StoreError) as error:
        server.refused_operator(who, str(error))
        return _object({"error": str(error)})


async def _controlled(control: Control, request: Any, who: str) -> dict[str, Any]:
    """The answer of `control`. Raises as it does."""
    match request:
        case LinkChange():
            return await control.links(request, who)
        case NextHopsRead():
            return await control.next_hops(request, who)
        case WhatIf():
            answer: Any = await control.what_if(request)
        case ListChanges():
            answer = await control.changes(request)
        case Reload():
            answer = await control.reload(who)
        case _:
            answer = await control.wish(request, who)
    said: dict[str, Any] = msgspec.to_builtins(answer)
    return said


def _who(writer: asyncio.StreamWriter) -> str:
    """The user and process at the other end of a connection, as the kernel knows them."""
    known = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(known)
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = "unknown"
    return f"{name} (uid {user}, pid {process})"


def _object(fields: dict[str, Any], name: str = "", entries: Iterable[dict[str, Any]] = ()) -> Iterator[bytes]:
    """One line of JSON in parts: an object with `fields` and, with a `name`, a list of `entries`."""
    text = json.dumps(fields).encode()
    if not name:
        yield text + b"\n"
        return
    yield text[:-1] + (b", " if fields else b"") + json.dumps(name).encode() + b": ["
    for count, entry in enumerate(entries):
        yield (b", " if count else b"") + json.dumps(entry).encode()
    yield b"]}\n"
