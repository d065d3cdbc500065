# SPDX-License-Identifier: Apache-2.0
"""`paralet stat --why` with processes that hang on loopback: each cause, and a chain over the dumps of three hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from testbed.cli import main

from . import waiting_process

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0
PATIENT = {"retry_time_s": 600.0, "lanes": 2}
"""Options of devices that give no peer up during a test."""


class Rank:
    """A process with a device at an address."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address
        self.process = subprocess.Popen(
            [sys.executable, waiting_process.__file__, address, json.dumps({**PATIENT, **options})],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        """A pattern: the port is in the name if another process has the usual one at this address."""
        return rf"{re.escape(self.address)}(:\d+)? \(process {self.pid} on [^ ]+\)"

    def do(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        """Stop it by a signal, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)


def join(sender: Rank, receiver: Rank) -> None:
    """Connect two ranks."""
    assert sender.do(f"connect {receiver.do('listen')}") == "ok"
    assert receiver.do("accept") == "ok"


@pytest.fixture
def start() -> Iterator[Callable[..., Rank]]:
    """Start ranks, which are killed after the test."""
    with ExitStack() as stack:

        def begin(number: int, **options: Any) -> Rank:
            rank = Rank(f"127.0.0.{number}", options)
            stack.enter_context(rank.process)
            stack.callback(rank.process.kill)
            return rank

        yield begin


def ask(*arguments: str | int) -> Result:
    return CliRunner().invoke(main, ["stat", *map(str, arguments)])


def eventually(reached: Callable[[dict[str, Any]], bool], *arguments: str | int) -> dict[str, Any]:
    """The diagnosis, once this holds of it. What has not moved for half a second is stuck."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        result = ask("--why", "--json", "--after", 0.5, *arguments)
        diagnosis: dict[str, Any] = json.loads(result.stdout)
        assert result.exit_code == (3 if diagnosis["stuck"] else 0)
        if reached(diagnosis):
            return diagnosis
        assert time.monotonic() < deadline, diagnosis
        time.sleep(0.1)


def waits(*causes: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the waits are of these causes, and no others."""
    return lambda diagnosis: {wait["cause"] for wait in diagnosis["waits"]} == set(causes)


def test_a_receive_that_is_never_posted(start: Callable[..., Rank]) -> None:
    one, two = start(1), start(2)
    join(one, two)
    one.do("send 0 7")
    found = eventually(waits("no-receive"), one.pid, two.pid)
    (cause,) = found["causes"]
    assert cause["kind"] == "application"
    assert re.match(two.name, cause["sentence"])
    assert re.fullmatch(one.name, found["waits"][0]["waiter"])
    assert "oldest with tag 7" in found["waits"][0]["sentence"]
    assert ask("--why", "--after", 0.5, one.pid).stdout.count("Cause: ") == 1
    two.do("receive 0 7")
    one.do("wait")
    assert not eventually(lambda diagnosis: not diagnosis["waits"], one.pid, two.pid)["stuck"]


def test_a_send_that_is_never_posted(start: Callable[..., Rank]) -> None:
    one, two = start(1), start(2)
    join(one, two)
    two.do("receive 0 7")
    (cause,) = eventually(waits("no-send"), one.pid, two.pid)["causes"]
    assert cause["kind"] == "application"
    assert re.match(one.name, cause["sentence"])


def test_tags_that_do_not_agree(start: Callable[..., Rank]) -> None:
    one, two = start(1), start(2)
    join(one, two)
    two.do("receive 0 7")
    one.do("send 0 8")
    (cause,) = eventually(lambda diagnosis: len(diagnosis["waits"]) == 2, one.pid, two.pid)["causes"]
    assert (cause["kind"], cause["waiting"]) == ("tags", 2)
    assert "sends tag 8 while" in cause["sentence"]


def test_a_peer_that_is_stopped(start: Callable[..., Rank]) -> None:
    one, two = start(1), start(2)
    join(one, two)
    two.do("receive 0 7")
    two.do("receive 0 7")
    one.do("send 0 7")
    one.do("wait")
    two.stop()
    try:
        one.do("send 0 7")
        found = eventually(waits("peer-silent"), one.pid, two.pid)
        (cause,) = found["causes"]
        assert cause["kind"] == "stopped"
        assert f"`kill -CONT {two.pid}`" in cause["sentence"]
        (cause,) = eventually(waits("peer-silent"), one.pid)["causes"]  # without its dump
        assert cause["kind"] == "silent"
        assert cause["sentence"].startswith(two.address)
    finally:
        os.kill(two.pid, signal.SIGCONT)
    one.do("wait")
    assert not eventually(lambda diagnosis: not diagnosis["waits"], one.pid, two.pid)["stuck"]


def test_a_path_that_drops_all_packets(start: Callable[..., Rank]) -> None:
    one, two = start(1), start(2, faults={"dead": 1.0})
    join(one, two)
    two.do("receive 0 7")
    one.do("send 0 7")

    def lost(diagnosis: dict[str, Any]) -> bool:
        silent = [wait for wait in diagnosis["waits"] if wait["cause"] in ("peer-silent", "lane-silent")]
        return any(re.fullmatch(one.name, wait["waiter"]) for wait in silent)

    found = eventually(lost, one.pid, two.pid)
    assert {cause["kind"] for cause in found["causes"]} == {"path"}
    path = rf"the path of UDP source ports? [\d, ]+ from {one.name} to {two.name} loses packets"
    assert sum(re.match(path, cause["sentence"]) is not None for cause in found["causes"]) == 1


def test_a_chain_over_three_hosts(start: Callable[..., Rank], tmp_path: Path) -> None:
    """One waits for two, which waits for three, which does nothing: it is the cause, however many wait."""
    one, two, three = (start(number) for number in (1, 2, 3))
    join(one, two)
    join(three, two)
    one.do("send 0 1")
    two.do("receive 1 2")
    ranks = {"a": one, "b": two, "c": three}

    def dumps() -> list[str]:
        for host, rank in ranks.items():
            dump = json.loads(ask("--json", rank.pid).stdout)
            (tmp_path / host).write_text(json.dumps({**dump, "host": host}))
        return [str(tmp_path / host) for host in ranks]

    deadline = time.monotonic() + DEADLINE_S
    while len(json.loads(ask("--why", "--json", "--after", 0.5, *dumps()).stdout)["waits"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    result = ask("--why", "--after", 0.5, *dumps())
    assert result.exit_code == 3
    first, second, cause = result.stdout.splitlines()
    assert {first[:9], second[:9]} == {one.address, two.address}
    assert re.match(f"Cause: {three.name} waits for nobody, and 2 processes wait for it: ", cause)
    (partly,) = json.loads(ask("--why", "--json", "--after", 0.5, *dumps()[:2]).stdout)["causes"]
    assert partly["kind"] == "unknown"
    assert re.match(r"2 processes wait for 127\.0\.0\.3(:\d+)?, of which there is no dump", partly["sentence"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--why", "--prometheus"], "--why looks once"),
        (["--why", "--count", "2"], "--why looks once"),
        (["--after", "3"], "--after needs --why"),
        (["a.json"], "a.json is not a process id; dumps are for --why"),
        (["--why", "/nowhere/a.json"], "/nowhere/a.json cannot be used: No such file or directory"),
        (["--why", "/dev/null"], "/dev/null is not the output of `paralet stat --json`"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
