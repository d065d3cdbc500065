# SPDX-License-Identifier: Apache-2.0
"""A rank that is a command of the user's, which the agent starts in its host's namespaces.

It gets the plugin's variables, as any job does, and those of `_environment`. Its output goes to the host's log.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from netmodel.printable import printable
from testbed.errors import TestbedError
from testbed.run import agent_messages as messages
from testbed.run.native_rank import plugin_environment
from testbed.run.pinned_program import pinned
from testbed.workloads.command import Commands

_OUTPUT_TIMEOUT_S = 5.0


class CommandRun:
    """One policy and seed of one rank."""

    def __init__(self, command: messages.Prepare, workload: Commands) -> None:
        self._command = command
        self._workload = workload
        self._program = workload.program(command.rank)
        self._addresses = {command.rank: command.device.address}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._last = ""

    def prepared(self) -> messages.Prepared:
        """Tell all other ranks the address."""
        others = (rank for rank in range(self._command.ranks) if rank != self._command.rank)
        return messages.Prepared(handles=dict.fromkeys(others, self._command.device.address))

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Start a command that says when it is ready, and wait until it is."""
        self._addresses |= command.handles
        if (ready := self._program.ready) is not None:
            self._begin()
            deadline = time.monotonic() + command.timeout_s
            while True:
                try:
                    line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    said = f"the command did not print {ready!r} within {command.timeout_s:g} s"
                    raise TestbedError(f"{said}; raise timeouts.connect_s if it only is slow") from None
                if line is None:
                    raise TestbedError(f"the command ended before it printed {ready!r}{self._said()}")
                if ready in line:
                    break
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        """Start the command, if it does not run yet, and wait for its end."""
        time.sleep(max(0.0, command.at_s - time.monotonic()))
        if self._process is None:
            self._begin()
        assert self._process is not None
        own = self._program
        limit_s = command.timeout_s if own.timeout_s is None else min(own.timeout_s, command.timeout_s)
        try:
            status = self._process.wait(max(0.0, command.at_s + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TestbedError(f"the command has not ended after {limit_s:g} s{self._said()}") from None
        finished_s = time.monotonic()
        self._reader.join(_OUTPUT_TIMEOUT_S)
        if status < 0:
            raise TestbedError(f"signal {signal.Signals(-status).name} ended the command{self._said()}")
        if status != own.status:
            raise TestbedError(f"the command ended with status {status}, not {own.status}{self._said()}")
        rank = self._command.rank
        transfers = self._workload.schedule(self._command.ranks, self._command.seed)
        return messages.Finished(
            finished_s=finished_s,
            step_finished_s=[finished_s],
            last_arrival_s={moved.src: finished_s for moved in transfers if moved.dst == rank},  # it does not say when
            wrong_bytes=0,
            lanes=[],
            discards={},
        )

    def close(self) -> None:
        """Kill what still runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(_OUTPUT_TIMEOUT_S)

    def _begin(self) -> None:
        argv, environment = pinned(
            ["sh", "-c", self._program.run], self._environment(), self._command, self._command.device
        )
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        self._reader.start()

    def _environment(self) -> dict[str, str]:
        own = self._command
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
        plugin = plugin_environment(own.device) if own.transport == "paralet" else {}
        return {
            **inherited,
            **plugin,
            "RANK": str(own.rank),
            "WORLD_SIZE": str(own.ranks),
            "SEED": str(own.seed),
            **{f"ADDRESS_{rank}": address for rank, address in self._addresses.items()},
            **self._program.environment,
        }

    def _read(self) -> None:
        """Copy the command's output to the log."""
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                print(printable(line.rstrip().expandtabs()), file=sys.stderr, flush=True)
                if any(map(str.isalnum, line)):  # neither a blank line nor a rule of dashes
                    self._last = line.strip()
                self._lines.put(line)
        self._lines.put(None)

    def _said(self) -> str:
        """The last line of the output that has a word, for the end of a sentence."""
        return f": {self._last}" if self._last else ""
