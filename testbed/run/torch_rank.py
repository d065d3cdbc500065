# SPDX-License-Identifier: Apache-2.0
"""A rank of a PyTorch training script, which the agent starts in its host's namespaces with torchrun's variables.

torchrun itself would only add a process per host that passes these variables on. The address of rank 0's store goes to
the other ranks as a listener handle does. The loop of the script, `paralet_torch.steps`, reports when it is ready,
begins when told, and reports every step.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from hostlib.stats import DeviceSnapshot
from netmodel.printable import printable, printable_lines
from testbed.analysis.observations import LaneCounters
from testbed.errors import PeerLostError, TestbedError
from testbed.run import agent_messages as messages
from testbed.run.native_rank import lane_counters, path_client_counters, plugin_environment, settled_counters
from testbed.run.nccl_rank import interface_of
from testbed.run.pinned_program import pinned
from testbed.workloads.torch_training import TorchTraining

_ROOT = Path(__file__).resolve().parents[2]
_END_TIMEOUT_S = 5.0
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BACKENDS = {"paralet": "paralet", "socket": "gloo"}


def _free_port(address: str) -> int:
    """A free TCP port for the store, which torch binds seconds later.

    It is below the ports that the kernel gives to other sockets of the host meanwhile (ip(7), ip_local_port_range).
    Raises TestbedError if none is found.
    """
    end = int(_LOCAL_PORTS.read_text().split()[0])
    for port in random.sample(range(max(1024, end - 10_000), max(end, 2024)), 100):
        with suppress(OSError), socket.create_server((address, port)):
            return port
    raise TestbedError(f"{address} has no free TCP port below {end}")


class TorchRun:
    """One policy and seed of one rank."""

    def __init__(self, command: messages.Prepare, workload: TorchTraining) -> None:
        self._command = command
        self._workload = workload
        self._backend = _BACKENDS[command.transport]
        self._store = ""
        if command.rank == 0:
            self._store = f"{command.device.address}:{_free_port(command.device.address)}"
        self._before: dict[tuple[str, int], LaneCounters] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._undo = ExitStack()
        folder = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="paralet-torch-"))
        self._errors = Path(folder, "stderr")

    def prepared(self) -> messages.Prepared:
        """Rank 0 gives the address of its store to all others."""
        peers = range(1, self._command.ranks) if self._command.rank == 0 else ()
        return messages.Prepared(handles=dict.fromkeys(peers, self._store))

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Start the script, which makes its connections and runs the steps of its warm-up."""
        own, workload = self._command, self._workload
        argv = [sys.executable, workload.script, "--backend", self._backend, "--parallel", workload.parallel]
        argv += ["--steps", str(workload.steps), "--seed", str(own.seed), *workload.arguments]
        argv, environment = pinned(argv, self._environment(self._store or command.handles[0]), own, own.device)
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,  # a reader's buffer would hide lines from the selector
                env=environment,
            )
        self._undo.callback(self._end)
        self._next("ready", time.monotonic() + command.timeout_s)
        self._before = {(lane.peer, lane.lane): lane for lane in self._lanes()[0]}
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        """Let the steps begin, and take their reports."""
        self._tell({"at_s": command.at_s})
        deadline = command.at_s + command.timeout_s
        ends: list[float] = []
        losses: list[float] = []
        for number in range(self._workload.steps):
            report = self._next("step", deadline)
            if report["step"] != number:
                raise TestbedError(f"the script reported step {report['step']} when step {number} was due")
            ends.append(report["at_s"])
            if report["loss"] is not None and not isfinite(report["loss"]):
                raise TestbedError(f"the script reported the loss {report['loss']} of step {number}")
            losses += [] if report["loss"] is None else [report["loss"]]
        self._next("done", deadline)
        lanes, snapshot = self._lanes()
        own = self._command
        transfers = self._workload.schedule(own.ranks, own.seed)
        sources = {transfer.src for transfer in transfers if transfer.dst == own.rank}
        return messages.Finished(
            finished_s=ends[-1],
            step_finished_s=ends,
            last_arrival_s=dict.fromkeys(sources, ends[-1]),  # the script does not say when a peer's data arrived
            wrong_bytes=0,  # the record compares the losses of all ranks
            lanes=[lane.since(self._before.get((lane.peer, lane.lane))) for lane in lanes],
            discards={} if snapshot is None else asdict(snapshot.discards),
            path_client={} if snapshot is None else path_client_counters(snapshot),
            losses=losses,
        )

    def close(self) -> None:
        """Let the script end, and kill it if it does not within 5 s."""
        try:
            if self._process is not None:
                self._tell({"end": True})
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_TIMEOUT_S)
        finally:
            self._undo.close()

    def _environment(self, store: str) -> dict[str, str]:
        own = self._command
        address, _, port = store.partition(":")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
        gloo = {"GLOO_SOCKET_IFNAME": interface_of(own.device.address)} if self._backend == "gloo" else {}
        return {
            **inherited,
            **plugin_environment(own.device),
            **gloo,
            "PARALET_STEPS": "stdin",
            "RANK": str(own.rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(own.ranks),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        }

    def _lanes(self) -> tuple[list[LaneCounters], DeviceSnapshot | None]:
        """The counters of the rank's device; none over Gloo. Raises TestbedError where they are not published."""
        if self._backend != "paralet":
            return [], None
        assert self._process is not None  # connect() started it
        snapshot = settled_counters(self._process.pid)
        return lane_counters(snapshot), snapshot

    def _tell(self, what: dict[str, Any]) -> None:
        assert self._process is not None  # connect() started it
        assert self._process.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):  # its end is reported by _next()
            self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def _next(self, kind: str, deadline: float) -> dict[str, Any]:
        """The script's next report with key `kind`, by that time of the monotonic clock. Other output goes to the log.

        Raises TestbedError when the report is late or the script is killed, and PeerLostError when the script fails,
        because every script fails when one does.
        """
        assert self._process is not None  # connect() started it
        assert self._process.stdout is not None  # it is a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self._process.stdout.readline()
                if not line:
                    raise self._ended(kind)
                if (report := _report(line)) is not None and kind in report:
                    return report
                print(printable(line.decode(errors="replace").rstrip().expandtabs()), file=sys.stderr, flush=True)
        limit = "connect_s" if kind == "ready" else "run_s"
        raise TestbedError(f"the script did not report '{kind}' in time; raise timeouts.{limit} if it only is slow")

    def _ended(self, kind: str) -> TestbedError:
        """The error of a script that has closed its output instead of reporting `kind`."""
        assert self._process is not None  # connect() started it
        try:
            status = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return TestbedError(f"the script closed its output before '{kind}'")
        if status < 0:
            return TestbedError(f"the script was ended by signal {signal.Signals(-status).name} before '{kind}'")
        if status == 0:
            return TestbedError(f"the script ended before '{kind}'; its loop must be paralet_torch.steps")
        said = self._errors.read_text(errors="replace").strip().splitlines()
        last = f": {said[-1].strip()}" if said else ""
        return PeerLostError(f"the script ended with status {status} before '{kind}'{last}")

    def _end(self) -> None:
        """Kill the script if it still runs, and copy its messages to the log."""
        assert self._process is not None  # connect() started it
        self._process.kill()
        self._process.communicate()
        print(printable_lines(self._errors.read_text(errors="replace")), file=sys.stderr, flush=True)


def _report(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None when there is none."""
    with suppress(ValueError):
        report = json.loads(line)
        if isinstance(report, dict):
            return report
    return None
