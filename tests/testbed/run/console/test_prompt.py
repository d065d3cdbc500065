# SPDX-License-Identifier: Apache-2.0
"""The prompt: commands from a file, and on a terminal history, completion and Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest

from testbed.run.console import prompt
from tests.testbed.run.console.fake_console_fabric import Session

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 20.0
QUIET_S = 1.0  # after which nothing more is shown

PROGRAM = """
import sys
from pathlib import Path
from testbed.run.console import prompt
from tests.testbed.run.console.fake_console_fabric import Session
sys.exit(prompt.serve(Session(Path("/tmp")).console, "demo"))
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("# a comment", []),
        ("link leaf1 spine1 down  # cut", ["link", "leaf1", "spine1", "down"]),
        ("exec h1 echo 'a b'", ["exec", "h1", "echo", "a b"]),
        ("h1 echo 'a b' | wc -c &", ["exec", "h1", "sh", "-c", "echo 'a b' | wc -c &"]),
        ("h1", ["exec", "h1"]),
        ("py len('# h1') ", ["py", "len('# h1')"]),
    ],
)
def test_a_line_becomes_words(line: str, words: list[str]) -> None:
    assert prompt.words_of(line, ["h1", "h2"]) == words


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: str) -> tuple[bool, Session]:
    monkeypatch.setattr(sys, "stdin", StringIO(lines))
    session = Session(folder)
    return prompt.serve(session.console, "demo"), session


def test_a_file_is_carried_out_to_its_end_and_tells_whether_a_command_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failed, session = serve(monkeypatch, tmp_path, "h1 echo one $NODE\nexec h1 'open\nbogus\nlink leaf1 spine1 down\n")
    assert failed
    assert session.changes == ["cut leaf1:2"]
    output, errors = capfd.readouterr()
    assert output == "one h1\n"  # no prompt, and nothing is repeated
    assert "No closing quotation" in errors
    assert "'bogus' is no command" in errors
    assert not serve(monkeypatch, tmp_path, "h1 true\n")[0]
    assert serve(monkeypatch, tmp_path, "h1 false\n")[0]


def test_exit_ends_it_and_help_lists_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failed, session = serve(monkeypatch, tmp_path, "help\nexit\nlink leaf1 spine1 down\n")
    assert not failed
    assert not session.changes
    shown = capfd.readouterr()[0].splitlines()
    assert "rules SWITCH" in shown
    assert max(map(len, shown)) <= 80


class Typing:
    """A prompt on a pseudo-terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.shown = ""
        self.all = ""
        """Also what was looked at."""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, pattern: str, meanwhile: str = "") -> None:
        """Wait until the screen shows something new that matches, and press these keys again and again."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self.shown)):
            self.type(meanwhile)
            if select.select([self._terminal], [], [], 0.2)[0]:
                self._read()
            assert time.monotonic() < deadline, self.shown
        self.shown = self.shown[found.end() :]
        while meanwhile and select.select([self._terminal], [], [], QUIET_S)[0]:  # what the last keys do
            self._read()

    def _read(self) -> None:
        text = os.read(self._terminal, 4096).decode()
        self.shown += text
        self.all += text


@contextmanager
def typing() -> Iterator[tuple[Typing, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT), "INPUTRC": "/dev/null"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the controlling terminal
    )
    os.close(theirs)
    try:
        yield Typing(ours), program
    finally:
        program.kill()
        program.wait()
        os.close(ours)


def test_a_terminal_has_completion_history_and_ctrl_c() -> None:
    with typing() as (user, program):
        user.until("Fabric demo is up.*\n")
        user.until("demo> ")
        user.type("link leaf1 spi\t")  # spine1 or spine2: completed up to the number
        user.until("spi\x07*ne")
        user.type("\x15")  # Ctrl-U: drops what was typed
        user.type("rul\tspine2\r")
        user.until("rules of spine2.*\n")
        user.until("demo> ")
        user.type("\x10\r")  # Ctrl-P: the line before
        user.until("rules of spine2.*\n")
        user.until("demo> ")
        user.type("h1 echo began; exec sleep 1000\r")
        user.until("\nbegan")
        user.type("\x03")
        user.until("demo> ")
        user.type("bogus")
        user.until("bogus")
        user.type("\x03")
        # If readline is not waiting just then, Python drops the line when it ends: so another one is typed.
        user.until("\nh1\r\n", meanwhile="h1 echo $NODE; false\r")
        assert "no command" not in user.all
        user.until("demo> ")
        user.type("\x04")
        assert program.wait(TIMEOUT_S) == 0
