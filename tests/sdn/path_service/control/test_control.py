# SPDX-License-Identifier: Apache-2.0
"""What operators' requests do, over the service's own sockets: changes that are told before, kept, and undone."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sdn.path_service import admin, admin_server
from sdn.path_service.admin import AdminError, Drain, LinkChange
from sdn.path_service.control import control as control_module
from sdn.path_service.control.book import Draft, Edit, Entry
from sdn.path_service.control.client import Operator
from sdn.path_service.control.control import Control
from sdn.path_service.control.files import Files
from sdn.path_service.control.schema import operator_schema
from sdn.path_service.control.store import Store
from sdn.path_service.control.writer import Unstored, Writer, Written
from sdn.path_service.links import links_named
from sdn.path_service.messages import Announce
from sdn.path_service.server import Server
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import TOKEN, address
from tests.sdn.path_service.test_constraints import load
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, served

ALL = range(len(TOPOLOGY.hosts))


class Running:
    """A path service with all hosts sending to all others, and its operator."""

    def __init__(self, server: Server, operator: Operator, written: Written, clock: list[float]) -> None:
        self.server = server
        self.operator = operator
        self.written = written
        self.clock = clock

    async def do(self, method: str, *arguments: Any, **more: Any) -> Any:
        """Asks the service by a method of `Operator`."""
        return await asyncio.to_thread(getattr(self.operator, method), *arguments, **more)

    def path(self, host: int, peer: int) -> list[str]:
        flows = self.server.service.flows(1000)
        ends = address(TOPOLOGY, host), address(TOPOLOGY, peer)
        return next(flow["path"] for flow in flows if (flow["device"], flow["peer"]) == ends)


@asynccontextmanager
async def running(tmp_path: Path, state: Path | None = None) -> AsyncIterator[Running]:
    token = tmp_path / "token"
    token.write_text(TOKEN.replace(" ", "-"))
    token.chmod(0o600)
    written = Unstored() if state is None else Writer(Store(state))
    clock = [1000.0]
    async with served() as (server, at):
        control = Control(server, written, lambda: clock[0])
        ends = asyncio.create_task(control.run())
        close = await admin_server.listen(
            server, TOKEN.replace(" ", "-"), admin_server.bind(admin.admin_socket(token)), control
        )
        for host in ALL:
            greeted = await Host.greeted(at, host)
            greeted.say(
                *(Announce(peer, address(TOPOLOGY, peer), 1, f"job {host % 2}") for peer in ALL if peer != host)
            )
        while server.service.status()["commodities"] < len(ALL) * (len(ALL) - 1):
            await asyncio.sleep(0.001)
        try:
            yield Running(server, Operator(token), written, clock)
        finally:
            ends.cancel()
            close()
            if isinstance(written, Writer):
                written.close()
            admin.admin_socket(token).unlink()


def run(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())  # type: ignore[arg-type]


def test_a_drain_is_told_done_kept_and_undone(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def first() -> None:
        async with running(tmp_path, state) as at:
            service = at.server.service
            assert load(service, "spine2") > 0
            would = (await at.do("drain", "spine2", dry_run=True)).effects
            assert (service.status()["drained_links"], would) == ([], await at.do("what_if", ["spine2"]))
            assert would.moved == len(would.moves) > 0
            assert would.worst_after.elephants > would.worst_before.elephants
            jobs = (await at.do("what_if", ["spine2", "spine3"])).jobs
            assert [(job.job, job.slow_down > 1) for job in jobs] == [("job 0", True), ("job 1", True)]
            done = await at.do("drain", "spine2")
            assert (done.change.number, done.change.what, done.effects) == (1, "drain spine2", would)
            assert f"pid {socket_pid()}" in done.change.who
            assert load(service, "spine2") == 0
            (drain,) = (await at.do("control")).drains
            assert (drain.what, drain.links, drain.elephants, drain.empty) == ("spine2", 3, 0, True)
            assert (await at.do("drain", "spine2")).change is None, "it holds already"

    async def second() -> None:
        async with running(tmp_path, state) as at:
            service = at.server.service
            assert load(service, "spine2") == 0, "it survives the process"
            assert (await at.do("control")).generation == 2
            with pytest.raises(AdminError, match="spine3 is not drained; spine2 is"):
                await at.do("undrain", "spine3")
            undone = await at.do("undo", 1)
            assert undone.change.what == "undo of change 1: drain spine2"
            assert service.status()["drained_links"] == []
            with pytest.raises(AdminError, match="undo of change 1 is not possible: the drain of spine2"):
                await at.do("undo", 1)
            await at.do("undo", 2)
            assert load(service, "spine2") == 0
            found = await at.do("changes")
            assert [(change.number, change.generation) for change in found.changes] == [(1, 1), (2, 2), (3, 2)]
            assert (await at.do("changes", after=1, most=1)).changes == [found.changes[1]]
            with pytest.raises(AdminError, match="there is no change 9"):
                await at.do("undo", 9)

    run(first)
    run(second)


def test_a_pin_and_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path) as at:
            await at.do("pin", "h1", address(TOPOLOGY, 5), ["spine3"])
            assert at.path(0, 5)[2].startswith("spine3:")
            await at.do("pin", "h1", address(TOPOLOGY, 5), ["leaf1:3"])
            assert at.path(0, 5)[1] == "leaf1:3"
            (pin,) = (await at.do("control")).pins
            assert (pin.src, pin.dst, pin.via) == ("h1", address(TOPOLOGY, 5), ["leaf1:3"])
            for wrong, sentence in (
                (("h1", "h9", ["spine3"]), "'h9' is neither a host"),
                (("h1", "h1", ["spine3"]), "two different hosts"),
                (("h1", "h2", ["spine3"]), "no path from h1 to h2 has spine3"),
                (("h1", "h5", ["spine3", "spine2"]), "no path from h1 to h5 has spine3 and spine2"),
                (("h1", "h5", ["core"]), "'core' is not a link between two switches"),
            ):
                with pytest.raises(AdminError, match=sentence):
                    await at.do("pin", *wrong)
            await at.do("unpin", "h1", address(TOPOLOGY, 5))
            assert (await at.do("control")).pins == []

    run(body)


def test_pins_to_paths_that_are_drained_are_told(tmp_path: Path) -> None:
    idle = ["the pin from h1 to h5: all paths with spine3 are dead or drained, so others are taken until one is back"]

    async def body() -> None:
        async with running(tmp_path) as at:
            assert (await at.do("pin", "h1", "h5", ["spine3"], dry_run=True)).without_effect == []
            await at.do("drain", "leaf1-spine3")
            before = at.path(0, 4)
            assert (await at.do("pin", "h1", "h5", ["spine3"])).without_effect == idle
            assert at.path(0, 4) == before
            again = await at.do("pin", "h1", "h5", ["spine3"])
            assert (again.change, again.without_effect) == (None, idle)
            assert (await at.do("drain", "leaf2-spine2")).without_effect == [], "it had no effect before either"
            assert (await at.do("undrain", "leaf1-spine3")).without_effect == []
            assert at.path(0, 4)[2].startswith("spine3:")
            assert (await at.do("drain", "leaf1-spine3")).without_effect == idle

    run(body)


def test_a_fault_of_the_service_is_not_taken_for_a_mistake_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a fault")

    async def body() -> None:
        async with served() as (server, _):
            control = Control(server, Unstored())
            monkeypatch.setattr(PathService, "preview", broken)
            with pytest.raises(KeyError, match="a fault"):
                await control.wish(Drain(TOKEN, "spine2"), "a test")

    run(body)


def test_what_has_a_time_ends_by_itself(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path) as at:
            await at.do("drain", "spine2", for_s=60)
            await at.do("pin", "h1", "h5", ["spine3"], for_s=600)
            at.clock[0] += 61
            while (await at.do("control")).drains:
                await asyncio.sleep(0.05)
            assert at.server.service.status()["drained_links"] == []
            assert len((await at.do("control")).pins) == 1
            last = (await at.do("changes")).changes[-1]
            assert (last.who, last.what) == ("expiry", "expiry of drain spine2")

    run(body)


def test_dead_links_survive_and_are_told_at_once_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    full = [False]
    write = Store.write

    def refused(self: Store, drafts: Any) -> Any:
        if full[0]:
            raise admin_server.StoreError("the disk is full")
        return write(self, drafts)

    monkeypatch.setattr(Store, "write", refused)

    async def first() -> None:
        async with running(tmp_path, state) as at:
            assert (await at.do("link", "leaf1-spine2"))["change"] == 1
            full[0] = True
            with pytest.raises(AdminError, match="the disk is full"):
                await at.do("link", "leaf1-spine3")
            assert len(at.server.service.status()["dead_links"]) == 2, "hosts do not wait for the disk"
            with pytest.raises(AdminError, match="the disk is full"):
                await at.do("drain", "spine2")
            assert at.server.service.status()["drained_links"] == []
            assert (await at.do("control")).unwritten == 1
            full[0] = False
            while (await at.do("control")).unwritten:
                await asyncio.sleep(0.05)
            many = await asyncio.gather(*(at.do("link", f"leaf{leaf}-spine1") for leaf in (2, 3)))
            assert sorted(one["change"] for one in many) == [3, 4]
            assert (await at.do("link", "leaf2-spine1", up=True))["change"] == 5

    async def second() -> None:
        async with running(tmp_path, state) as at:
            assert len(at.server.service.status()["dead_links"]) == 3

    run(first)
    run(second)


def test_a_link_that_dies_during_a_reload_is_dead_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    building, dead = threading.Event(), threading.Event()

    def build(*arguments: Any) -> PathService:
        building.set()
        assert dead.wait(TIMEOUT_S)
        return PathService(*arguments)

    monkeypatch.setattr(control_module, "PathService", build)

    async def body() -> None:
        async with served() as (server, _):
            files = Files(TOPOLOGY, None, None, TOKEN, Options("greedy"), server.channels)
            control = Control(server, Unstored(), reread=lambda: files)
            reload = asyncio.create_task(control.reload("a test"))
            try:
                assert await asyncio.to_thread(building.wait, TIMEOUT_S)
                await control.links(LinkChange(TOKEN, "leaf1-spine2"), "a test")
            finally:
                dead.set()
            await reload
            assert server.service.options.planner == "greedy"
            assert server.service.dead == {*links_named(TOPOLOGY, "leaf1-spine2")}

    run(body)


def test_the_schema_file_matches_the_code_and_requests() -> None:
    stored = json.loads(Path(admin.__file__).with_name("operator_schema.json").read_text())
    assert stored == json.loads(json.dumps(operator_schema()))
    parts = [stored["$defs"][one["$ref"].split("/")[-1]] for one in stored["$defs"]["Request"]["anyOf"]]
    kinds = {kind for part in parts for kind in part["properties"]["type"]["enum"]}
    assert kinds >= {"drain", "undrain", "pin", "unpin", "undo", "what_if", "changes", "link", "status"}


def test_entries_that_a_topology_lacks_are_told_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def first() -> None:
        async with running(tmp_path, state) as at:
            await at.do("drain", "spine3")

    run(first)
    store = Store(state)
    store.write([Draft("me", "drain spine9", (Edit("drain", "spine9", None, Entry()),))])
    store.close()

    async def second() -> None:
        async with running(tmp_path, state) as at:
            control = await at.do("control")
            assert len(control.without_effect) == 1
            assert "'spine9' is not a link between two switches" in control.without_effect[0]
            assert load(at.server.service, "spine3") == 0

    run(second)


def socket_pid() -> int:
    """The process that asks, as the kernel says it."""
    here, there = socket.socketpair()
    with here, there:
        return int(struct.unpack("3i", here.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
