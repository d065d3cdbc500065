# SPDX-License-Identifier: Apache-2.0
"""The units of systemd: what they run exists, and they may do little."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.commands import check

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 20
"""In tenths: of 10.0, where 0 is a service that may do nothing."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_runs_a_command_that_exists(unit: Path) -> None:
    text = unit.read_text()
    (line,) = re.findall(r"^ExecStart=/usr/bin/(.*)$", text, re.MULTILINE)
    environment = dict(word.split("=") for word in re.findall(r"^Environment=(.*)$", text, re.MULTILINE)[0].split())
    folders = {"STATE_DIRECTORY": "/var/lib/paralet", "LOGS_DIRECTORY": "/var/log/paralet", "OPTIONS": ""}
    values = {**folders, **environment}
    check(shlex.split(re.sub(r"\$\{?(\w+)\}?", lambda name: values[name[1]], line)))


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze is here: apt install systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_exposed_little(unit: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED}"
    command = [str(ANALYZE), "security", "--offline=true", threshold, "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout
