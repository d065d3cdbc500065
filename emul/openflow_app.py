# SPDX-License-Identifier: Apache-2.0
"""The OpenFlow app of a fabric as a process, ours or one of the user's: starts it, reads its events, stops it."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sdn.openflow.source_rules import Pinning
from sdn.openflow.steering import Steer

_STOP_TIMEOUT_S = 5.0


class OpenFlowAppError(Exception):
    """The OpenFlow app ended, reported an error or did not report in time; the text is one sentence for the user."""


def our_app(pinning: Pinning) -> list[str]:
    """The arguments of Python for the app that programs switches as `netmodel.forwarding` says."""
    return ["-m", "sdn.openflow.app", "--pinning", pinning]


def own_app(file: Path) -> list[str]:
    """The arguments of Python for an os-ken app of the user's."""
    return ["-m", "sdn.openflow.own_app", str(file)]


class OpenFlowAppProcess:
    """Runs an app for one topology file. Its log is `log_file`; a thread reads its events.

    app: `our_app` or `own_app`.

    That thread calls `on_event` for every event, before `wait_for` returns it; `on_event` must not raise or block.
    """

    def __init__(
        self,
        app: Sequence[str],
        topology_file: Path,
        port: int,
        log_file: Path,
        on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._log_file = log_file
        self._failed = ""
        self._is_stopping = False
        self._on_event = on_event
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *app, "--topology", str(topology_file), "--port", str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C goes to the run, which stops the OpenFlow app in due order
            )
        self._reader = threading.Thread(target=self._read, name="openflow-app-events", daemon=True)
        self._reader.start()

    def wait_for(self, event: str, timeout_s: float, **fields: object) -> dict[str, Any]:
        """The next event of this name with these fields; other events are skipped. Raises OpenFlowAppError."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise OpenFlowAppError(
                    f"the OpenFlow app did not report {event!r} in {timeout_s:.0f} s; see {self._log_file}"
                ) from None
            if got is None or got.get("event") == "error":
                self.check()
            elif got.get("event") == event and all(got.get(name) == value for name, value in fields.items()):
                return got

    def check(self) -> None:
        """Raises OpenFlowAppError if it has reported an error, or has ended by itself, since it was started."""
        if self._failed:
            raise OpenFlowAppError(f"{self._failed}; see {self._log_file}")

    def steer(self, order: Steer, timeout_s: float) -> None:
        """Apply a steering; returns when switches have confirmed it. Raises OpenFlowAppError."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: wait_for reports its status
            self._process.stdin.write(order.model_dump_json() + "\n")
            self._process.stdin.flush()
        self.wait_for("steered", timeout_s)

    def stop(self) -> None:
        """Terminate it, and kill it if it does not end within _STOP_TIMEOUT_S."""
        self._is_stopping = True
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(_STOP_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {"event": "error", "detail": f"not an event: {line.strip()}"}
                if event.get("event") == "error":
                    self._failed = self._failed or f"the OpenFlow app reports: {event.get('detail')}"
                self._on_event(event)
                self._events.put(event)
        if not self._is_stopping:
            self._failed = self._failed or f"the OpenFlow app ended with status {self._process.wait()}"
        self._events.put(None)
