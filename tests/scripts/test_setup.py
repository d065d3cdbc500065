# SPDX-License-Identifier: Apache-2.0
"""``scripts/setup.sh`` tells its steps and how long each took, in a tree whose Python is a stub."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"setup: (?P<title>.+) \.\.\. \d+ s")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the script and a ``.venv`` whose Python does nothing, or fails where ``FAIL`` says."""
    for name in ("scripts/setup.sh", "pyproject.toml", "setup.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "called: $*" | tee -a "$(dirname "$0")/calls"\n'
        'case "$*" in *"${FAIL:-no such argument}"*) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    return tmp_path


def set_up(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "scripts" / "setup.sh"],
        env={**os.environ, "PARALET_SKIP_APT": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_step_is_a_line_with_its_duration(tree: Path) -> None:
    done = set_up(tree)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    titles = [match["title"] for match in map(STEP.fullmatch, lines) if match]
    assert len(titles) == len(lines), done.stderr
    assert [title.split()[0] for title in titles[:3]] == ["installing", "compiling", "installing"]
    assert done.stdout == ""


def test_a_step_that_fails_shows_its_output(tree: Path) -> None:
    done = set_up(tree, FAIL="build_ext")
    assert done.returncode == 1
    assert "called: setup.py --quiet build_ext --inplace" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("setup: '.venv/bin/python setup.py")


@pytest.mark.parametrize(("environment", "uses_lock"), [({}, True), ({"PARALET_UNLOCKED": "1"}, False)])
def test_python_311_gets_what_the_lock_says(tree: Path, environment: dict[str, str], uses_lock: bool) -> None:
    version = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True, check=True).stdout
    (tree / "requirements.lock").write_text("click==8.1.0\n")
    done = set_up(tree, **environment)
    assert done.returncode == 0, done.stderr
    calls = (tree / ".venv" / "bin" / "calls").read_text()
    expected = uses_lock and version.startswith("Python 3.11.")
    assert ("--require-hashes --only-binary :all: --requirement requirements.lock" in calls) == expected
    assert ("--editable .[dev]" in calls) != expected
