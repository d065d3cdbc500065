# SPDX-License-Identifier: Apache-2.0
"""An operator's commands on a running path service, its crash and its restart."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sdn.path_service.admin import AdminError
from sdn.path_service.control.client import Operator
from tests.docs.markdown import commands
from tests.testbed.cli.test_path_service import ROOT, TIMEOUT_S, paralet

TOPOLOGY = "leaf_spine: {leaves: 2, spines: 3, hosts_per_leaf: 2, host_rate: 20 Mbit/s}\n"
PAGE = ROOT / "docs" / "operate-path-service.md"
KILLS = int(os.environ.get("PARALET_KILLS", "4"))
"""How often the service is killed; `PARALET_KILLS=200` for a longer look (docs/path-service.md)."""


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "fabric.yaml"
    file.write_text(TOPOLOGY)
    return file


@contextmanager
def started(tmp_path: Path, topology: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A path service in a process of its own, which the caller ends: the process, its address and port."""
    argv = [sys.executable, "-c", "from testbed.cli import main; main()", "path-service", "run"]
    argv += ["--topology", str(topology), "--token-file", str(tmp_path / "token"), "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [*argv, *more], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            address, _, port = json.loads(line)["listen"].partition(":")
            yield process, address, int(port)
        finally:
            process.kill()


@contextmanager
def announced(
    tmp_path: Path, address: str, port: int, device: str = "10.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[socket.socket]:
    """A host whose elephant to a host of the other leaf was answered; by TLS with a `context`."""
    plain = socket.create_connection((address, port), timeout=TIMEOUT_S)
    connected = plain if context is None else context.wrap_socket(plain, server_hostname="10.0.0.1")
    with connected as host, host.makefile("rb") as said:
        token = (tmp_path / "token").read_text().strip()
        hello = {"version": 1, "token": token, "device": device, "instance": "0" * 16, "lanes": 4}
        peer = "10.0.1.1" if device == "10.0.0.1" else "10.0.0.1"
        announce = {"type": "announce", "id": 1, "peer": peer, "bytes": 9, "job": "bert"}
        for message in ({"type": "hello", **hello}, announce):
            host.sendall(json.dumps(message).encode() + b"\n")
        assert [json.loads(said.readline())["type"] for _ in range(2)] == ["welcome", "assign"]
        yield host


def test_an_operators_day(tmp_path: Path, topology: Path) -> None:
    token = "--token-file", tmp_path / "token"

    def flow() -> list[str]:
        path: list[str] = json.loads(paralet("flows", *token, "--json").stdout)["flows"][0]["path"]
        return path

    with started(tmp_path, topology) as (process, *at), announced(tmp_path, at[0], at[1]):
        spine = flow()[2].partition(":")[0]
        dry = paralet("drain", spine, *token, "--dry-run")
        assert (dry.exit_code, dry.stdout.splitlines()[:2]) == (
            0, [f"drain of {spine}: nothing was changed", "1 of 1 elephants move"],
        )  # fmt: skip
        would = json.loads(paralet("what-if", "--without", spine, *token, "--json").stdout)
        assert (would["moved"], would["moves"][0]["before"]) == (1, [flow()])
        assert "1 of 1 elephants move" in paralet("what-if", "--without", spine, *token).stdout
        done = paralet("drain", spine, *token)
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"change 1: drain of {spine}")
        assert done.stdout.endswith(f"{spine} is empty\n")
        assert not flow()[2].startswith(spine)
        assert f"drained: {spine}, empty" in paralet("status", *token).stdout
        assert "drained" in paralet("paths", *token).stdout
        process.kill()
    with started(tmp_path, topology) as (process, *at), announced(tmp_path, at[0], at[1]):
        assert not flow()[2].startswith(spine), "a crash forgets no drain"
        again = paralet("pin", "h1", "h3", "--via", spine, "--for", 3600, *token)
        assert ", until " in again.stdout.splitlines()[0]
        assert paralet("undrain", spine, *token).exit_code == 0
        assert flow()[2].startswith(spine)
        assert f"pinned: h1 to h3 via {spine}" in paralet("status", *token).stdout
        said = json.loads(paralet("undo", 2, "--json", *token).stdout)
        assert said["change"]["what"] == f"undo of change 2: pin h1 h3 via {spine}"
        log = paralet("changes", *token).stdout.splitlines()
        assert [line.split(": ", 1)[1] for line in log] == [
            f"drain {spine}", f"pin h1 h3 via {spine}", f"undrain {spine}", f"undo of change 2: pin h1 h3 via {spine}",
        ]  # fmt: skip
        assert paralet("pin", "h1", "h3", "--via", spine, *token).exit_code == 0
        assert "end of the pin" in paralet("unpin", "h1", "h3", *token).stdout
        wrong = paralet("drain", "leaf9", *token)
        assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
        assert "'leaf9' is not a link between two switches" in wrong.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_the_page_of_an_operators_day(tmp_path: Path, topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *later = [command for command in commands() if command.block.page == PAGE]
    assert "path-service run" in first.text
    monkeypatch.chdir(tmp_path)
    with started(tmp_path, topology):
        for command in later:
            if not command.text.startswith("paralet ") or "--tls-ca" in command.text:
                continue  # of TLS: `test_the_page_about_certificates`
            done = paralet(*command.text.split()[2:])
            assert done.exit_code == 0, done.output
            assert command.shows(done.stdout), done.stdout


def test_the_page_about_certificates(tmp_path: Path, topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [command.text.split() for command in commands() if command.block.page == PAGE]
    monkeypatch.chdir(tmp_path)
    for words in asked:
        if words[0] == "openssl":
            subprocess.run(words, check=True, capture_output=True)
    (run,) = [words for words in asked if "--tls-ca" in words]
    options = [str(tmp_path / word) if word.endswith(".pem") else word for word in run[run.index("--tls-ca") :]]
    refused = paralet("run", "--topology", topology, "--token-file", tmp_path / "token", *options[:2])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "--tls-ca, --tls-certificate and --tls-key belong together" in refused.stderr
    token = ("--token-file", tmp_path / "token")
    with started(tmp_path, topology, *options) as (_, *at):
        with announced(tmp_path, at[0], at[1], "10.0.1.1", of_the_pages_host()):
            assert "1 hosts, 1 elephants" in paralet("status", *token).stdout
        liar = of_the_pages_host().wrap_socket(socket.create_connection((at[0], at[1])), server_hostname="10.0.0.1")
        with liar, liar.makefile("rb") as said:
            hello = {"type": "hello", "version": 1, "token": token[1].read_text().strip(), "device": "10.0.0.1"}
            liar.sendall(json.dumps({**hello, "instance": "0" * 16, "lanes": 4}).encode() + b"\n")
            assert json.loads(said.readline())["code"] == "certificate"
        assert "1 refused: certificate" in paralet("status", *token).stdout
        assert paralet("reload", *token).exit_code == 0
        Path("service.pem").write_bytes(Path("h3.pem").read_bytes())
        wrong = paralet("reload", *token)
        assert (wrong.exit_code, "the key is not that of the certificate" in wrong.stderr) == (1, True)
        with announced(tmp_path, at[0], at[1], "10.0.1.2", of_the_pages_host()):
            pass


def of_the_pages_host() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile="ca.pem")
    context.load_cert_chain("h3.pem", "h3-key.pem")
    return context


def test_a_rotated_log_is_replayed(tmp_path: Path, topology: Path) -> None:
    token, log = ("--token-file", tmp_path / "token"), tmp_path / "events.jsonl"
    before = tmp_path / "events.jsonl.1"
    for start in range(2):  # a second start goes on in the same log
        with started(tmp_path, topology, "--event-log", str(log), "--hash", "crc32") as (process, *at):
            with announced(tmp_path, at[0], at[1]):
                assert paralet("drain", f"spine{start + 1}", *token).exit_code == 0
                if start == 0:
                    log.rename(before)
                    process.send_signal(signal.SIGHUP)
                    while not log.exists():
                        time.sleep(0.01)
                assert paralet("undo", 99, *token).exit_code == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
    assert (tmp_path / "token").read_text().strip() not in before.read_text() + log.read_text()
    lines = [json.loads(line) for line in (before.read_text() + log.read_text()).splitlines()]
    assert [line["generation"] for line in lines if "log" in line] == [1, 2]
    assert [(line["change"], line["what"]) for line in lines if "change" in line] == [
        (1, "drain spine1"), (2, "drain spine2"),
    ]  # fmt: skip
    assert [line["refused"].partition(":")[0] for line in lines if "refused" in line] == ["there is no change 99"] * 2
    assert all(f"pid {os.getpid()}" in line["who"] for line in lines if "who" in line)
    assert all(line["at"].endswith("Z") for line in lines)
    assert sum(line.get("sent", 0) for line in lines) > 0
    done = paralet("replay", before, log)
    assert (done.exit_code, done.stdout.endswith(", all as the log says\n")) == (0, True), done.output
    with gzip.open(tmp_path / "old.gz", "wb") as packed:
        packed.write(before.read_bytes())
    decisions = [json.loads(line) for line in paralet("replay", tmp_path / "old.gz", log, "--json").stdout.splitlines()]
    assert {decision["message"]["type"] for decision in decisions} == {"assign"}
    middle = paralet("replay", log)
    assert (middle.exit_code, middle.stderr.count("\n")) == (2, 1)
    assert "the log begins in the middle" in middle.stderr
    log.write_text(log.read_text().replace('"sum":', '"sum":1'))
    assert "the service decided otherwise" in paralet("replay", before, log).stderr


def test_a_reload_changes_all_or_nothing(tmp_path: Path, topology: Path) -> None:
    token, log = ("--token-file", tmp_path / "token"), tmp_path / "events.jsonl"

    def spines() -> set[str]:
        links = json.loads(paralet("paths", *token, "--json").stdout)["links"]
        return {link["upper"].partition(":")[0] for link in links}

    with started(tmp_path, topology, "--event-log", str(log)) as (process, *at), announced(tmp_path, at[0], at[1]):
        assert paralet("drain", "spine3", *token).exit_code == 0
        topology.write_text(TOPOLOGY.replace("spines: 3", "spines: 4"))
        done = paralet("reload", *token)
        assert (done.exit_code, done.stdout) == (0, "topology has changed; 4 hosts may connect\n"), done.output
        assert spines() == {"spine1", "spine2", "spine3", "spine4"}
        status = json.loads(paralet("status", *token, "--json").stdout)
        assert (status["elephants"], len(status["drained_links"])) == (1, 2), "hosts, elephants and drains stay"
        topology.write_text(TOPOLOGY.replace("leaf", "leef"))
        wrong = paralet("reload", *token)
        assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
        assert "nothing was changed: " in wrong.stderr
        topology.write_text(TOPOLOGY.replace("hosts_per_leaf: 2", "hosts_per_leaf: 2, subnets: ['10.9.0.0/16']"))
        assert paralet("reload", *token).exit_code == 1
        assert "spine4" in spines()
        topology.write_text(TOPOLOGY.replace("spines: 3", "spines: 2"))
        (tmp_path / "token").write_text("another token for all\n".replace(" ", "-"))
        process.send_signal(signal.SIGHUP)
        while (again := paralet("paths", *token, "--json")).exit_code:
            time.sleep(0.01)
        assert "spine3" not in again.stdout
        assert "'spine3' is not a link" in paralet("status", *token).stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert paralet("replay", log).exit_code == 0


def test_a_reload_changes_options_or_nothing(tmp_path: Path, topology: Path) -> None:
    token, log, file = ("--token-file", tmp_path / "token"), tmp_path / "events.jsonl", tmp_path / "options.yaml"
    file.write_text("rates: true\n")
    options = "--options", str(file), "--event-log", str(log)

    def said() -> Any:
        return json.loads(paralet("status", *token, "--json").stdout)["options"]

    with started(tmp_path, topology, *options) as (process, *at), announced(tmp_path, at[0], at[1]) as host:
        with host.makefile("rb") as answers:
            limited = json.loads(answers.readline())
            assert limited["rate_bps"] is not None
            assert said()["rates"]
            for wrong, why in (
                ("rates: 1\n", "rates: write true or false"),
                ("speed: 1\n", "'speed' is none of"),
                ("planner: none\n", "planner 'none' is none of"),
                ("planner: greedy\nrouter-answers: 5\n", "--router-answers cannot change while the service runs"),
            ):
                file.write_text(wrong)
                refused = paralet("reload", *token)
                assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
                assert f"nothing was changed: {why}" in refused.stderr.replace(f"{file}: ", "").replace(
                    "Invalid value for --options: ", ""
                )
                assert said() == {**said(), "planner": "optimal", "rates": True}
            file.write_text("planner: greedy\nforecast: true\n")
            done = paralet("reload", *token)
            assert (done.exit_code, done.stdout) == (0, "options have changed; 4 hosts may connect\n"), done.output
            assert said() == {**said(), "planner": "greedy", "rates": False, "forecast": True}
            free = json.loads(answers.readline())
            assert (free["ports"], free["rate_bps"]) == (limited["ports"], None), "the host is told that it may go on"
            assert paralet("reload", *token).stdout.startswith("nothing has changed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert paralet("replay", log).exit_code == 0


def test_a_damaged_store_is_refused_and_repaired(tmp_path: Path, topology: Path) -> None:
    state = tmp_path / "token.state"
    run = "run", "--topology", topology, "--token-file", tmp_path / "token", "--listen", "127.0.0.1:0"
    with started(tmp_path, topology) as (process, *_):
        assert paralet("drain", "spine1", "--token-file", tmp_path / "token").exit_code == 0
        assert "is the store of a path service that runs" in paralet("repair", state).stderr
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
    os.truncate(state, 5000)
    refused = paralet(*run)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert f"--state: the store {state} is damaged" in refused.stderr
    assert f"`paralet path-service repair {state}` saves what can be read" in refused.stderr
    repaired = paralet("repair", state)
    assert (repaired.exit_code, len(list(tmp_path.glob("token.state.damaged-*")))) == (0, 1)
    assert "some could not be read" in repaired.stdout
    with started(tmp_path, topology):
        assert paralet("status", "--token-file", tmp_path / "token").exit_code == 0
    assert json.loads(paralet("repair", state, "--json").stdout)["is_whole"]
    assert paralet("repair", tmp_path / "none").exit_code == 2
    foreign = paralet(*run, "--state", topology)
    assert (foreign.exit_code, foreign.stderr.count("\n")) == (2, 1)
    assert "is not a store of a path service" in foreign.stderr


@pytest.mark.timeout(300 + 30 * KILLS)
def test_a_kill_at_any_moment_loses_nothing_that_was_answered(tmp_path: Path, topology: Path) -> None:
    """Each round an operator drains and pins as fast as answers come, and the service is killed meanwhile."""
    rng = random.Random(1)
    promised: dict[str, bool] = {}  # by spine: whether it is drained, as it was answered last
    asked: set[str] = set()  # whose answer did not come
    for _ in range(KILLS):
        with started(tmp_path, topology) as (process, *_):
            operator = Operator(tmp_path / "token")
            drained = {drain.what for drain in operator.control().drains}
            assert {name: name in drained for name in promised if name not in asked} == {
                name: is_drained for name, is_drained in promised.items() if name not in asked
            }
            promised = {name: name in drained for name in ("spine1", "spine2", "spine3")}
            asked.clear()
            killer = threading.Timer(rng.uniform(0.05, 0.4), process.kill)
            killer.start()
            try:
                while True:
                    name = rng.choice(list(promised))
                    asked.add(name)
                    (operator.undrain if promised[name] else operator.drain)(name)
                    promised[name] = not promised[name]
                    asked.discard(name)
            except AdminError:
                killer.join()
                assert process.wait(TIMEOUT_S) == -signal.SIGKILL
