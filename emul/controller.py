# SPDX-License-Identifier: Apache-2.0
"""The controller process of a fabric (`python -m sdn.app`): started, watched by its event lines, stopped."""

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_STOP_TIMEOUT_S = 5.0


class ControllerError(Exception):
    """The controller ended, reported an error or said nothing in time; the text is one sentence for the user."""


class ControllerProcess:
    """`sdn.app` for one topology file. Its log is `log_file`; its events are read by a thread."""

    def __init__(self, topology_file: Path, port: int, log_file: Path) -> None:
        self._log_file = log_file
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sdn.app", "--topology", str(topology_file), "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C is for the run, which then stops the controller in its own order
            )
        self._reader = threading.Thread(target=self._read, name="controller-events", daemon=True)
        self._reader.start()

    def wait_for(self, event: str, timeout_s: float, **fields: object) -> dict[str, Any]:
        """The next event of that name with those fields; others are passed over. Raises ControllerError."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ControllerError(
                    f"the controller did not report {event!r} in {timeout_s:.0f} s; see {self._log_file}"
                ) from None
            if got is None:
                status = self._process.wait()
                raise ControllerError(f"the controller ended with status {status}; see {self._log_file}")
            if got.get("event") == "error":
                raise ControllerError(f"the controller reports: {got.get('detail')}; see {self._log_file}")
            if got.get("event") == event and all(got.get(name) == value for name, value in fields.items()):
                return got

    def stop(self) -> None:
        """Ask it to stop, and make it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(_STOP_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    self._events.put(json.loads(line))
                except ValueError:
                    self._events.put({"event": "error", "detail": f"not an event: {line.strip()}"})
        self._events.put(None)
