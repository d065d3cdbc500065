# SPDX-License-Identifier: Apache-2.0
"""The operator's Unix socket of a path service.

Only the service's user and root may open it, and every request must have the token.
`sdn.path_service.admin` has the requests.
"""

import asyncio
import hmac
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sdn.path_service.admin import TIMEOUT_S, AdminError, Flows, LinkChange, Paths, Request, Status, short_name
from sdn.path_service.links import links_named
from sdn.path_service.server import Server

_MAX_LINE = 64 * 1024

_requests = msgspec.json.Decoder(Request)


async def listen(server: Server, token: str, bound: socket.socket) -> Callable[[], None]:
    """Answers requests at a socket that `bind` has made. Returns the function that stops it; the file stays."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(json.dumps(_answer(server, token, await reader.readline())).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):  # the client left, was too slow or sent too long a line
            pass
        finally:
            writer.close()

    listener = await asyncio.start_unix_server(serve, sock=bound, limit=_MAX_LINE)

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


def _answer(server: Server, token: str, line: bytes) -> dict[str, Any]:
    try:
        request = _requests.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return {"error": f"this is not a request: {error}"}
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
