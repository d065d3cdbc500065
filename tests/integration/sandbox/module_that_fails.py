# SPDX-License-Identifier: Apache-2.0
"""A sandboxed module whose tests write logs. The second and the third fail, by programs that say why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandboxed


def test_that_passes(tmp_path: Path) -> None:
    (tmp_path / "before.log").write_text("of the test before\n")


def test_that_fails(tmp_path: Path) -> None:
    logs = tmp_path / "results" / "small" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "results" / "latest").symlink_to("small")
    (logs / "agent-h1.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (logs / "agent-h2.log").write_text("")
    subprocess.run(["sh", "-c", "echo its log is ... >&2; exit 1"], check=True, capture_output=True, text=True)


def test_that_takes_too_long() -> None:
    raise subprocess.TimeoutExpired("paralet run", 1, stderr=b"bringing up leaf1\n")
