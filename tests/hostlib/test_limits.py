# SPDX-License-Identifier: Apache-2.0
"""Limits of the process: every error is one of the documented kinds, and says how to raise the limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("limits_process.py")


def test_an_error_names_the_limit_that_was_reached() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0]["error"] is None
    of_descriptors = [row["error"] for row in rows if row["what"] == "descriptors"]
    assert len(of_descriptors) > 10
    assert of_descriptors.pop() is None
    for kind, text in of_descriptors:
        assert kind in ("DeviceError", "TransportError", "TimeoutError")
        assert "Too many open files: raise the limit of this process with `ulimit -n`" in text
    kind, text = rows[-1]["error"]
    assert kind == "DeviceError"
    assert text.startswith("cannot start a thread: ")
    assert "`ulimit -u`" in text
