# SPDX-License-Identifier: Apache-2.0
"""The event log of a path service on real sockets, and its replay."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netmodel import PortRef, forwarding
from sdn.path_service import server as server_module
from sdn.path_service.constraints import Constraints
from sdn.path_service.journal import Journal
from sdn.path_service.log_file import LogError, LogFile
from sdn.path_service.messages import (
    Announce,
    Assign,
    Ping,
    Pong,
    ServiceMessage,
    to_line,
)
from sdn.path_service.next_hops import listed
from sdn.path_service.replay import replay
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import TOKEN, address, fabric, hello
from tests.sdn.path_service.test_server import TOPOLOGY, Host, run, served


def test_a_replay_gives_the_same_messages(tmp_path: Path) -> None:
    sent: list[tuple[int, ServiceMessage]] = []
    options = Options(forecast=True, rates=True)

    async def body(journal: Journal) -> None:
        async with served(journal=journal, options=options) as (server, at):
            deliver = server.deliver

            def heard(sends: Any) -> None:
                sent.extend(sends)
                deliver(sends)

            server.deliver = heard  # type: ignore[method-assign]
            hosts = [await Host.greeted(at, host) for host in range(6)]
            for turn in range(1, 13):
                for number, host in enumerate(hosts):
                    peer = address(TOPOLOGY, (number + 2 + turn % 3) % 6)
                    host.say(Announce(turn, peer, 5, "bert", 0.05), b' { "type" : "release", "id":%d }\n' % (turn - 1))
                if turn == 6:
                    dead, drained = (frozenset([TOPOLOGY.link_at(PortRef("leaf1", port))]) for port in (3, 4))
                    pin = {(address(TOPOLOGY, 0), address(TOPOLOGY, 5)): (drained, dead)}
                    server.constrain(Constraints(dead, drained, pin))
                    hosts.pop().writer.close()
                if turn == 9:
                    server.next_hops(listed({
                        switch: {to: tuple(reversed(ports)) for to, ports in own.items()}
                        for switch, own in forwarding(TOPOLOGY).groups.items()
                    }))  # fmt: skip
                await asyncio.sleep(0.03)
            await hosts[0].hear()

    path = tmp_path / "events.jsonl"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, options)
        run(lambda: body(journal))
    again = [send for replayed in replay([path]) for send in replayed.sends]
    assert len(sent) > 60
    assert again == sent
    assert TOKEN not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reload_keeps_the_next_hops_that_were_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read = {
        switch: {to: tuple(reversed(ports)) for to, ports in own.items()}
        for switch, own in forwarding(TOPOLOGY).groups.items()
    }
    dead = Constraints(frozenset([TOPOLOGY.link_at(PortRef("leaf1", 3))]))
    sent: list[tuple[int, ServiceMessage]] = []

    async def told(host: Host) -> dict[str, list[int]]:
        """The ports towards each peer, as far as the host was told since the last time."""
        host.say(Ping(1))
        ports: dict[str, list[int]] = {}
        while (message := await host.hear()) != Pong(1):
            assert isinstance(message, Assign)
            ports[message.peer] = message.ports
        return ports

    async def body(journal: Journal) -> None:
        async with served(journal=journal) as (server, at):
            deliver = server.deliver

            def heard(sends: Any) -> None:
                sent.extend(sends)
                deliver(sends)

            server.deliver = heard  # type: ignore[method-assign]
            host = await Host.greeted(at, 0)
            server.next_hops(listed(read))
            server.constrain(dead, {"what": "a link has died since"})
            host.say(*(Announce(peer, address(TOPOLOGY, peer), 1) for peer in range(2, 6)))
            before = await told(host)
            assert len(before) == 4
            server.succeed(PathService(TOPOLOGY, Options("greedy")), dead, None, "me")
            assert await told(host) == {}
            assert server.service.dead == dead.dead
            host.say(*(Announce(10 + peer, address(TOPOLOGY, peer), 1) for peer in range(2, 6)))
            assert await told(host) == before
            assert "read them anew" not in caplog.text
            for planner in ("optimal", "greedy"):
                server.succeed(PathService(fabric(spines=4), Options(planner)), Constraints(), None, "me")
            assert caplog.text.count("read them anew") == 1
            await told(host)

    path = tmp_path / "events.jsonl"
    with LogFile(path) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, Options())
        run(lambda: body(journal))
    replayed = [send for each in replay([path]) for send in each.sends]
    heard = [[send for send in sends if not isinstance(send[1], Pong)] for sends in (replayed, sent)]
    assert heard[0] == heard[1], "and native code has sent pongs by itself"


def test_preparations_without_a_step_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another program takes the processor between two looks at the clock."""
    logged: list[bytes] = []
    clock = itertools.count()
    monkeypatch.setattr(server_module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))

    async def body() -> None:
        async with served(journal=Journal(SimpleNamespace(add=logged.append))) as (_, at):
            host = await Host.greeted(at, 0)
            for _ in range(5):
                await host.works()
                await asyncio.sleep(0.02)

    run(body)
    assert len(logged) > 5
    assert not [line for line in logged if b'"prepared":0' in line]


def test_a_replay_takes_only_ticks_for_ticks(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    lines: list[bytes] = []
    journal = Journal(SimpleNamespace(add=lines.append))
    journal.head(TOPOLOGY, Options(rates=True))
    journal.hello(1.0, 1, hello(TOPOLOGY, 0), "10.0.0.1:7")
    journal.said(2.0, 1, [to_line(Announce(1, address(TOPOLOGY, 5), 5)).strip()])
    journal.prepared(3.0, 0)
    journal.refused(3.5, "me", "no")
    journal.tick(4.0)
    path.write_bytes(b"".join(lines))
    counts = [len(replayed.sends) for replayed in replay([path])]
    assert counts == [0, 1, 0, 0, 1]  # the tick sends the elephant its rate
    path.write_bytes(lines[0] + b'{"at":"","t":1.0}\n')
    with pytest.raises(LogError, match=r":2: this is no event"):
        list(replay([path]))


def test_a_log_that_is_wrong_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "events.jsonl", tmp_path / "other"
    with LogFile(path, max_waiting_bytes=10_000) as lines:
        journal = Journal(lines)
        journal.head(TOPOLOGY, Options())
        journal.said(1.0, 1, [b'{"type":"ping"}'] * 5000)
        assert lines.dropped == 1
        journal.tick(2.0)
    with pytest.raises(LogError, match=r":2: 1 events are missing here"):
        list(replay([path]))
    whole = path.read_text().splitlines()
    for text, sentence in (
        ("{}", "missing required field `at`"),
        (whole[0].replace('"log":4', '"log":3'), "not a log of version 4"),
        (whole[2], "begins in the middle: give the parts before this one too"),
        (f'{whole[0]}\n{{"at":"","t":1,"sent":3,"sum":7}}', "the service decided otherwise"),
    ):
        other.write_text(text + "\n")
        with pytest.raises(LogError, match=sentence):
            list(replay([other]))
