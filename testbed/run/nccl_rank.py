# SPDX-License-Identifier: Apache-2.0
"""A rank of the real NCCL: the agent starts `python -m testbed.nccl.rank` on the CPU device, in its host's namespaces.

NCCL finds its peers by the unique identifiers of rank 0, one for each ring of the workload, which go to the other ranks
as listener handles do. It configures the plugin's device by environment variables, as in any job. NCCL's log is in the
agent's.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hostlib.stats import DeviceSnapshot
from netmodel.printable import printable, printable_lines
from testbed.analysis.observations import LaneCounters
from testbed.errors import PeerLostError, TestbedError
from testbed.nccl import devices, environment, netlog
from testbed.nccl.elements import COPY, TYPES
from testbed.nccl.results import Setup
from testbed.run import agent_messages as messages
from testbed.run.native_rank import lane_counters, path_client_counters, plugin_environment, settled_counters
from testbed.run.pinned_program import pinned
from testbed.workloads.nccl import NcclCollective

_JOIN_S = 120.0
_END_TIMEOUT_S = 5.0
_SIOCGIFADDR = 0x8915
_TRANSPORTS = {"paralet": environment.PLUGIN_TRANSPORT, "socket": "Socket"}


def interface_of(address: str) -> str:
    """The name of this namespace's network interface with an IPv4 address. Raises TestbedError where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    raise TestbedError(f"no network interface has the address {address}")


class NcclRun:
    """One policy and seed of one rank: a process for each ring of the workload."""

    def __init__(self, command: messages.Prepare, workload: NcclCollective) -> None:
        self._command = command
        self._workload = workload
        devices = {target: other.device for other in command.others for target, _ in other.targets}
        with ExitStack() as undo:
            self._rings: list[_Ring] = []
            for stride, part in workload.processes:
                device = devices.get((command.rank + stride) % command.ranks, command.device)
                self._rings.append(_Ring(command, part, stride, device))
                undo.callback(self._rings[-1].end)
            self._unique_ids = ""
            if command.rank == 0:
                self._unique_ids = " ".join(ring.unique_id() for ring in self._rings)
            undo.pop_all()

    def prepared(self) -> messages.Prepared:
        """Rank 0 gives NCCL's identifiers to all others, as the handle that they connect to."""
        peers = range(1, self._command.ranks) if self._command.rank == 0 else ()
        return messages.Prepared(handles=dict.fromkeys(peers, self._unique_ids))

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Join the communicators and run the collective once, with a message of the warm-up's size per connection."""
        unique_ids = (self._unique_ids or command.handles[0]).split()
        for ring, unique_id in zip(self._rings, unique_ids, strict=True):
            ring.connect(unique_id, command.timeout_s)
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        """Run the workload."""
        for ring in self._rings:
            ring.start(command)
        reports = [ring.finished(command.timeout_s) for ring in self._rings]
        own = self._command
        finished_s = max(report["finished_s"] for report in reports)
        schedule = self._workload.schedule(own.ranks, own.seed)
        sources = {transfer.src for transfer in schedule if transfer.dst == own.rank}
        lanes: list[LaneCounters] = []
        discards, path_client = Counter[str](), Counter[str]()
        for ring in self._rings:
            snapshot = ring.snapshot()
            if snapshot is not None:
                lanes += ring.lanes(snapshot)
                discards.update(asdict(snapshot.discards))
                path_client.update(path_client_counters(snapshot))
        for report in reports:
            if report["wrong"]:
                print(printable(report["sentence"]), file=sys.stderr)
        return messages.Finished(
            finished_s=finished_s,
            step_finished_s=[finished_s],  # NCCL does not say when steps end, nor when a peer's data arrived
            last_arrival_s=dict.fromkeys(sources, finished_s),
            wrong_bytes=sum(report["wrong"] for report in reports) * TYPES[self._workload.dtype].width,
            lanes=lanes,
            discards=dict(discards),
            path_client=dict(path_client),
        )

    def close(self) -> None:
        """Leave the communicators, and end the processes."""
        with ExitStack() as all_of_them:
            for ring in self._rings:
                all_of_them.callback(ring.close)


class _Ring:
    """A process, whose ranks are places in the ring "+stride": the rank at place p is p * stride."""

    def __init__(
        self, command: messages.Prepare, part: NcclCollective, stride: int, device: messages.DeviceConfig
    ) -> None:
        self._command = command
        self._workload = part
        self._device = device
        self._place = [place * stride % command.ranks for place in range(command.ranks)].index(command.rank)
        self._transport = _TRANSPORTS[command.transport]
        self._before: dict[tuple[str, int], LaneCounters] = {}
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="paralet-nccl-"))
            self._log = Path(folder, "nccl.log")
            libraries = devices.find("cpu", part.version, None)
            program = [sys.executable, "-m", "testbed.nccl.rank", *libraries.words(), "0"]
            argv, variables = pinned(program, self._environment(), command, device)
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)
            undo.callback(self._end)
            self._undo = undo.pop_all()

    def unique_id(self) -> str:
        """The identifier that all of the ring need. Only for place 0."""
        return str(self._ask({"op": "unique_id"}, _JOIN_S)["unique_id"])

    def connect(self, unique_id: str, timeout_s: float) -> None:
        """Join the communicator, run the collective once, and prepare the run."""
        ranks, workload = self._command.ranks, self._workload
        self._ask({"op": "join", "unique_id": unique_id, "rank": self._place, "ranks": ranks}, timeout_s)
        size = ranks * self._device.warm_up_bytes
        self._ask({"op": "warm_up", **self._what(size), "timeout_s": timeout_s}, 2 * timeout_s)
        fault = netlog.fault(self._log.read_text(errors="replace"), self._transport)
        if fault:
            raise TestbedError(f"rank {self._command.rank}: {fault}")
        size = workload.bytes * (ranks if workload.collective == "all_gather" else 1)
        self._ask({"op": "prepare", **self._what(size)}, timeout_s)
        if (snapshot := self.snapshot()) is not None:
            self._before = {(lane.peer, lane.lane): lane for lane in lane_counters(snapshot)}

    def start(self, command: messages.Start) -> None:
        """Tell the process when to begin."""
        asked = {"op": "run_at", "at_s": command.at_s, "iterations": self._workload.iterations}
        self._tell({**asked, "timeout_s": command.timeout_s})

    def finished(self, timeout_s: float) -> dict[str, Any]:
        """What the process reports of its run."""
        return self._answer("run_at", 2 * timeout_s)

    def snapshot(self) -> DeviceSnapshot | None:
        """The plugin's device; None over NCCL's sockets. Raises TestbedError when it publishes no counters."""
        return settled_counters(self._process.pid) if self._transport == environment.PLUGIN_TRANSPORT else None

    def lanes(self, snapshot: DeviceSnapshot) -> list[LaneCounters]:
        """What the lanes of the plugin's device have carried since it was connected."""
        lanes = [lane.since(self._before.get((lane.peer, lane.lane))) for lane in lane_counters(snapshot)]
        return [lane.model_copy(update={"local": self._device.address}) for lane in lanes]

    def close(self) -> None:
        """Leave the communicator, and end the process."""
        try:
            self._ask({"op": "leave"}, _END_TIMEOUT_S)
        finally:
            self.end()

    def end(self) -> None:
        """Kill the process."""
        self._undo.close()

    def _environment(self) -> dict[str, str]:
        import nccl_net_plugin

        own = self._command
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
        plugin = nccl_net_plugin.path() if self._transport == environment.PLUGIN_TRANSPORT else None
        interface = f"={interface_of(self._device.address)}"
        variables = environment.of_rank(
            inherited, self._transport, own.rank, plugin, interface, self._log, Setup("Ring")
        )
        variables["NCCL_HOSTID"] = f"{variables['NCCL_HOSTID']}-{own.job}"
        return variables if plugin is None else variables | plugin_environment(self._device)

    def _what(self, size: int) -> dict[str, Any]:
        collective = self._workload.collective
        redop = COPY if collective == "all_gather" else "sum"
        return {"collective": collective, "size": size, "element": self._workload.dtype, "redop": redop}

    def _ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._tell(command)
        return self._answer(command["op"], timeout_s)

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):  # its last answer says why
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self, operation: str, timeout_s: float) -> dict[str, Any]:
        """The answer of the rank's process. Raises TestbedError if it fails, ends or is late; PeerLostError if it lost
        a peer.
        """
        assert self._process.stdout is not None  # it is a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TestbedError(f"NCCL did not finish '{operation}' within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise TestbedError(f"the process with NCCL ended during '{operation}'")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            kind = PeerLostError if answer["peer_lost"] else TestbedError
            raise kind(str(answer["failed"]))
        return answer

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
        with suppress(OSError):
            print(printable_lines(self._log.read_text(errors="replace")), file=sys.stderr, flush=True)
