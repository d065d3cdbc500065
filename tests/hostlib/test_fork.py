# SPDX-License-Identifier: Apache-2.0
"""A forked child has a copy of its parent's objects, but neither their threads nor a right to their sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("fork_process.py")
REFUSED = "DeviceError: the {} is the parent process's: a forked child opens its own"
OF_THE_GROUP = {"all_reduce", "all_gather", "barrier", "group.send", "group.recv", "take_finished", "abort"}


def test_a_forked_child_gets_an_error_from_every_call_and_does_not_disturb_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    child, parent = map(json.loads, done.stdout.splitlines())
    assert child.pop("inherited") == "[True, True]"
    assert child.pop("own") == "the child's own"
    assert child == {
        call: REFUSED.format("group" if call in OF_THE_GROUP or call.startswith("operation") else "device")
        for call in child
    }
    assert len(child) == 24
    assert parent == {
        "child ended with": 0,
        "before": [200.0, 200.0],
        "after": [200.0, 200.0],
        "message": "0123456789",
        "sums": [20.0, 20.0],
        "inherited": "[False, False]",
    }
