# SPDX-License-Identifier: Apache-2.0
"""`paralet path-service`: queries of a running service, and one-line errors for mistakes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from netmodel.printable import printable
from sdn.path_service.availability.state import State
from sdn.path_service.token import make_token
from testbed.cli import main
from testbed.cli.path_service import _print_availability

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 60
TOPOLOGY = "leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, host_rate: 20 Mbit/s}\n"


def paralet(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["path-service", *(str(argument) for argument in arguments)])


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "fabric.yaml"
    file.write_text(TOPOLOGY)
    return file


@pytest.fixture
def running(tmp_path: Path, topology: Path) -> Iterator[tuple[Path, str, int]]:
    """Token file, address and port of a path service in its own process, which must exit with status 0."""
    with serving(tmp_path, topology) as at:
        yield at


@contextmanager
def serving(tmp_path: Path, topology: Path, *more: str) -> Iterator[tuple[Path, str, int]]:
    """As `running`, with more arguments."""
    token = tmp_path / "token"
    argv = [sys.executable, "-c", "from testbed.cli import main; main()", "path-service", "run"]
    argv += ["--topology", str(topology), "--token-file", str(token), "--listen", "127.0.0.1:0", "--json"]
    argv += ["--event-log", str(tmp_path / "events.jsonl"), *more]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        address, _, port = ready["listen"].partition(":")
        try:
            yield token, address, int(port)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert not Path(ready["admin"]).exists()


def test_a_running_service_answers_queries_and_accepts_a_link_failure(
    running: tuple[Path, str, int], topology: Path
) -> None:
    token_file, *at = running
    events = token_file.with_name("events.jsonl")
    token = token_file.read_text().strip()
    assert token_file.stat().st_mode & 0o777 == 0o600
    with socket.create_connection((at[0], at[1]), timeout=TIMEOUT_S) as host, host.makefile("rb") as said:
        hello = {"version": 1, "token": token, "device": "10.0.0.1", "instance": "0" * 16, "lanes": 4}
        for message in ({"type": "hello", **hello}, {"type": "announce", "id": 1, "peer": "10.0.1.1", "bytes": 9}):
            host.sendall(json.dumps(message).encode() + b"\n")
        assert json.loads(said.readline())["type"] == "welcome"
        ports = json.loads(said.readline())["ports"]
        assert len(ports) == 4

        status = json.loads(paralet("status", "--token-file", token_file, "--json").stdout)
        assert (status["hosts"], status["elephants"], status["gap"]) == (1, 1, 0)
        assert "1 hosts, 1 elephants" in paralet("status", "--token-file", token_file).stdout
        (flow,) = json.loads(paralet("flows", "--token-file", token_file, "--json").stdout)["flows"]
        assert flow["ports"] == ports
        assert "10.0.1.1" in paralet("flows", "--token-file", token_file).stdout
        links = json.loads(paralet("paths", "--token-file", token_file, "--json").stdout)["links"]
        assert [link["up"] for link in links if link["lower"] == flow["path"][1]] == [1]

        done = paralet("fail-link", flow["path"][1], "--token-file", token_file)
        assert (done.exit_code, done.stdout.endswith(" is down\n")) == (0, True)
        moved = json.loads(said.readline())
        assert moved["id"] == 1
        assert "dead: " + flow["path"][1] in paralet("status", "--token-file", token_file).stdout
        assert "dead" in paralet("paths", "--token-file", token_file).stdout
        assert paralet("fail-link", flow["path"][1], "--up", "--token-file", token_file).exit_code == 0
        wrong = paralet("fail-link", "leaf9", "--token-file", token_file)
        assert (wrong.exit_code, wrong.stderr.count("\n")) == (1, 1)
        assert "'leaf9' is not a link between two switches" in wrong.stderr

        run = ("run", "--topology", topology, "--event-log", events)
        before = events.read_bytes()
        second = paralet(*run, "--token-file", token_file, "--listen", "127.0.0.1:0")
        assert second.exit_code == 1
        assert "another path service listens" in second.stderr
        other = token_file.with_name("other")
        taken = paralet(*run, "--token-file", other, "--listen", f"{at[0]}:{at[1]}")
        assert (taken.exit_code, f"--listen {at[0]}:{at[1]}: " in taken.stderr) == (1, True)
        same = paralet(*run, "--token-file", other, "--listen", "127.0.0.1:0")
        assert (same.exit_code, same.stderr.count("\n")) == (2, 1)
        assert "is the log of another path service" in same.stderr
        assert events.read_bytes().startswith(before.rstrip()), "the log of the service that runs is whole"
        assert not other.with_name("other.sock").exists()
        other.with_name("other.sock").write_text("not a socket")
        blocked = paralet(*run, "--token-file", other, "--listen", "127.0.0.1:0")
        assert (blocked.exit_code, blocked.stderr) == (
            1,
            f"paralet: the operator's socket {other}.sock cannot be made: Address already in use\n",
        )


def test_a_measuring_service_asks_hosts_to_probe_and_shows_what_they_found(tmp_path: Path, topology: Path) -> None:
    routers = tmp_path / "routers.json"
    routers.write_text(json.dumps({"172.16.0.1": "spine1", "172.16.0.2": "spine2"}))
    measured = "--pinning", "measured", "--routers", str(routers), "--router-answers", "0"
    with (
        serving(tmp_path, topology, *measured) as (token_file, *at),
        socket.create_connection((at[0], at[1]), timeout=TIMEOUT_S) as host,
        host.makefile("rb") as said,
    ):

        def say(**message: object) -> None:
            host.sendall(json.dumps(message).encode() + b"\n")

        token = token_file.read_text().strip()
        say(type="hello", version=2, token=token, device="10.0.0.1", instance="0" * 16, lanes=4)
        assert json.loads(said.readline())["probe"] is True
        say(type="probe", rate=100.0)
        say(type="announce", id=1, peer="10.0.1.1", bytes=9)
        spines: list[int] = []
        watched: list[tuple[int, str]] = []
        # Half of the lanes on each spine, and a port of each path watched; until then any ports that are known.
        while spines != [0, 0, 1, 1] or {router for _, router in watched} != {"172.16.0.1", "172.16.0.2"}:
            heard = json.loads(said.readline())
            if heard["type"] == "probe":
                answers = [[port, "hop", f"172.16.0.{1 + port % 2}", 0.001] for port in heard["ports"]]
                say(type="probed", ask=heard["ask"], answers=answers)
            elif heard["type"] == "assign":
                spines = sorted(port % 2 for port in heard["ports"])
            elif heard["type"] == "watch":
                watched = heard["ports"]
        text = paralet("status", "--token-file", token_file).stdout
        assert "1 hosts probe; of 1 pairs 1 are pinned, 0 being measured, 0 in doubt" in text
        (flow,) = json.loads(paralet("flows", "--token-file", token_file, "--json").stdout)["flows"]
        assert [f"leaf1:{3 + port % 2}" for port in flow["ports"]] == [path[1] for path in flow["lane_paths"]]
        assert " | " in paralet("flows", "--token-file", token_file).stdout
        port, router = watched[0]
        other = f"172.16.0.{3 - int(router[-1])}"
        say(type="moved", peer="10.0.1.1", answers=[[port, "hop", other, 0.001]])
        say(type="ping", nonce=1)
        while json.loads(said.readline())["type"] != "pong":
            pass
        assert f"{other} answers instead of {router}" in paralet("status", "--token-file", token_file).stdout


def test_a_job_of_any_name_is_shown(running: tuple[Path, str, int]) -> None:
    token_file, *at = running
    hello = {"version": 1, "token": token_file.read_text().strip(), "device": "10.0.0.1", "instance": "0" * 16}
    for job in ("[/foo]", "[red]a", "\x1b[2Ja", "a\nb", "\x9bc", "\u202ea", ":smile:"):
        with socket.create_connection((at[0], at[1]), timeout=TIMEOUT_S) as host, host.makefile("rb") as said:
            announce = {"type": "announce", "id": 1, "peer": "10.0.1.1", "bytes": 9, "job": job}
            for message in ({"type": "hello", **hello, "lanes": 4}, announce):
                host.sendall(json.dumps(message).encode() + b"\n")
            assert [json.loads(said.readline())["type"] for _ in range(2)] == ["welcome", "assign"]
            done = paralet("flows", "--token-file", token_file)
        assert done.exit_code == 0, done.output
        assert printable(job) in done.stdout
        assert all(line.isprintable() for line in done.stdout.splitlines())


def test_mistakes_are_one_line_errors(tmp_path: Path, topology: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o644)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    three = tmp_path / "rails.yaml"
    three.write_text("name: pair\nhosts: [{name: h1, nics: [{address: 10.0.0.1}]}]\nswitches: []\nlinks: []\n")
    good = ("run", "--topology", topology, "--token-file", tmp_path / "new")
    measured = (*good, "--listen", "127.0.0.1:0", "--pinning", "measured")
    (tmp_path / "routers.yaml").write_text("{10.9.0.1: spine1}")
    (tmp_path / "list.yaml").write_text("[10.9.0.1]")
    for arguments, status, sentence in (
        (measured, 2, "it needs the addresses by which routers answer; give --routers"),
        ((*measured, "--routers", tmp_path / "routers.yaml"), 2, "spine2 answers probes between h1 and h3, and has no"),
        ((*measured, "--routers", tmp_path / "list.yaml"), 2, "give the owner of each address"),
        ((*measured, "--routers", tmp_path / "none.yaml"), 2, "none.yaml"),
        ((*good, "--routers", tmp_path / "routers.yaml"), 2, "--routers needs --pinning measured"),
        (("status", "--token-file", tmp_path / "none"), 2, "there is no token file"),
        (("status", "--token-file", token), 2, f"may be read or written by others: chmod 600 {token}"),
        (("run", "--topology", topology, "--token-file", token), 2, "chmod 600"),
        (("run", "--topology", tmp_path / "none.yaml", "--token-file", token), 2, "none.yaml"),
        (("run", "--topology", topology, "--token-file", tmp_path / "new", "--listen", "4792"), 2, "10.0.0.1:4792"),
        (("run", "--topology", topology, "--token-file", tmp_path / "new", "--listen", "a:99999"), 2, "10.0.0.1:4792"),
        (("run", "--topology", topology, "--token-file", tmp_path / "new", "--listen", "::1:0"), 2, "[fd00::1]:4792"),
        (("run", "--topology", three, "--token-file", tmp_path / "made"), 2, "not a two-level leaf-spine"),
        (("run", "--topology", topology, "--token-file", tmp_path / "no" / "token"), 2, "cannot be made: No such file"),
        (("run", "--topology", topology), 2, "Missing option '--token-file'"),
        (("status", "--token-file", fifo), 2, f"{fifo} is not a regular file"),
        (("run", "--topology", topology, "--token-file", fifo), 2, f"{fifo} is not a regular file"),
        ((*good, "--event-log", topology), 2, f"--event-log {topology} is not a log of a path service"),
        ((*good, "--event-log", tmp_path / "no" / "log"), 2, f"{tmp_path}/no/log cannot be written: No such file"),
        ((*good, "--listen", "192.0.2.99:0"), 1, "--listen 192.0.2.99:0: "),
    ):
        done = paralet(*arguments)
        assert (done.exit_code, done.stdout) == (status, ""), arguments
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "made").exists(), "nothing is left of a path service that could not begin"
    token.chmod(0o600)
    done = paralet("status", "--token-file", token)
    assert done.exit_code == 1
    assert "no path service listens" in done.stderr
    token.write_text("short")
    assert "16 to 256" in paralet("status", "--token-file", token).stderr
    token.write_bytes(b"\xff" * 32)
    assert "holds other characters than ASCII's" in paralet("status", "--token-file", token).stderr


def test_a_full_disk_leaves_no_token_file(tmp_path: Path, topology: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, usual[1]))
    try:
        done = paralet("run", "--topology", topology, "--token-file", tmp_path / "token")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "token cannot be made: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == [topology]


def test_a_token_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    token = tmp_path / "token"
    make_token(token)
    made = token.read_text()
    with pytest.raises(FileExistsError):
        make_token(token)
    assert (token.read_text(), list(tmp_path.iterdir())) == (made, [token])


def test_a_follower_says_how_long_it_has_not_heard_the_one_that_leads(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no host decides it goes on following one that is gone, and nobody leads."""
    state = State("following", 2, "10.0.0.2:4792", False, 3.04, 0, 0, 0)
    _print_availability(msgspec.to_builtins(state))
    assert capsys.readouterr().out == "following in generation 2; the other one is 10.0.0.2:4792, heard 3.0 s ago\n"


def test_a_service_whose_event_log_lacks_events_ends_with_status_1(tmp_path: Path, topology: Path) -> None:
    log = tmp_path / "events.jsonl"
    room = 200_000  # more than the store takes
    argv = ["prlimit", f"--fsize={room}:{room}", sys.executable, "-c", "from testbed.cli import main; main()"]
    argv += ["path-service", "run", "--topology", str(topology), "--token-file", str(tmp_path / "token")]
    argv += ["--listen", "127.0.0.1:0", "--json", "--event-log", str(log)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        address, _, port = ready["listen"].partition(":")
        token = (tmp_path / "token").read_text().strip()
        hello = {"type": "hello", "version": 1, "token": token, "device": "10.0.0.1", "instance": "0" * 16, "lanes": 1}
        with socket.create_connection((address, int(port)), timeout=TIMEOUT_S) as host, host.makefile("rb") as said:
            host.sendall(json.dumps(hello).encode() + b"\n")
            for _ in range(4):
                host.sendall(json.dumps({"type": "ping", "padding": "x" * 60_000}).encode() + b"\n")
            assert [json.loads(said.readline())["type"] for _ in range(5)] == ["welcome", *["pong"] * 4]
        while "cannot be written" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 1
        logged = process.stderr.read()
    assert re.search(rf"{re.escape(str(log))} lacks \d+ events: its disk was full or too slow", logged)


COMMANDS = ["run", "status", "flows", "paths", "fail-link", "drain", "undrain", "pin", "unpin", "undo", "what-if"]


@pytest.mark.parametrize("command", [*COMMANDS, "changes", "repair", "replay", "reload"])
def test_help_has_an_example(command: str) -> None:
    done = paralet(command, "--help")
    assert done.exit_code == 0
    assert f"Example: paralet path-service {command}" in " ".join(done.stdout.split()).replace("Examples", "Example")
