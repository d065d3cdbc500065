# SPDX-License-Identifier: Apache-2.0
"""The process of an OpenFlow app: its events, and how its end is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emul.openflow_app import OpenFlowAppError, OpenFlowAppProcess

TIMEOUT_S = 60


def started(folder: Path, *events: dict[str, object], then: str = "sys.stdin.read()") -> OpenFlowAppProcess:
    """An app that says these events, and then does something else."""
    lines = "".join(json.dumps(event) + "\n" for event in events)
    program = f"import sys; sys.stdout.write({lines!r}); sys.stdout.flush(); {then}"
    return OpenFlowAppProcess(["-c", program], folder / "topology.yaml", 1, folder / "app.log")


def told(app: OpenFlowAppProcess) -> str:
    """What `check` says once something is wrong: `wait_for` has read everything by then."""
    with pytest.raises(OpenFlowAppError):
        app.wait_for("nothing of this name", TIMEOUT_S)
    with pytest.raises(OpenFlowAppError) as raised:
        app.check()
    return str(raised.value)


def test_an_error_that_nobody_waited_for_is_told_by_a_check(tmp_path: Path) -> None:
    wrong = {"event": "error", "detail": "handler gone failed"}
    app = started(tmp_path, {"event": "ready"}, wrong, {"event": "links"})
    try:
        app.wait_for("ready", TIMEOUT_S)
        assert told(app) == f"the OpenFlow app reports: handler gone failed; see {tmp_path / 'app.log'}"
    finally:
        app.stop()


def test_the_end_of_an_app_is_told_and_that_it_was_stopped_is_not(tmp_path: Path) -> None:
    app = started(tmp_path, then="sys.exit(3)")
    try:
        assert told(app) == f"the OpenFlow app ended with status 3; see {tmp_path / 'app.log'}"
    finally:
        app.stop()
    stopped = started(tmp_path, {"event": "ready"})
    stopped.wait_for("ready", TIMEOUT_S)
    stopped.check()
    stopped.stop()
    stopped.check()
