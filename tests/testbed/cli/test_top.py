# SPDX-License-Identifier: Apache-2.0
"""`paralet top`: the screen at 80 x 24, its keys, JSON, and the command on a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from hostlib import Device
from hostlib.stats import Survey
from netmodel import OvsHash, leaf_spine
from testbed.cli import main
from testbed.cli.top_screen import TopScreen
from testbed.live.fabric_view import FabricView
from tests.testbed.live.snapshots import device, lane, survey

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["top", *(str(argument) for argument in arguments)])


def screen_of(surveys: list[Survey], spines: int = 2) -> tuple[TopScreen, FabricView]:
    """A screen that shows these surveys one after another and then the last for ever."""
    topology = leaf_spine(leaves=2, spines=spines, hosts_per_leaf=2, host_rate_bps=10**7)
    view = FabricView(topology, OvsHash())
    return TopScreen(lambda: surveys.pop(0) if len(surveys) > 1 else surveys[0], view, 0.01), view


def on(screen: TopScreen, act: Callable[[Pilot[Any]], Any]) -> None:
    async def run() -> None:
        async with screen.run_test(size=(80, 24)) as pilot:
            await act(pilot)

    asyncio.run(run())


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await pilot.pause(0.01)
    pytest.fail("the screen did not get there")


def sent(tx: dict[str, int], time_s: float, moved: int = 0) -> Survey:
    lanes = [lane(n, count, peer=peer, port=50_000 + n + moved) for n, (peer, count) in enumerate(tx.items())]
    return survey(device(*lanes, time_s=time_s, address="10.0.0.1"))


def text_of(screen: TopScreen, name: str) -> str:
    return str(screen.query_one(name, Static).render())


def test_the_screen_shows_links_lanes_and_events() -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, host_rate_bps=10**7)
    peers = [str(topology.host(name).nics[0].address) for name in ("h3", "h4")]
    near = str(topology.host("h1").nics[0].address)
    first = survey(device(lane(0, 0, peer=peers[0]), lane(1, 0, peer=peers[1]), time_s=0.0, address=near))
    second = survey(
        device(lane(0, 10**6, peer=peers[0]), lane(1, 10, peer=peers[1], port=60_000), time_s=1.0, address=near)
    )
    screen, _ = screen_of([first, second])

    async def look(pilot: Pilot[Any]) -> None:
        log, table = screen.query_one("#events", RichLog), screen.query_one("#lanes", DataTable)
        await until(pilot, lambda: bool(log.lines))
        assert "moved from port 50001 to 60000" in log.lines[0].text
        await pilot.press("space")
        await until(pilot, lambda: "paused" in text_of(screen, "#head"))
        assert "1 devices, 2 lanes" in text_of(screen, "#head")
        assert text_of(screen, "#heat").splitlines()[1].startswith("leaf1")
        assert table.row_count == 2
        assert str(table.get_row_at(0)[1]) == peers[0]  # the busiest first
        await pilot.press("s")
        await until(pilot, lambda: "by round trip" in text_of(screen, "#head"))
        await pilot.press("q")

    on(screen, look)
    assert screen.return_code == 0


def test_a_large_fabric_and_many_lanes_fit() -> None:
    lanes = [lane(n, 1000 * n, peer=f"10.0.{n >> 8}.{n & 255}") for n in range(10_000)]
    screen, view = screen_of([survey(device(*lanes))], spines=64)

    async def look(pilot: Pilot[Any]) -> None:
        table = screen.query_one("#lanes", DataTable)
        await until(pilot, lambda: table.row_count > 0)
        assert table.row_count == 200
        assert "10000 lanes" in text_of(screen, "#head")
        assert all(len(line) <= 80 for line in text_of(screen, "#heat").splitlines())
        assert len(view.spines) == 64

    on(screen, look)


def test_json_has_a_line_per_update() -> None:
    with Device("127.0.0.1"):
        done = paralet("--json", "--count", 2, "--interval", 0.1, os.getpid())
    assert done.exit_code == 0, done.output
    assert [sorted(json.loads(line)) for line in done.stdout.splitlines()] == [
        ["advice", "events", "lanes", "links"]
    ] * 2


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--hash", "ovs"], 2, "--hash needs --topology"),
        (["--count", 3], 2, "--count needs --json"),
        (["--interval", 0], 2, "Invalid value for '--interval'"),
        (["--topology", "no-such.yaml"], 2, "no-such.yaml"),
        ([], 1, "standard output is no terminal: use --json, or `paralet stat`"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments: list[object], status: int, sentence: str) -> None:
    done = paralet(*arguments)
    assert done.exit_code == status
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_runs_on_a_terminal_until_q() -> None:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "testbed", "top", "--topology", "experiments/demo.yaml", "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        try:
            seen, asked, end = b"", False, time.monotonic() + TIMEOUT_S
            while time.monotonic() < end and process.poll() is None:
                if select.select([master], [], [], 0.1)[0]:
                    try:
                        seen += os.read(master, 65536)
                    except OSError:  # the other end was closed
                        break
                if not asked and b"No lane sends between leaves." in seen:
                    os.write(master, b"q")
                    asked = True
            assert asked, seen[-2000:]
            assert process.wait(TIMEOUT_S) == 0
        finally:
            if process.poll() is None:
                process.kill()
            os.close(master)
