# SPDX-License-Identifier: Apache-2.0
"""How `paralet` starts: what Ctrl-C does before the command line has been imported, and after."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

INTERRUPT_WHILE_IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "testbed.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from testbed.__main__ import main
sys.argv = ["paralet", "--version"]
main()
"""

INTERRUPT_WHEN_IMPORTED = """
import os, signal, testbed.cli
testbed.cli.main.callback = lambda: os.kill(os.getpid(), signal.SIGINT)
from testbed.__main__ import main
import sys
sys.argv = ["paralet"]
main()
"""


def run(program: str, sigint: signal.Handlers = signal.SIG_DFL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
    )


def test_the_command_starts_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["paralet"] == "testbed.__main__:main"


def test_ctrl_c_while_modules_are_imported_ends_it_without_a_word() -> None:
    ended = run(INTERRUPT_WHILE_IMPORTING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_who_ignores_ctrl_c_goes_on() -> None:
    ended = run(INTERRUPT_WHILE_IMPORTING, signal.SIG_IGN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("paralet ")


@pytest.mark.parametrize("start", ["from testbed.__main__ import main", "from testbed.cli import main"])
def test_ctrl_c_later_is_a_sentence(start: str) -> None:
    ended = run(INTERRUPT_WHEN_IMPORTED.replace("from testbed.__main__ import main", start))
    assert (ended.returncode, ended.stderr.strip()) == (130, "paralet: interrupted")
