# SPDX-License-Identifier: Apache-2.0
"""Packet captures by tcpdump, one process and one file per port."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02


class CaptureError(Exception):
    """A capture cannot be made. The text is one sentence for the user."""


class Capture:
    """tcpdump on one interface, written to `file`. It captures by the time the constructor returns.

    prefix: argv prefix, such as the one that enters a host's namespace. Raises CaptureError when tcpdump is missing or
    does not start capturing within 10 s.
    """

    def __init__(self, interface: str, file: Path, prefix: Sequence[str] = ()) -> None:
        log = file.with_suffix(".log")
        with log.open("wb") as messages:
            try:
                self._process = subprocess.Popen(
                    # -Z root: otherwise it drops root before it opens the file; -U: readable while it is written
                    [*prefix, "tcpdump", "-i", interface, "-w", str(file), "-U", "-n", "-Z", "root"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=messages,
                    process_group=0,
                )
            except FileNotFoundError as error:
                raise CaptureError(
                    f"packet captures need {error.filename}; install it with `apt install tcpdump`"
                ) from error
        deadline = time.monotonic() + _START_TIMEOUT_S
        while b"listening on" not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                words = log.read_text(errors="replace").strip()
                raise CaptureError(f"tcpdump does not capture on {interface}: {words or 'no answer'}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop capturing. tcpdump writes the packets that it still buffers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
