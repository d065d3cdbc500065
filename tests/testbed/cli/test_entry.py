# SPDX-License-Identifier: Apache-2.0
"""The start of `paralet`: the effect of Ctrl-C before and after the imports of the command line."""

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


def test_the_entry_point_is_testbed_main() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["paralet"] == "testbed.__main__:main"


OPEN_FILES = """
import resource, sys
from testbed.cli import main
from testbed.errors import sentence_of
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
main(["predict", "--help"], standalone_mode=False)
soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
files = []
try:
    while len(files) < 1000:
        files.append(open("/dev/null"))
except OSError as error:
    print(soft, sentence_of(error))
else:
    print(soft, "enough")
"""


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (2000, "2000 enough"),
        (100, "100 this process may open 100 files and needs more; raise the limit (`ulimit -n`), or take a smaller"),
    ],
)
def test_a_command_may_open_as_many_files_as_the_hard_limit_allows(hard: int, said: str) -> None:
    """A spec with some hundred hosts needs more than the usual soft limit. What is too low is named."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_FILES, str(hard)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].startswith(said)


def test_ctrl_c_during_imports_ends_the_process_silently() -> None:
    ended = run(INTERRUPT_WHILE_IMPORTING)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_during_imports_is_ignored_if_the_parent_ignores_it() -> None:
    ended = run(INTERRUPT_WHILE_IMPORTING, signal.SIG_IGN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("paralet ")


@pytest.mark.parametrize("start", ["from testbed.__main__ import main", "from testbed.cli import main"])
def test_ctrl_c_after_imports_prints_one_line(start: str) -> None:
    ended = run(INTERRUPT_WHEN_IMPORTED.replace("from testbed.__main__ import main", start))
    assert (ended.returncode, ended.stderr.strip()) == (130, "paralet: interrupted")
