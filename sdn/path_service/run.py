# SPDX-License-Identifier: Apache-2.0
"""The path service's process: listens for hosts and operators until a signal stops it."""

import asyncio
import gc
import resource
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from netmodel import EcmpHash, Topology
from sdn.path_service.admin_server import listen
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.server import Server
from sdn.path_service.service import Options, PathService

_GARBAGE = 50_000  # allocations that start a collection of the youngest generation


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses on which a path service listens."""

    address: str
    port: int
    """The TCP port to listen on; 0 lets the kernel choose."""
    admin: Path
    """The operator's Unix socket."""


def serve(
    topology: Topology,
    options: Options,
    token: str,
    place: Place,
    *,
    ecmp_hash: EcmpHash | None = None,
    event_log: Path | None = None,
    limits: Limits | None = None,
    ready: Callable[[str, int], None] = lambda address, port: None,
) -> None:
    """Serves until SIGINT or SIGTERM. Calls `ready` with the address and port when hosts can connect.

    Raises OSError or AdminError when it cannot listen or write the event log, and ValueError for a topology that is not
    a two-level leaf-spine.
    """
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(topology, options, token, place, ecmp_hash, event_log, limits, ready))


def raise_file_limit() -> int:
    """Raises the soft limit of file descriptors to the hard limit. Returns the new limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


async def _serve(
    topology: Topology,
    options: Options,
    token: str,
    place: Place,
    ecmp_hash: EcmpHash | None,
    event_log: Path | None,
    limits: Limits | None,
    ready: Callable[[str, int], None],
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with ExitStack() as files:
        journal = files.enter_context(Journal(event_log, topology, options)) if event_log else None
        server = Server(PathService(topology, options, ecmp_hash), token, limits=limits, journal=journal)
        async with AsyncExitStack() as doors:
            doors.push_async_callback(server.close)
            at = await server.start(place.address, place.port)
            doors.push_async_callback(await listen(server, token, place.admin))
            # Short-lived objects are in no cycles, so collections free nothing, and a full one would delay answers.
            gc.freeze()
            gc.set_threshold(_GARBAGE, 20, 100)
            ready(*at)
            await stop.wait()
