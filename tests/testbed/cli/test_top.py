# SPDX-License-Identifier: Apache-2.0
"""`paralet top`: the screen at 80 x 24, its keys, JSON, and the command on a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from cProfile import Profile
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from hostlib import Device
from hostlib.stats import Survey
from netmodel import OvsHash, leaf_spine
from paralet_pin.check import Report
from testbed.cli import main
from testbed.cli.top_screen import TopScreen
from testbed.live.fabric_view import FabricView
from testbed.live.link_counters import LinkCounters, PortRates
from testbed.live.moments import Moments
from testbed.live.nccl_operations import states
from tests.testbed.live.nccl_ranks import hanging_ranks
from tests.testbed.live.pinned_flows import FLOW, report
from tests.testbed.live.snapshots import device, lane, survey

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lowers its own priority, which must not last for the tests after it."""
    monkeypatch.setattr("testbed.cli.top.os.nice", lambda _: 0)


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
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the screen did not get there"
        await pilot.pause(0.01)


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
        near_end, far_end = map(str, table.get_row_at(0)[:2])  # the busiest first, by hosts' names
        assert (near_end.split()[0], far_end) == ("h1", "h3")
        assert [column.label.plain for column in table.ordered_columns[5:7]] == ["sent Mbit/s", "received"]
        await pilot.press("s")
        await until(pilot, lambda: "by round trip" in text_of(screen, "#head"))
        await pilot.press("q")

    on(screen, look)
    assert screen.return_code == 0


def test_pinned_connections_follow_the_lanes() -> None:
    looks = iter([[report(FLOW)], [report(replace(FLOW, bytes=10**9, timeouts=2))]])
    latest = [report(FLOW)]

    def pinned() -> list[Report]:
        nonlocal latest
        latest = next(looks, latest)
        return latest

    screen = TopScreen(lambda: sent({"10.0.0.2": 0}, 1.0), None, 0.02, pinned=pinned)

    async def look(pilot: Pilot[Any]) -> None:
        table = screen.query_one("#lanes", DataTable)
        await until(pilot, lambda: table.row_count == 2 and str(table.get_row_at(1)[9]) == "hangs")
        assert "1 pinned connections" in text_of(screen, "#head")
        assert [str(cell) for cell in table.get_row_at(1)[:4]] == ["10.0.0.1", "10.0.0.2:5", "tcp", "50001"]

    on(screen, look)


def everywhere(lanes: int, second: int) -> Survey:
    """A fabric of 64 x 64 on which this many lanes send, 40 for each device; those of the 20th leaf most."""
    hosts = [f"10.0.{leaf}.{host}" for leaf in range(64) for host in (1, 2, 3, 4)]
    return survey(
        *(
            device(
                *(
                    lane(
                        n,
                        (1 + 9 * (19 * 4 <= number < 20 * 4)) * 1000 * second,
                        peer=hosts[(number + 7 * (n // 8) + 4) % 256],
                        qpn=100 * number + n,
                        port=50_000 + number + n,
                    )
                    for n in range(40)
                ),
                time_s=float(second),
                address=hosts[number],
            )
            for number in range(lanes // 40)
        )
    )


def large_view() -> FabricView:
    return FabricView(leaf_spine(leaves=64, spines=64, hosts_per_leaf=4, host_rate_bps=10**7), OvsHash())


def test_a_large_fabric_and_many_lanes_are_legible() -> None:
    surveys = [everywhere(10_000, second) for second in (0, 1)]
    screen = TopScreen(lambda: surveys.pop(0) if len(surveys) > 1 else surveys[0], large_view(), 2.0)

    async def look(pilot: Pilot[Any]) -> None:
        table = screen.query_one("#lanes", DataTable)
        await until(pilot, lambda: len(surveys) == 1 and "Busiest: " in text_of(screen, "#advice"))
        assert table.row_count == 200
        assert "250 devices, 10000 lanes" in text_of(screen, "#head")
        heat = text_of(screen, "#heat").splitlines()
        assert len(heat) == 12  # as many as are seen at once
        assert all(len(line) <= 80 for line in heat)
        assert any(line.startswith("leaf20 ") for line in heat)
        assert heat[-1] == "and 54 leaves whose links are less busy"
        await pilot.press("q")

    on(screen, look)


def test_the_work_of_an_update_grows_no_faster_than_the_lanes() -> None:
    """Calls are counted, not seconds: ten times the lanes, at most about ten times the calls."""

    def calls(lanes: int) -> int:
        moments = Moments(large_view())
        for second in (0, 1):
            moments.take(everywhere(lanes, second), float(second))
        counted = Profile(builtins=True)
        third = everywhere(lanes, 2)
        counted.enable()
        moments.take(third, 2.0)
        counted.disable()
        return sum(entry.callcount for entry in counted.getstats())

    few, many = calls(1000), calls(10_000)
    assert many <= 12 * few
    assert many <= 30 * 10_000


def test_json_has_a_line_per_update() -> None:
    with Device("127.0.0.1"):
        done = paralet("--json", "--count", 2, "--interval", 0.1, os.getpid())
    assert done.exit_code == 0, done.output
    assert [sorted(json.loads(line)) for line in done.stdout.splitlines()] == [
        ["advice", "events", "lanes", "links", "operations", "pinned", "ports", "status", "unmapped"]
    ] * 2


def counted(leaf: int, port: int, octets: int, at_s: int) -> str:
    """A line about bytes that left a port."""
    return f'ifHCOutOctets{{instance="leaf{leaf}",ifName="Ethernet{port}"}} {octets} {at_s}'


def test_counters_of_switches_are_read_from_standard_input(tmp_path: Path) -> None:
    topology = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, host_rate_bps=10**7)
    view = FabricView(topology, OvsHash())
    (port,) = (port for port in view.ports if view.name(view.link(port)) == "leaf1 to spine2")
    file = tmp_path / "topology.yaml"
    file.write_text("leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 10 Mbit/s}\n")
    lines = [counted(1, port.port, 0, 100), "nonsense from a switch", counted(1, port.port, 500_000, 101)]
    done = CliRunner().invoke(
        main,
        ["top", "--json", "--counters", "-", "--topology", str(file), "--interval", "3600"],
        input="\n".join(lines) + "\n",
    )
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    update = json.loads(line)
    assert update["ports"] == [
        {
            "switch": "leaf1",
            "port": f"Ethernet{port.port}",
            "tx_bps": 4e6,
            "rx_bps": None,
            "drops": 0,
            "rate_bps": None,
            "neighbour": "",
            "utilisation": None,
        }
    ]
    assert update["links"] == [{"link": "leaf1 to spine2", "utilisation": 0.4}]
    assert update["advice"] == "Busiest: leaf1 to spine2, 40%, with no lane seen here."
    assert "line 2 of the counters: neither a sample" in done.stderr


def test_the_screen_shows_ports_and_says_which_lines_are_bad() -> None:
    given = LinkCounters()
    for line in (counted(1, 3, 0, 0), counted(1, 3, 1000, 1), 'ifHighSpeed{instance="leaf1",ifName="Ethernet3"} 1'):
        assert given.read(line, 0.0) is None
    wrong = ["line 4 of the counters: not valid JSON"]

    def measured() -> tuple[list[PortRates], list[str]]:
        return given.rates(), [wrong.pop()] if wrong else []

    screen = TopScreen(lambda: Survey((), (), (), ()), None, 0.01, measured)

    async def look(pilot: Pilot[Any]) -> None:
        log, table = screen.query_one("#events", RichLog), screen.query_one("#ports", DataTable)
        await until(pilot, lambda: bool(log.lines) and table.row_count == 1)
        assert "line 4 of the counters: not valid JSON" in log.lines[0].text
        row = [str(cell) for cell in table.get_row_at(0)]
        assert row == ["leaf1", "Ethernet3", "0.0", "-", "▁ 1%", "0"]

    on(screen, look)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--hash", "ovs"], 2, "--hash needs --topology"),
        (["--count", 3], 2, "--count needs --json or --picture"),
        (["--json", "--serve", "127.0.0.1:0"], 2, "give one of --json, --serve and --picture"),
        (["--serve", "9465"], 2, "--serve 9465: write an IPv4 address and a port, as 127.0.0.1:9465"),
        (["--run", "no-such-folder"], 2, "no-such-folder/spec.yaml"),
        (["--run", "x", "--topology", "y"], 2, "--run has a topology: leave out --topology"),
        (["--interval", 0], 2, "Invalid value for '--interval'"),
        (["--topology", "no-such.yaml"], 2, "no-such.yaml"),
        ([], 1, "standard output is not a terminal: use --json, --serve or `paralet stat`"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments: list[object], status: int, sentence: str) -> None:
    done = paralet(*arguments)
    assert done.exit_code == status
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def on_terminal(arguments: list[str], awaited: bytes, key: bytes, stdin: int | None = None) -> int:
    """The exit status of the command on a terminal, where this key is pressed once this was shown."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "testbed", "top", "--interval", "0.1", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color"}

    def own_terminal() -> None:
        os.setsid()
        ioctl(1, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=slave if stdin is None else stdin,
        stdout=slave,
        stderr=slave,
        env=environment,
        preexec_fn=own_terminal,
    ) as process:
        os.close(slave)
        try:
            seen, asked, end = b"", False, time.monotonic() + TIMEOUT_S
            while time.monotonic() < end and process.poll() is None:
                if select.select([master], [], [], 0.1)[0]:
                    try:
                        seen += os.read(master, 65536)
                    except OSError:  # the other end was closed
                        break
                if not asked and awaited in seen:
                    os.write(master, key)
                    asked = True
            assert asked, seen[-2000:]
            return process.wait(TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
            os.close(master)


def test_the_standing_of_a_run_its_events_and_late_operations_are_on_the_screen() -> None:
    statuses = [("1 of 4 runs\necmp  2.90 x ideal", ["event: cut leaf1:5"])]

    def status() -> tuple[str, list[str]]:
        return statuses[0][0], statuses.pop(0)[1] if len(statuses) > 1 else []

    statuses.append(("2 of 4 runs", []))
    seen = survey(device(lane(0)))
    gone = [seen, Survey((), (), (), ())]
    screen = TopScreen(
        lambda: gone.pop(0) if len(gone) > 1 else gone[0],
        None,
        0.01,
        None,
        status,
        lambda _: states(hanging_ranks()),
        lambda pid: pid != 42,
    )

    async def look(pilot: Pilot[Any]) -> None:
        log = screen.query_one("#events", RichLog)
        await until(pilot, lambda: len(log.lines) == 2)
        assert "event: cut leaf1:5" in log.lines[0].text
        assert "process 42 has ended, with 3 connections open at the last look" in log.lines[1].text
        assert text_of(screen, "#status") == "2 of 4 runs"
        operations = text_of(screen, "#operations")
        assert operations.startswith("AllReduce 7 of training (4 ranks): running 4.0 s")
        assert "rank 2, which has not begun it" in operations

    on(screen, look)


def test_a_picture_is_the_screen_and_names_no_address(tmp_path: Path) -> None:
    file = tmp_path / "top.svg"
    with Device("127.0.0.1"):
        topology = ROOT / "experiments/demo.yaml"
        done = paralet("--picture", file, "--count", 2, "--interval", 0.1, "--topology", topology, os.getpid())
    assert done.exit_code == 0, done.output
    picture = file.read_text()
    assert "<svg" in picture
    assert "leaf4" in picture
    assert "No&#160;lane&#160;sends" in picture
    assert set(re.findall(r"https?://[^\"'\s)]+", picture)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }


def test_it_runs_on_a_terminal_until_q() -> None:
    arguments = ["--topology", "experiments/demo.yaml", str(os.getpid())]
    assert on_terminal(arguments, b"No lane sends between leaves.", b"q") == 0


def test_keys_come_from_the_terminal_while_counters_come_from_standard_input() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as lines:
        print(counted(7, 11, 0, 100), file=lines, flush=True)
        try:
            assert on_terminal(["--counters", "-"], b"Ethernet11", b"q", stdin=reading) == 0
        finally:
            os.close(reading)
