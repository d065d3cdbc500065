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


# By package: what apt-cache prints of it, and its exit status. A name that other packages provide has status 0, too.
SHOWN = {"real": ("Package: real", 0), "provided": ("", 0), "unknown": ("", 100)}


def test_packages_for_checks_that_a_release_lacks_are_left_out_and_told_once(tree: Path) -> None:
    """On Ubuntu 24.04 chromium is no package, but a package that installs a snap provides it."""
    shown = "\n".join(f'{name}) printf "{text}"; exit {status} ;;' for name, (text, status) in SHOWN.items())
    stubs = {
        "apt-cache": f'case "$2" in\n{shown}\nesac',
        "apt-get": f'echo "$*" >>"{tree}/asked"',
        "dpkg-query": f'case "$*" in *real) grep -q real "{tree}/asked" && printf installed ;; esac',
    }
    for name, script in stubs.items():
        (tree / name).write_text(f"#!/bin/sh\n{script}\n")
        (tree / name).chmod(0o755)
    (tree / "scripts" / "apt-packages.txt").touch()
    (tree / "scripts" / "apt-packages-check.txt").write_text("".join(f"{name}\n" for name in SHOWN))
    argv = ["unshare", "--user", "--map-root-user", "env", "--unset=PARALET_SKIP_APT", str(tree / "scripts/setup.sh")]
    environment = {**os.environ, "PATH": f"{tree}:{os.environ['PATH']}"}
    for is_told in (True, False):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("this release has no provided unknown" in done.stderr) == is_told
    asked = ["update -q", "install -q -y --no-install-recommends real"]
    assert (tree / "asked").read_text().splitlines() == asked


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
