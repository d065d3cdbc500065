# SPDX-License-Identifier: Apache-2.0
"""The door for the operator: a Unix socket that only the service's user and root may open, and that takes the token.

One JSON object a line each way, as on the hosts' door: `{"token": .., "type": "status"}` and so on; the answer is an
object, `{"error": "one sentence"}` when something is wrong. Being a file, it is reached from any network namespace.
"""

import asyncio
import hmac
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from sdn.path_service.links import links_named
from sdn.path_service.server import Server

MOST_FLOWS = 100_000
_MAX_LINE = 64 * 1024
_TIMEOUT_S = 30.0


class Status(Struct, tag="status", tag_field="type", frozen=True):
    """How it is: `PathService.status` and what was refused."""

    token: str


class Flows(Struct, tag="flows", tag_field="type", frozen=True):
    """`PathService.flows`."""

    token: str
    most: Annotated[int, Meta(ge=1, le=MOST_FLOWS)] = 1000


class Paths(Struct, tag="paths", tag_field="type", frozen=True):
    """`PathService.paths`."""

    token: str


class LinkChange(Struct, tag="link", tag_field="type", frozen=True):
    """Links have gone down, or come back; `links_named` tells how to name them."""

    token: str
    link: Annotated[str, Meta(max_length=256)]
    up: bool = False


Request: TypeAlias = Status | Flows | Paths | LinkChange


class AdminError(Exception):
    """The service does not answer, or says why it does not do as asked: one sentence."""


async def listen(server: Server, token: str, path: Path) -> Callable[[], Awaitable[None]]:
    """Opens the door; what closes it. Raises OSError when that cannot be, AdminError when somebody listens there."""
    door = _bound(path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(json.dumps(_answer(server, token, await reader.readline())).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):  # it went away, or sent too long a line
            pass
        finally:
            writer.close()

    listener = await asyncio.start_unix_server(serve, sock=door, limit=_MAX_LINE)

    async def close() -> None:
        listener.close()
        path.unlink(missing_ok=True)

    return close


def ask(path: Path, request: Request) -> dict[str, Any]:
    """Puts one request to the service whose door is at `path`. Raises AdminError."""
    try:
        with socket.socket(socket.AF_UNIX) as door, _short(path) as name:
            door.settimeout(_TIMEOUT_S)
            door.connect(name)
            door.sendall(msgspec.json.encode(request) + b"\n")
            with door.makefile("rb") as answer:
                line = answer.readline()
        said: dict[str, Any] = json.loads(line)
    except (FileNotFoundError, ConnectionRefusedError):
        raise AdminError(f"no path service listens at {path}: start one with `paralet path-service run`") from None
    except (OSError, ValueError) as error:
        raise AdminError(f"the path service at {path} does not answer: {error}") from error
    if "error" in said:
        raise AdminError(said["error"])
    return said


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A short name of `path` while this lasts: a socket's has 107 bytes (unix(7)), a run's folder often more."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _bound(path: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as name:
            if path.is_socket():
                try:
                    door.connect(name)
                except OSError:
                    path.unlink()  # left behind by one that was killed
                else:
                    raise AdminError(f"another path service listens at {path}")
            mask = os.umask(0o177)
            try:
                door.bind(name)
            finally:
                os.umask(mask)
    except BaseException:
        door.close()
        raise
    return door


_requests = msgspec.json.Decoder(Request)


def _answer(server: Server, token: str, line: bytes) -> dict[str, Any]:
    try:
        request = _requests.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return {"error": f"this is no request: {error}"}
    if not hmac.compare_digest(request.token.encode(), token.encode()):
        return {"error": "the token is not this path service's: give the --token-file that it was started with"}
    service = server.service
    match request:
        case Status():
            refused = dict(sorted(server.counts.items()))
            return {**service.status(), "connections": len(server.connections), "refused": refused}
        case Flows():
            return {"flows": service.flows(request.most), "now_s": server.now()}
        case Paths():
            return {"links": service.paths()}
    return _change(server, request)


def _change(server: Server, request: LinkChange) -> dict[str, Any]:
    try:
        links = links_named(server.service.topology, request.link)
        server.links(links, request.up)
    except KeyError as error:
        return {"error": error.args[0]}
    return {"links": [f"{link.a} {link.b}" for link in links], "up": request.up}
