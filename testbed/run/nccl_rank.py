# SPDX-License-Identifier: Apache-2.0
"""A rank of the real NCCL: the agent starts `python -m testbed.nccl.rank` on the CPU device, in its host's namespaces.

NCCL finds its peers by the unique identifier of rank 0, which goes to the other ranks as a listener handle does. It
configures the plugin's device by environment variables, as in any job. NCCL's log is in the agent's.
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
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hostlib.stats import DeviceSnapshot
from testbed.analysis.observations import LaneCounters
from testbed.errors import PeerLostError, TestbedError
from testbed.nccl import devices, environment, netlog
from testbed.nccl.elements import COPY, TYPES
from testbed.nccl.results import Setup
from testbed.run import agent_messages as messages
from testbed.run.native_rank import lane_counters, path_client_counters, plugin_environment, settled_counters
from testbed.workloads import NcclCollective

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
    """One policy and seed of one rank."""

    def __init__(self, command: messages.Prepare, workload: NcclCollective) -> None:
        self._command = command
        self._workload = workload
        self._transport = _TRANSPORTS[command.transport]
        self._before: dict[tuple[str, int], LaneCounters] = {}
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="paralet-nccl-"))
            self._log = Path(folder, "nccl.log")
            libraries = devices.find("cpu", workload.version, None)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testbed.nccl.rank", *libraries.words(), "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment(),
            )
            undo.callback(self._end)
            self._unique_id = ""
            if command.rank == 0:
                self._unique_id = self._ask({"op": "unique_id"}, _JOIN_S)["unique_id"]
            self._undo = undo.pop_all()

    def prepared(self) -> messages.Prepared:
        """Rank 0 gives NCCL's identifier to all others, as the handle that they connect to."""
        peers = range(1, self._command.ranks) if self._command.rank == 0 else ()
        return messages.Prepared(handles=dict.fromkeys(peers, self._unique_id))

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Join the communicator and run the collective once, with a message of the warm-up's size per connection."""
        own, ranks = self._command, self._command.ranks
        unique_id = self._unique_id or command.handles[0]
        self._ask({"op": "join", "unique_id": unique_id, "rank": own.rank, "ranks": ranks}, command.timeout_s)
        size = ranks * own.device.warm_up_bytes
        self._ask({"op": "warm_up", **self._what(size), "timeout_s": command.timeout_s}, 2 * command.timeout_s)
        fault = netlog.fault(self._log.read_text(errors="replace"), self._transport)
        if fault:
            raise TestbedError(f"rank {own.rank}: {fault}")
        self._before = {(lane.peer, lane.lane): lane for lane in self._lanes()[0]}
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        """Run the workload."""
        workload, own = self._workload, self._command
        size = workload.bytes * (own.ranks if workload.collective == "all_gather" else 1)
        asked = {"op": "run_at", **self._what(size), "at_s": command.at_s, "iterations": workload.iterations}
        report = self._ask({**asked, "timeout_s": command.timeout_s}, 2 * command.timeout_s)
        lanes, snapshot = self._lanes()
        sources = {transfer.src for transfer in workload.schedule(own.ranks, own.seed) if transfer.dst == own.rank}
        if report["wrong"]:
            print(report["sentence"], file=sys.stderr)
        return messages.Finished(
            finished_s=report["finished_s"],
            step_finished_s=[report["finished_s"]],  # NCCL does not say when steps end, nor when a peer's data arrived
            last_arrival_s=dict.fromkeys(sources, report["finished_s"]),
            wrong_bytes=report["wrong"] * TYPES[workload.dtype].width,
            lanes=[lane.since(self._before.get((lane.peer, lane.lane))) for lane in lanes],
            discards={} if snapshot is None else asdict(snapshot.discards),
            path_client={} if snapshot is None else path_client_counters(snapshot),
        )

    def close(self) -> None:
        """Leave the communicator, and end the process."""
        try:
            self._ask({"op": "leave"}, _END_TIMEOUT_S)
        finally:
            self._undo.close()

    def _environment(self) -> dict[str, str]:
        import nccl_net_plugin

        own = self._command
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PARALET_")}
        plugin = nccl_net_plugin.path() if self._transport == environment.PLUGIN_TRANSPORT else None
        interface = f"={interface_of(own.device.address)}"
        told = environment.of_rank(inherited, self._transport, own.rank, plugin, interface, self._log, Setup("Ring"))
        told["NCCL_HOSTID"] = f"{told['NCCL_HOSTID']}-{own.job}"
        return told if plugin is None else told | plugin_environment(own.device)

    def _what(self, size: int) -> dict[str, Any]:
        collective = self._workload.collective
        redop = COPY if collective == "all_gather" else "sum"
        return {"collective": collective, "size": size, "element": self._workload.dtype, "redop": redop}

    def _lanes(self) -> tuple[list[LaneCounters], DeviceSnapshot | None]:
        """The counters of the plugin's device; none over NCCL's sockets. Raises TestbedError when it publishes none."""
        if self._transport != environment.PLUGIN_TRANSPORT:
            return [], None
        device = settled_counters(self._process.pid)
        return lane_counters(device), device

    def _ask(self, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer of the rank's process. Raises TestbedError if it fails, ends or is late; PeerLostError if it lost
        a peer.
        """
        assert self._process.stdin is not None  # both are pipes
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # its last answer says why
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TestbedError(f"NCCL did not finish '{command['op']}' within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise TestbedError(f"the process with NCCL ended during '{command['op']}'")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            kind = PeerLostError if answer["peer_lost"] else TestbedError
            raise kind(str(answer["failed"]))
        return answer

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
        with suppress(OSError):
            print(self._log.read_text(errors="replace"), file=sys.stderr, flush=True)
