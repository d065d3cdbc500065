# SPDX-License-Identifier: Apache-2.0
"""`paralet top --serve`: the page in a real browser, and the server behind it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hostlib import Device
from hostlib.stats import Survey
from netmodel import OvsHash, leaf_spine
from testbed.cli.top_web import Feed, server
from testbed.live.fabric_view import FabricView
from testbed.live.moments import Moments
from testbed.live.web_update import MOST_LANES, web_update
from tests.browser import PROGRAM, Browser
from tests.testbed.live.nccl_ranks import hanging_ranks
from tests.testbed.live.snapshots import device, lane, survey

ROOT = Path(__file__).parents[3]
TOPOLOGY = leaf_spine(leaves=2, spines=2, hosts_per_leaf=2, host_rate_bps=10**7)
NEAR, *PEERS = (str(TOPOLOGY.host(name).nics[0].address) for name in ("h1", "h3", "h4"))


def second(number: int) -> Survey:
    """Two lanes, the second much slower, and moved in the second second."""
    lanes = [
        lane(0, 10**6 * number, peer=PEERS[0], retransmits=1),
        lane(1, 1000 * number, peer=PEERS[1], port=50_001 if number < 2 else 60_000, retransmits=7),
    ]
    return survey(device(*lanes, time_s=float(number), address=NEAR))


def updates() -> Iterator[dict[str, Any]]:
    """Updates of a fabric on which an operation of NCCL hangs."""
    from testbed.live.nccl_operations import states

    view = FabricView(TOPOLOGY, OvsHash())
    moments = Moments(view)
    log: list[str] = []
    number = 0
    while True:
        moment = moments.take(second(number), float(number), (), states(hanging_ranks()))
        log += moment.events
        yield web_update(moment, view, f"update {number}\n<b>ecmp</b> 2.90 x ideal", log)
        number += 1


@contextmanager
def served(interval_s: float = 0.02) -> Iterator[tuple[int, list[int]]]:
    """A server's port, and how often it has looked."""
    source, looked = updates(), [0]

    def look() -> dict[str, Any]:
        looked[0] += 1
        return next(source)

    with server("127.0.0.1", 0, Feed(look, interval_s)) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield listening.server_port, looked
        finally:
            listening.shutdown()
            thread.join()


def text(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).innerText"


def rows(selector: str) -> str:
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )


@pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed")
def test_a_browser_shows_what_the_screen_shows_and_takes_its_keys(tmp_path: Path) -> None:
    with served() as (port, _), Browser(tmp_path) as browser:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.until(text("#log"), lambda log: "moved from port 50001 to 60000" in log)
        assert "1 devices, 2 lanes, 8.0 Mbit/s sent; by rate both ways" in browser.value(text("#head"))
        assert browser.value(text("#advice")).startswith("Busiest: leaf1 to spine")
        assert browser.value(text("#status")).endswith("\n<b>ecmp</b> 2.90 x ideal")  # text, not markup
        links = browser.value(rows("#links tr"))
        assert links[0][1] == "81 %"
        bars = browser.value(
            "[...document.querySelectorAll('#heat .bar')].map((bar) => Number(bar.getAttribute('height')))"
        )
        assert len(bars) == 2 * 2 * 2
        assert sum(height > 1 for height in bars) == 2  # the busy lane's link up and its link down
        assert browser.value("document.querySelector('#heat title').textContent").startswith("leaf1 to spine1: ")
        (operation,) = browser.value(rows("#operations tbody tr"))
        assert operation[0] == "AllReduce 7 of training (4 ranks)"
        assert "rank 2, which has not begun it" in operation[4]
        lanes = browser.value(rows("#lanes tbody tr"))
        assert [(*row[:2], row[3], row[8]) for row in lanes] == [("h1", "h3", "50000", "1"), ("h1", "h4", "60000", "7")]
        assert lanes[0][5:7] == ["8.0", "0.0"]  # sent and received, in Mbit/s
        assert browser.value("document.querySelectorAll('svg.spark path').length") == 2
        browser.press("s")
        browser.press("s")
        browser.until(text("#head"), lambda head: "by resent" in head)
        assert browser.value(rows("#lanes tbody tr"))[0][1] == "h4"
        browser.press(" ")
        browser.until(text("#head"), lambda head: "paused" in head)
        stands = browser.value(text("#status"))
        browser.value("new Promise((resume) => setTimeout(resume, 100))")
        assert browser.value(text("#status")) == stands
        browser.press(" ")
        browser.until(text("#status"), lambda status: status != stands)
        assert {url.split("/")[2] for url in browser.requested if "://" in url} == {f"127.0.0.1:{port}"}
        assert browser.errors == []


def test_the_page_has_the_lanes_of_every_order_and_no_more() -> None:
    lanes = [lane(n, 0, rtt_s=n * 1e-6, retransmits=1000 - n, moves=n % 7, qpn=n) for n in range(1000)]
    moments = Moments(None)
    update = web_update(moments.take(survey(device(*lanes)), 0.0), None, "", [])
    shown = {row["lane"] for row in update["lanes"]}
    assert set(range(1000 - MOST_LANES, 1000)) <= shown  # the longest round trips
    assert set(range(MOST_LANES)) <= shown  # most resent
    assert len(shown) <= 4 * MOST_LANES
    assert update["totals"]["lanes"] == 1000
    assert update["fabric"] is None


def test_nothing_is_looked_at_while_nobody_watches() -> None:
    with served() as (port, looked):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        page = connection.getresponse()
        assert page.status == 200
        assert "default-src 'none'" in str(page.getheader("Content-Security-Policy"))
        assert b"paralet top" in page.read()
        assert looked == [0]
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        stream.request("GET", "/updates")
        answer = stream.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream"
        first = answer.readline()
        assert json.loads(first.removeprefix(b"data: "))["totals"]["lanes"] == 2
        assert looked[0] >= 1


@pytest.mark.parametrize(
    ("host", "path", "status"),
    [
        ("localhost", "/", 200),
        ("127.0.0.1:1", "/top_page.js", 200),  # the other end of a tunnel has another port
        ("evil.example", "/", 403),  # a name that somebody's DNS points here
        ("evil.example:80", "/updates", 403),
        ("localhost", "/../top.py", 404),
    ],
)
def test_only_requests_for_this_host_are_answered(host: str, path: str, status: int) -> None:
    with served() as (port, looked):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers={"Host": host})
        assert connection.getresponse().status == status
        assert looked == [0]


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "testbed", "top", "--serve", "127.0.0.1:0"]
    with Device("127.0.0.1"), subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Serving http://127.0.0.1:")
            port = int(line.split(":")[2].split("/")[0])
            stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            stream.request("GET", "/updates")
            update = json.loads(stream.getresponse().readline().removeprefix(b"data: "))
            assert update["totals"]["devices"] >= 0
            tasks = Path("/proc", str(process.pid), "task")
            nices = {int(task.name): os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks.iterdir()}
            assert nices[process.pid] == os.getpriority(os.PRIO_PROCESS, 0), "Ctrl-C does not wait for a busy machine"
            assert 19 in nices.values(), "the thread that looks takes what others leave"
        finally:
            process.send_signal(2)
            assert process.wait(60) == 130
