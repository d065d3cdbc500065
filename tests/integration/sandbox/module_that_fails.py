# SPDX-License-Identifier: Apache-2.0
"""A sandboxed module whose tests write logs. The second fails."""

from __future__ import annotations

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
    pytest.fail("the agent on h1 failed: its log is ...")
