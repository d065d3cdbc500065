# SPDX-License-Identifier: Apache-2.0
"""The path service's process: listens for hosts and operators until a signal stops it."""

import asyncio
import gc
import resource
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import uvloop

from netmodel import EcmpHash, Topology
from sdn.measured.router_names import RouterNames
from sdn.path_service import admin_server
from sdn.path_service.availability.member import Beside, Member
from sdn.path_service.availability.shared import Shared
from sdn.path_service.availability.state import Availability
from sdn.path_service.channels import Channels
from sdn.path_service.consensus.member import Elected
from sdn.path_service.consensus.member import Shared as SharedByAll
from sdn.path_service.consensus.store import ConsensusStore
from sdn.path_service.control.control import Control, RefusedError
from sdn.path_service.control.files import Reread
from sdn.path_service.control.store import Store
from sdn.path_service.control.writer import Unstored, Writer, Written
from sdn.path_service.journal import Journal
from sdn.path_service.limits import Limits
from sdn.path_service.log_file import LogFile
from sdn.path_service.observation import Figures, figures
from sdn.path_service.server import Server, bind
from sdn.path_service.service import Options, PathService

_LOOK_S = 10.0
"""Seconds that figures may take."""
_GARBAGE = 50_000  # allocations that start a collection of the youngest generation


Look: TypeAlias = Callable[[], Figures]
"""The figures of the service now, for other threads than its own. Raises TimeoutError while it has no time for them."""


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses on which a path service listens."""

    address: str
    port: int
    """The TCP port to listen on; 0 lets the kernel choose."""
    admin: Path
    """The operator's Unix socket."""


class _Member(Availability, Protocol):
    """One of the services that share hosts."""

    async def run(self) -> None:
        """Looks after the others, until it is cancelled."""
        ...


_MakeMember: TypeAlias = Callable[[Server, Control], _Member]


def serve(
    topology: Topology,
    options: Options,
    token: str,
    place: Place,
    *,
    ecmp_hash: EcmpHash | None = None,
    routers: RouterNames | None = None,
    hash_name: str | None = None,
    event_log: Path | None = None,
    state: Path | None = None,
    beside: Beside | None = None,
    consensus: ConsensusStore | None = None,
    reread: Reread | None = None,
    channels: Channels | None = None,
    limits: Limits | None = None,
    export: Callable[[Look], None] = lambda look: None,
    ready: Callable[[str, int], None] = lambda address, port: None,
) -> int:
    """Serves until SIGINT or SIGTERM. SIGHUP reopens the log, and has `reread` read the files anew.

    Calls `ready` with the address and port when hosts can connect, and before that `export`, which may keep what it
    gets and call it from other threads. `state` is the file of what operators ask for; without one that is
    forgotten with the process. `beside` is another service with which it shares hosts, which needs a `state`.
    `consensus` is where one of any number of services is elected, and has their state instead. `hash_name` is for
    the log. Without `channels` lines travel in the clear. Returns the number of events that the log lacks. Raises
    OSError when the address is not free, AdminError for the operator's socket, StoreError for the state, LogError
    for the log, and ValueError for a topology that `PathService` refuses.
    """
    raise_file_limit()
    service = PathService(topology, options, ecmp_hash, routers)
    with ExitStack() as opened:
        # These come last: a service that cannot listen must not touch the files of one that runs.
        listener = opened.enter_context(bind(place.address, place.port))
        admin_socket = opened.enter_context(admin_server.bind(place.admin))
        opened.callback(place.admin.unlink, missing_ok=True)
        written: Written = Unstored()
        make_member: _MakeMember | None = None
        if consensus is not None:
            written = shared_by_all = SharedByAll(consensus)
            make_member = lambda server, control: Elected(server, control, shared_by_all, consensus)  # noqa: E731
        elif state is not None:
            writer = Writer(Store(state, begins=beside is None))
            opened.callback(writer.close)
            written = writer
            if beside is not None:
                written = shared = Shared(writer)
                name = secrets.token_hex(8)
                make_member = lambda server, control: Member(server, control, shared, beside, name)  # noqa: E731
        lines = opened.enter_context(LogFile(event_log)) if event_log else None
        journal = Journal(lines) if lines else None
        if journal is not None:
            journal.head(topology, options, routers, hash_name, written.generation)
        generation = written.generation
        server = Server(service, token, limits=limits, journal=journal, generation=generation, channels=channels)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            control = partial(Control, server, written, reread=reread, hash_name=hash_name)
            runner.run(_serve(server, control, make_member, listener, admin_socket, export, ready, lines))
    return lines.dropped if lines else 0


def raise_file_limit() -> int:
    """Raises the soft limit of file descriptors to the hard limit. Returns the new limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


async def _serve(
    server: Server,
    make_control: Callable[[], Control],
    make_member: _MakeMember | None,
    listener: socket.socket,
    admin_socket: socket.socket,
    export: Callable[[Look], None],
    ready: Callable[[str, int], None],
    lines: LogFile | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    reloads: set[asyncio.Task[None]] = set()  # a task lives as long as something refers to it
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(server.close)
        at = await server.start(listener)
        control = make_control()
        member = None if make_member is None else make_member(server, control)
        stays = [] if member is None else [asyncio.create_task(member.run())]
        closing.push_async_callback(_ended, *stays)

        def hang_up() -> None:
            task = loop.create_task(_hang_up(server, control, lines))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, hang_up)
        ends = asyncio.create_task(control.run())
        closing.callback(ends.cancel)
        closing.callback(await admin_server.listen(server, None, admin_socket, control, member))
        # Short-lived objects are in no cycles, so collections free nothing, and a full one would delay answers.
        gc.freeze()
        gc.set_threshold(_GARBAGE, 20, 100)
        export(lambda: asyncio.run_coroutine_threadsafe(figures(server, member), loop).result(_LOOK_S))
        ready(*at)
        await _stopped(stop, ends, *stays)


async def _stopped(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Waits for a signal. Raises what ends one of the tasks: without it the service would only seem to work."""
    waits = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait((waits, *tasks), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _ended(*tasks: asyncio.Task[None]) -> None:
    """Cancels tasks, and waits until they have put in order what they leave."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _hang_up(server: Server, control: Control, lines: LogFile | None) -> None:
    """What SIGHUP does."""
    if lines is not None:
        lines.reopen()
    try:
        await control.reload("SIGHUP")
    except RefusedError as error:
        server.refused_operator("SIGHUP", str(error))
        server.tell(f"reload refused: {error}")
