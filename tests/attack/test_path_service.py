# SPDX-License-Identifier: Apache-2.0
"""The path service under attack: other hosts are answered, memory is bounded, and nothing reaches a terminal raw."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from netmodel.printable import printable
from sdn.path_service import admin_server
from sdn.path_service.control.control import Control
from sdn.path_service.control.writer import Unstored
from sdn.path_service.limits import Limits
from sdn.path_service.messages import Announce, Assign, Release
from sdn.path_service.run import raise_file_limit
from testbed.bench.path_service import beside_faulty
from tests.hostlib.soak import resources
from tests.sdn.path_service.sample import address
from tests.sdn.path_service.test_server import TIMEOUT_S, TOPOLOGY, Host, run, served
from tests.testbed.cli.test_path_service import paralet

FAULTY_LINES = 10_000
FAULTY_LANES = 1024
FAULTY = "127.0.0.2"
MOST_OPEN = 200
"""Open elephants of the faulty host: fewer than are refused, which is little work."""
AT_ONCE = Limits().burst_lines
MOST_OF_A_TURN = Limits().burst_lines // 4
"""Lines of the faulty host that are handled while another waits: without turns all that were read at once."""
BESIDE_S = 10

CONNECTIONS = 9_000
HELD = 60_000
"""Bytes of an unfinished line."""
MOST_HELD = 4 << 20
"""Bytes of all connections without hello (docs/path-service.md)."""

TEXTS = 600
OPERATORS_TOKEN = "only-for-operators-in-tests"
LETTERS = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"[]/\\:'\"{}%",
    "\u202e",
    "\u2028",
    "\u200b",
    "\ufeff",
]
WORDS = ["[/foo]", "[red]", "[link=file:///etc]", "\x1b[2J", "\x1b]0;title\x07", "\x9b31m", ":smile:", "job", "\r\n"]


def part_of(ordered: list[int], part: float) -> int:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


@pytest.mark.timeout(200)
def test_a_host_whose_lines_are_much_work_waits_and_others_do_not(sized: Callable[[int], int]) -> None:
    lines = sized(FAULTY_LINES)
    handled: list[int] = []

    async def body() -> None:
        async with served(Limits(lines_per_s=1e9)) as (server, at):  # a limit of lines does not limit their work
            faulty = await Host.greeted(at, 0, lanes=FAULTY_LANES, source=FAULTY)
            other = await Host.greeted(at, 1)
            counts, peers = server.service.counts, [address(TOPOLOGY, host) for host in (3, 4, 5)]
            reading = asyncio.create_task(faulty.closed())  # it reads what it is told
            said = 0
            while counts["announced"] - len(handled) < lines:
                assert not reading.done(), "the faulty host is still served"
                if said < lines:
                    batch = range(said, said + AT_ONCE)
                    faulty.say(*(Announce(n % MOST_OPEN, peers[n % 3], 1, peer_port=1 + n % 0xFFFF) for n in batch))
                    said += AT_ONCE
                before = counts["announced"]
                number = len(handled) + 1
                other.say(Release(number - 1), Announce(number, address(TOPOLOGY, 2), 1))
                while not isinstance(answer := await other.hear(), Assign) or answer.id != number:
                    pass
                handled.append(counts["announced"] - before - 1)
            reading.cancel()

    run(body)
    handled.sort()
    median, worst = part_of(handled, 0.5), part_of(handled, 0.99)
    print(f"while another host waited, {median} of {lines} lines were handled, at the 99th percentile {worst}")
    assert worst <= MOST_OF_A_TURN
    for measured in beside_faulty(sized(BESIDE_S)):
        print(f"{measured.metric}: {measured.ours:.2f} ms, alone {measured.peer:.2f} ms")


@pytest.mark.timeout(200)
def test_unfinished_lines_of_thousands_of_strangers_hold_little(sized: Callable[[int], int]) -> None:
    room = (raise_file_limit() - 200) // 2  # both ends are in this process
    connections = min(sized(CONNECTIONS), room)
    if connections < sized(CONNECTIONS):
        print(f"{connections} connections: file descriptors allow no more (ulimit -Hn)")
    limits = Limits(hello_s=TIMEOUT_S)  # only what they hold ends them
    crowd: list[socket.socket] = []

    async def body() -> None:
        async with served(limits) as (server, at):
            good = await Host.greeted(at, 0)
            loop = asyncio.get_running_loop()
            before_mib, most_held = resources()[0], 0
            for number in range(connections):
                sock = socket.socket()
                sock.setblocking(False)
                crowd.append(sock)
                await loop.sock_connect(sock, at)
                with suppress(ConnectionError):
                    await loop.sock_sendall(sock, b"x" * HELD)
                if number % 100 == 0:
                    held = sum(each._held_bytes for each in server.connections.values())
                    most_held = max(most_held, held)
                    await good.works()
            grown_mib = resources()[0] - before_mib
            late = await Host.greeted(at, 1)
            await late.works()
            await good.works()
            print(
                f"{connections} connections sent {connections * HELD >> 20} MiB without hello: at most {most_held:,} "
                f"bytes held, the process grew by {grown_mib:.0f} MiB"
            )
            assert most_held <= MOST_HELD

    try:
        run(body)
    finally:
        for sock in crowd:
            sock.close()


def hostile_text(draw: random.Random) -> str:
    return "".join(draw.choice(draw.choice((LETTERS, WORDS))) for _ in range(draw.randint(1, 4)))


@pytest.mark.timeout(200)
def test_hostile_bytes_are_shown_as_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sized: Callable[[int], int]
) -> None:
    caplog.set_level(logging.INFO, "sdn.path_service")
    draw = random.Random(37)
    jobs = [hostile_text(draw) for _ in range(sized(TEXTS))]
    types = [hostile_text(draw) for _ in range(sized(TEXTS))]
    token_file = tmp_path / "token"
    token_file.write_text(OPERATORS_TOKEN)
    token_file.chmod(0o600)

    async def body() -> None:
        limits = Limits(lines_per_s=1e9, log_lines_per_s=1e9)
        async with served(limits) as (server, at):
            close = await admin_server.listen(
                server, OPERATORS_TOKEN, admin_server.bind(tmp_path / "token.sock"), Control(server, Unstored())
            )
            host = await Host.greeted(at, 0)
            for number, job in enumerate(jobs):
                host.say(Announce(number, address(TOPOLOGY, 4), 1, job, peer_port=1 + number))
            while server.service.counts["announced"] < len(jobs):
                await asyncio.sleep(0.001)
            asked = [["flows"], ["flows", "--json"], ["status"]]
            table, as_json, status = [
                await asyncio.to_thread(paralet, *words, "--token-file", token_file) for words in asked
            ]
            for said in types:
                stranger = await Host.to(at)
                stranger.say(json.dumps({"type": said}).encode() + b"\n")
                assert await stranger.refused() == "message"
            close()
        for done in (table, as_json, status):
            assert done.exit_code == 0, done.output
            assert all(line.isprintable() for line in done.output.split("\n"))
        assert [flow["job"] for flow in json.loads(as_json.stdout)["flows"]] == jobs
        shown = "".join(table.stdout.split())
        assert all("".join(printable(job).split()) in shown for job in jobs if len(job) < 3)

    run(body)
    lines = [record.getMessage() for record in caplog.records if " refused: " in record.getMessage()]
    assert len(lines) == len(types)
    assert all(line.isprintable() for line in lines)
    print(f"{len(jobs)} jobs and {len(types)} types, each in one printable line")
