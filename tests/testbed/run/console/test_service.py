# SPDX-License-Identifier: Apache-2.0
"""Commands from other processes reach a fabric, with their streams, folder, signals and exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emul.sandboxes import RunningSandbox
from testbed.cli import main
from testbed.errors import InputError, TestbedError
from testbed.run.console import client, service
from testbed.run.console.client import FabricGoneError, UpFabric, chosen, up_fabrics
from testbed.run.console.service import ConsoleService
from testbed.run.console.wire import SOCKET, Greeting
from tests.testbed.run.console.fake_console_fabric import Session

GREETING = Greeting("demo", "mininet", "shell", "/logs")
TIMEOUT_S = 20.0


class HereSandbox(RunningSandbox):
    """A sandbox whose scratch folder is this one."""

    @property
    def scratch(self) -> Path:
        return Path(os.environ["PARALET_TEST_SCRATCH"])


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, as a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("PARALET_TEST_SCRATCH", folder)
        monkeypatch.setattr(client, "running", lambda: [HereSandbox(1)])
        yield Path(folder)


@pytest.fixture
def session(scratch: Path) -> Iterator[Session]:
    session = Session(scratch)
    with ConsoleService(session.console, GREETING, scratch):
        yield session


def run(folder: Path, *words: str, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """The exit status, output and errors of a command."""
    files = [folder / name for name in ("input", "output", "errors")]
    files[0].write_bytes(given)
    with files[0].open("rb") as read, files[1].open("wb") as write, files[2].open("wb") as wrong:
        status = chosen("demo").run(words, (read.fileno(), write.fileno(), wrong.fileno()))
    return status, files[1].read_bytes(), files[2].read_bytes()


@pytest.mark.usefixtures("session")
def test_a_program_has_the_streams_and_the_folder_of_the_one_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("exec", "h1", "sh", "-c", "cat; pwd; echo $NODE >&2; exit 5")
    assert run(tmp_path, *asked, given=b"given\n") == (5, f"given\n{tmp_path}\n".encode(), b"h1\n")


def test_a_command_changes_the_fabric(session: Session, tmp_path: Path) -> None:
    assert run(tmp_path, "link", "leaf1", "spine1", "down") == (0, b"", b"")
    assert session.changes == ["cut leaf1:2"]


@pytest.mark.usefixtures("session")
def test_errors_are_those_of_the_console(tmp_path: Path) -> None:
    status, output, errors = run(tmp_path, "link", "leaf1:9", "down")
    assert (status, output) == (2, b"")
    assert errors.startswith(b"paralet: no link")
    assert run(tmp_path, "exec", "h1", "/no/such/program")[0] == 127  # of env, as of nsenter


@pytest.mark.usefixtures("session")
def test_ctrl_c_reaches_the_program(tmp_path: Path) -> None:
    began = tmp_path / "began"

    def press() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not began.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    status = run(tmp_path, "exec", "h1", "sh", "-c", f"trap 'exit 9' INT; touch {began}; sleep 1000")[0]
    pressing.join()
    assert status == 9


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_ends_with_the_one_who_asked(session: Session, scratch: Path) -> None:
    noted = scratch / "pid"
    asking = (
        "from tests.testbed.run.console.test_service import HereSandbox, GREETING;"
        "from testbed.run.console.client import UpFabric;"
        f"UpFabric(GREETING, HereSandbox(1)).run(['exec', 'h1', 'sh', '-c', 'echo $$ >{noted}.new;"
        f"mv {noted}.new {noted}; sleep 1000'])"
    )
    with subprocess.Popen([sys.executable, "-c", asking], cwd=Path(__file__).parents[4]) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not noted.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    pid = int(noted.read_text())
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_fabric_that_goes_down_ends_its_programs(scratch: Path) -> None:
    session = Session(scratch)
    with ConsoleService(session.console, GREETING, scratch) as served:
        began = scratch / "began"

        def go_down() -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while not began.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            served.__exit__()

        going = threading.Thread(target=go_down)
        going.start()
        assert run(scratch, "exec", "h1", "sh", "-c", f"touch {began}; sleep 1000")[0] == 128 + signal.SIGKILL
        going.join()
    assert not (scratch / SOCKET).exists()


def test_a_fabric_that_ends_without_an_answer_is_an_error(scratch: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(scratch / SOCKET))
        listener.listen()

        def hang_up() -> None:
            end, _ = listener.accept()
            end.send(b'{"name":"demo","fabric":"mininet","command":"run","logs":""}')
            end.recv(1000)
            end.close()

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        with pytest.raises(TestbedError, match="fabric demo went down before the command ended"):
            UpFabric(GREETING, HereSandbox(1)).run(["nodes"])
        hanging.join()


@pytest.mark.usefixtures("session")
def test_processes_of_other_users_are_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [fabric.greeting for fabric in up_fabrics()] == [GREETING]
    monkeypatch.setattr(service, "peer_pid", lambda _: None)  # the kernel names another user
    assert not up_fabrics()
    with pytest.raises(InputError, match=r"no fabric of this user is up: bring one up with `paralet shell`"):
        chosen(None)


@pytest.mark.usefixtures("scratch")
def test_a_fabric_is_chosen_by_name_or_number(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [UpFabric(GREETING, HereSandbox(11)), UpFabric(Greeting("other", "routed", "run", ""), HereSandbox(12))]
    monkeypatch.setattr(client, "up_fabrics", lambda: two)
    assert chosen("other") is two[1]
    assert chosen("11") is two[0]
    with pytest.raises(InputError, match=r"several fabrics are up; name one with --on.*: demo \(11\), other \(12\)"):
        chosen(None)
    with pytest.raises(InputError, match="no fabric nobody of this user is up"):
        chosen("nobody")


def test_a_fabric_that_ends_before_it_answers_is_gone(scratch: Path) -> None:
    session = Session(scratch)
    with ConsoleService(session.console, GREETING, scratch):
        (fabric,) = up_fabrics()
    with pytest.raises(FabricGoneError, match="demo went down before the command ended"):
        fabric.run(["net"])


def test_inspect_shows_the_fabrics_that_do_not_end_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other fabrics of this user come and go while it asks each one."""
    gone, stays = (UpFabric(Greeting(name, "mininet", "run", "/logs"), HereSandbox(1)) for name in ("gone", "stays"))

    def told(fabric: UpFabric) -> dict[str, object]:
        if fabric is gone:
            raise FabricGoneError("gone")
        return {"name": fabric.greeting.name}

    monkeypatch.setattr(client, "up_fabrics", lambda: [gone, stays])
    monkeypatch.setattr("testbed.cli.inspect._of", told)
    done = CliRunner().invoke(main, ["inspect", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"fabrics": [{"name": "stays"}]}


def test_inspect_changes_no_links_and_names_the_command_that_does() -> None:
    for change in (["h1:1"], ["h1:1", "loss", "5", "%"], ["leaf1", "spine1", "down"]):
        done = CliRunner().invoke(main, ["inspect", "links", *change])
        assert done.exit_code == 2
        assert "inspect only shows links: `paralet link` changes them" in done.output
