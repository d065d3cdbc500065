# SPDX-License-Identifier: Apache-2.0
"""An os-ken app of the user's as a process: how it is loaded, and what its mistakes look like."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from netmodel import dump_topology, leaf_spine

pytest.importorskip("os_ken")

START_TIMEOUT_S = 100

APP = """
import os
from os_ken.base.app_manager import OSKenApp
from netmodel import load_topology

class Mine(OSKenApp):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        print("I know of", len(load_topology(os.environ["PARALET_TOPOLOGY"]).switches), "switches")
"""


def started(tmp_path: Path, app: str | None, port: int) -> subprocess.Popen[str]:
    """The process of an app with this text, or of one that is missing."""
    file = tmp_path / "mine.py"
    if app is not None:
        file.write_text(app)
    topology = tmp_path / "topology.yaml"
    topology.write_text(dump_topology(leaf_spine(2, 2, 1, 1_000_000)))
    words = ["-m", "sdn.openflow.own_app", str(file), "--topology", str(topology), "--port", str(port)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, **pipes)  # type: ignore[call-overload,no-any-return]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_an_app_prints_goes_to_the_log_and_events_to_standard_output(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, APP, port) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"event": "listening", "port": port}
        process.terminate()
        rest, log = process.communicate(timeout=START_TIMEOUT_S)
    assert (process.returncode, rest) == (0, "")
    assert "I know of 4 switches\n" in log


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        (None, "cannot be loaded: ModuleNotFoundError"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("class Mine: pass", "mine.py has no os-ken app, that is no class derived from os_ken.base.app_manager"),
    ],
)
def test_an_app_that_cannot_run_is_one_sentence_and_status_2(tmp_path: Path, app: str | None, sentence: str) -> None:
    process = started(tmp_path, app, free_port())
    events, log = process.communicate(timeout=START_TIMEOUT_S)
    assert (process.returncode, events) == (2, "")
    last = log.splitlines()[-1]
    assert last.startswith(f"sdn.openflow.own_app: {tmp_path}")
    assert sentence in last
