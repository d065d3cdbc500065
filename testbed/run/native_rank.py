# SPDX-License-Identifier: Apache-2.0
"""A rank that runs as a native program: the agent starts `paralet-nccl-driver` over the NCCL net plugin.

The driver speaks the agents' protocol (`agent_messages`) with two exceptions: the plugin publishes the counters
(`hostlib.stats`), and it takes the device's configuration from environment variables, as in any job.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hostlib.stats import DeviceSnapshot, survey
from testbed.analysis.observations import LaneCounters
from testbed.errors import PeerLostError, TestbedError
from testbed.run import agent_messages as messages
from testbed.workloads.nccl import STEPS, NcclAllreduce

_COUNTERS_TIMEOUT_S = 30.0
_COUNTERS_PAUSE_S = 0.02
_PUBLISHED_S = 0.25
"""Counters are published every 0.1 s: after this time they include all that came before."""

_END_TIMEOUT_S = 5.0


def plugin_environment(device: messages.DeviceConfig) -> dict[str, str]:
    """The environment variables that configure the plugin's device. Unset options keep the engine's defaults."""
    ports = ";".join(f"{peer}={','.join(map(str, ports))}" for peer, ports in (device.ports or {}).items())
    segments = ";".join(f"{peer}={'|'.join(map(','.join, lanes))}" for peer, lanes in (device.segments or {}).items())
    values = {
        "PARALET_ADDRESSES": device.address,
        "PARALET_BACKEND": device.backend,
        "PARALET_LANES": device.lanes,
        "PARALET_LANES_PER": device.lanes_per,
        "PARALET_POLICY": device.policy,
        "PARALET_PORTS": ports or None,
        "PARALET_SEGMENTS": segments or None,
        "PARALET_SEED": device.seed,
        "PARALET_PATH_MTU": device.path_mtu,
        "PARALET_LINE_RATE": f"{device.line_rate_bps}bit/s",
        "PARALET_FLOWLET_BYTES": device.flowlet_bytes,
        "PARALET_MICE_BYTES": device.mice_bytes,
        "PARALET_CONGESTION_CONTROL": device.congestion_control,
        "PARALET_WINDOW_PACKETS": device.window_packets,
        "PARALET_PATH_SERVICE": device.path_service,
        "PARALET_PATH_SERVICE_TOKEN_FILE": device.token_file,
        "PARALET_JOB": device.job,
        "PARALET_ELEPHANT_BYTES": device.elephant_bytes,
        "PARALET_ASSIGN_WAIT": None if device.assign_wait_s is None else f"{round(device.assign_wait_s * 1e6)}us",
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def driver_arguments(
    command: messages.Prepare, workload: NcclAllreduce, plugin: Path, place: int | None = None
) -> list[str]:
    """The driver's options for that rank; `place` is its place in a ring other than that of all ranks in order."""
    options: dict[str, object] = {
        "--collective": workload.collective,
        "--transport": plugin,
        "--ranks": command.ranks,
        "--rank": command.rank if place is None else place,
        "--bytes": workload.bytes,
        "--slice-bytes": workload.slice_elements(command.ranks) * workload.item_bytes,
        "--steps": STEPS,
        "--warm-up-bytes": command.device.warm_up_bytes,
        "--seed": command.seed,
        "--idle": "nap",  # the other ranks and the fabric need the processors
    }
    return [str(word) for option in options.items() for word in option]


class NativeRun:
    """One policy and seed of one rank: a driver for each ring of the workload."""

    def __init__(self, command: messages.Prepare, workload: NcclAllreduce) -> None:
        devices = {target: other.device for other in command.others for target, _ in other.targets}
        with ExitStack() as undo:
            self._drivers: list[_Driver] = []
            for stride, part in workload.processes:
                device = devices.get((command.rank + stride) % command.ranks, command.device)
                self._drivers.append(_Driver(command, part, stride, device))
                undo.callback(self._drivers[-1].end)
            self._handles: dict[int, str] = {}
            for driver in self._drivers:
                self._handles |= driver.handles()
            undo.pop_all()

    def prepared(self) -> messages.Prepared:
        """The listener handles for the ranks that connect to this one."""
        return messages.Prepared(handles=self._handles)

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Connect to the peers, and send one message over each connection."""
        for driver in self._drivers:
            driver.connect(command)
        for driver in self._drivers:
            driver.connected()
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        """Run the collective once. Returns when it is done."""
        for driver in self._drivers:
            driver.send(command)
        reports = [driver.finished() for driver in self._drivers]
        discards, path_client = Counter[str](), Counter[str]()
        last_arrival_s: dict[int, float] = {}
        for report in reports:
            discards.update(report.discards)
            path_client.update(report.path_client)
            last_arrival_s |= report.last_arrival_s
        steps = zip_longest(*(report.step_finished_s for report in reports), fillvalue=0.0)
        return messages.Finished(
            finished_s=max(report.finished_s for report in reports),
            step_finished_s=[max(step) for step in steps],
            last_arrival_s=last_arrival_s,
            wrong_bytes=sum(report.wrong_bytes for report in reports),
            lanes=[lane for report in reports for lane in report.lanes],
            discards=dict(discards),
            path_client=dict(path_client),
        )

    def close(self) -> None:
        """Ask the drivers to end, and kill those that do not within 5 s."""
        with ExitStack() as all_of_them:
            for driver in self._drivers:
                all_of_them.callback(driver.close)


class _Driver:
    """A process, whose ranks are places in the ring "+stride": the rank at place p is p * stride."""

    def __init__(
        self, command: messages.Prepare, part: NcclAllreduce, stride: int, device: messages.DeviceConfig
    ) -> None:
        import nccl_net_plugin
        from nccl_net_plugin.programs import driver_program

        self._rank_at = [place * stride % command.ranks for place in range(command.ranks)]
        place = self._rank_at.index(command.rank)
        argv = [str(driver_program()), *driver_arguments(command, part, nccl_net_plugin.path(), place)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
        self._address = device.address
        self._before: dict[tuple[str, int], LaneCounters] = {}
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, **plugin_environment(device)},
        )

    def handles(self) -> dict[int, str]:
        """The listener handle for each rank that connects to this one."""
        return {self._rank_at[int(place)]: handle for place, handle in self._receive("prepared")["handles"].items()}

    def connect(self, command: messages.Connect) -> None:
        """Begin to connect to those of the ranks that the ring has."""
        place_of = {rank: place for place, rank in enumerate(self._rank_at)}
        self.send(command.model_copy(update={"handles": {place_of[rank]: h for rank, h in command.handles.items()}}))

    def connected(self) -> None:
        """Wait until all connections are there and warm."""
        snapshot = _counters_at_rest(self._process.pid, self._receive("connected")["messages_sent"])
        self._before = {(lane.peer, lane.lane): lane for lane in lane_counters(snapshot)}

    def finished(self) -> messages.Finished:
        """The report of the driver's part, with the ranks of the run."""
        report = self._receive("finished")
        snapshot = _counters_at_rest(self._process.pid, report["messages_sent"])
        lanes = [lane.since(self._before.get((lane.peer, lane.lane))) for lane in lane_counters(snapshot)]
        return messages.Finished(
            finished_s=report["finished_s"],
            step_finished_s=report["step_finished_s"],
            last_arrival_s={self._rank_at[int(place)]: at_s for place, at_s in report["last_arrival_s"].items()},
            wrong_bytes=report["wrong_bytes"],
            lanes=[lane.model_copy(update={"local": self._address}) for lane in lanes],
            discards=asdict(snapshot.discards),
            path_client=path_client_counters(snapshot),
        )

    def close(self) -> None:
        """Ask the driver to end, and kill it if it does not within 5 s."""
        try:
            if self._process.poll() is None:
                self.send(messages.Close())
                self._receive("closed")
                self._process.wait(_END_TIMEOUT_S)
        finally:
            self.end()

    def end(self) -> None:
        """Kill the driver."""
        self._process.kill()
        self._process.communicate()

    def send(self, command: messages.Command) -> None:
        """Send a command; a driver that has ended says why where its report is received."""
        assert self._process.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):
            print(command.model_dump_json(), file=self._process.stdin, flush=True)

    def _receive(self, event: str) -> dict[str, Any]:
        """The next report, which must be `event`. The driver enforces the time limits of commands itself.

        Raises TestbedError when it reports a failure or another event, or ends; PeerLostError when it lost a peer.
        """
        assert self._process.stdout is not None  # it is a pipe
        line = self._process.stdout.readline()
        if not line:
            raise TestbedError(f"paralet-nccl-driver ended before it was {event}")
        report: dict[str, Any] = json.loads(line)
        if report["event"] == "failed":
            kind = PeerLostError if report["peer_lost"] else TestbedError
            raise kind(str(report["error"]))
        if report["event"] != event:
            raise TestbedError(f"paralet-nccl-driver reported '{report['event']}' when '{event}' was expected")
        return report


def settled_counters(pid: int) -> DeviceSnapshot:
    """The counters of the device of another process, including all that was sent before the call.

    Raises TestbedError when the process has published none within 30 s, or has not sent all by then.
    """
    time.sleep(_PUBLISHED_S)
    return _counters_at_rest(pid)


def _counters_at_rest(pid: int, messages_sent: int = 0) -> DeviceSnapshot:
    """The counters of the device of a process, once they include that many sent messages and no message is under way.

    A short message counts as sent when the device has copied it, which may be before its packets leave. Counters are
    published every 0.1 s. Raises TestbedError after 30 s.
    """
    deadline = time.monotonic() + _COUNTERS_TIMEOUT_S
    while True:
        for process in survey([pid]).processes:
            (device,) = process.devices
            under_way = any(connection.sends + connection.in_flight for connection in device.under_way)
            if device.messages.sends >= messages_sent and not under_way:
                return device
        if time.monotonic() > deadline:
            raise TestbedError("the rank's device has not published the counters of this run")
        time.sleep(_COUNTERS_PAUSE_S)


def path_client_counters(snapshot: DeviceSnapshot) -> dict[str, int]:
    """Counters of the path client, with policy `controller`."""
    counted = {} if snapshot.path_client is None else asdict(snapshot.path_client)
    return {name: int(count) for name, count in counted.items() if name != "since_s"}


def lane_counters(snapshot: DeviceSnapshot) -> list[LaneCounters]:
    """Counters of the lanes of a device."""
    fields = [name for name in LaneCounters.model_fields if name not in ("rtt_s", "local")]
    return [
        LaneCounters(**{name: getattr(lane, name) for name in fields}, rtt_s=lane.rtt_s or None)
        for lane in snapshot.lanes
    ]
