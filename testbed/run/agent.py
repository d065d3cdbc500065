# SPDX-License-Identifier: Apache-2.0
"""An agent: one rank, on one emulated host.

It reads commands and writes reports, one JSON object per line (`agent_messages`). All other output goes to standard
error, which the runner keeps as the host's log.
"""

from __future__ import annotations

import base64
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from testbed.allocation.routes import routes_of
from testbed.analysis.observations import LaneCounters
from testbed.errors import PeerLostError, TestbedError
from testbed.run import agent_messages as messages
from testbed.run.collective_executor import Connection, Connections, RankRun, Request, Way
from testbed.workloads import Elements, PythonFiles, VerifiedWorkload

if TYPE_CHECKING:
    from testbed.workloads.command import Commands
    from testbed.workloads.nccl import NcclAllreduce, NcclCollective
    from testbed.workloads.torch_training import TorchTraining

_WARM_UP_TAG = 0xFFFF_FFFF
"""The tag of the warm-up message; the transfers of a pair count up from 0."""


class Listener(Protocol):
    """The part of `hostlib.Listener` that is used here."""

    @property
    def handle(self) -> bytes:
        """The handle that a peer needs to connect."""

    def accept(self, timeout_s: float | None = None) -> Connection:
        """Wait for the next connection, for at most `timeout_s` seconds."""


class Device(Protocol):
    """The part of `hostlib.Device` that is used here."""

    def listen(self) -> Listener:
        """Make a listener, whose handle peers connect to."""

    def connect(self, handle: bytes, timeout_s: float = 10.0) -> Connection:
        """A connection to a listener of a peer."""

    def counters(self) -> dict[str, Any]:
        """Counters of the device."""

    def close(self) -> None:
        """Close the device and all that belongs to it."""


class Transport(Protocol):
    """The part of the module `hostlib` that is used here."""

    def open(self, config: messages.DeviceConfig) -> Device:
        """Open a device on a local address."""

    def wait_any(self, requests: Sequence[Request], timeout_s: float) -> int:
        """Index of a finished request, or TimeoutError."""

    def lost_peer(self, error: Exception) -> bool:
        """Whether the error says that a peer closed the connection or is gone."""


class Hostlib:
    """The real transport."""

    def open(self, config: messages.DeviceConfig) -> Device:
        """A `hostlib.Device`; options that the spec leaves out keep the engine's defaults."""
        import hostlib

        options = config.model_dump(exclude={"address"}, exclude_none=True)
        return hostlib.Device(config.address, **options)

    def wait_any(self, requests: Sequence[Request], timeout_s: float) -> int:
        """`hostlib.wait_any`."""
        import hostlib

        own = cast(Sequence[hostlib.Request], requests)  # they come from this transport's connections
        return hostlib.wait_any(own, timeout_s=timeout_s)

    def lost_peer(self, error: Exception) -> bool:
        """Whether it is `hostlib.ConnectionClosed`."""
        import hostlib

        return isinstance(error, hostlib.ConnectionClosed)


class RankOfRun(Protocol):
    """One rank in one run (one policy, one seed)."""

    def prepared(self) -> messages.Prepared:
        """The handles by which its peers connect to it."""

    def connect(self, command: messages.Connect) -> messages.Connected:
        """Connect to its peers."""

    def start(self, command: messages.Start) -> messages.Finished:
        """Do its part of the workload."""

    def close(self) -> None:
        """End what belongs to it."""


class _Run:
    """One rank in one run (one policy, one seed), from opening its devices to checking its output."""

    def __init__(self, command: messages.Prepare, workload: VerifiedWorkload, transport: Transport) -> None:
        self._configuration = command
        self._transport = transport
        rank, ranks = command.rank, command.ranks
        transfers = workload.schedule(ranks, command.seed)
        splits = {(split.src, split.dst): split.shares for split in command.splits}
        routes = routes_of(transfers, lambda src, dst: splits.get((src, dst), (1.0,)))
        sources = {transfer.src for transfer in transfers if transfer.dst == rank}
        targets = {transfer.dst for transfer in transfers if transfer.src == rank}
        self._targets = [(peer, route) for peer in sorted(targets) for route in _numbers(splits.get((rank, peer)))]
        self._workload = workload
        self._buffers = workload.buffers(rank, ranks, command.seed)
        self._rank_run = RankRun(
            rank,
            transfers,
            self._buffers,
            routes=routes,
            sends_in_flight=workload.sends_in_flight,
            phase_starts=workload.phase_starts(ranks),
            pauses=workload.pauses(ranks),
            order=workload.order_at(rank, ranks),
        )
        self._connections = Connections({}, {})
        self._idle_lanes: dict[tuple[str, str, int], LaneCounters] = {}
        self._devices = [transport.open(command.device)]
        self._device_to: dict[Way, Device] = {}
        device_from: dict[Way, Device] = {}
        for other in command.others:
            self._devices.append(transport.open(other.device))
            self._device_to |= dict.fromkeys(other.targets, self._devices[-1])
            device_from |= dict.fromkeys(other.sources, self._devices[-1])
        # One listener per source and route identifies the rank that connects.
        self._listeners = {
            (peer, route): device_from.get((peer, route), self._devices[0]).listen()
            for peer in sorted(sources)
            for route in _numbers(splits.get((peer, rank)))
        }

    def prepared(self) -> messages.Prepared:
        handles: dict[int, list[str]] = {}
        for (source, _), listener in self._listeners.items():
            handles.setdefault(source, []).append(base64.b64encode(listener.handle).decode())
        return messages.Prepared(handles={source: " ".join(own) for source, own in handles.items()})

    def connect(self, command: messages.Connect) -> messages.Connected:
        deadline = time.monotonic() + command.timeout_s
        self._connections = Connections(
            outgoing={
                (target, route): self._device_to.get((target, route), self._devices[0]).connect(
                    base64.b64decode(command.handles[target].split()[route]), timeout_s=_left_s(deadline)
                )
                for target, route in self._targets
            },
            incoming={way: listener.accept(timeout_s=_left_s(deadline)) for way, listener in self._listeners.items()},
        )
        self._warm_up(deadline)
        self._rank_run.post(self._connections)
        return messages.Connected()

    def start(self, command: messages.Start) -> messages.Finished:
        self._idle_lanes = self._lanes()
        time.sleep(max(0.0, command.at_s - time.monotonic()))
        timings = self._rank_run.run(self._connections, self._transport.wait_any, command.timeout_s, command.at_s)
        workload, rank, ranks = self._workload, self._configuration.rank, self._configuration.ranks
        result = self._buffers.output[workload.result(rank, ranks)]
        discards, path_client = Counter[str](), Counter[str]()
        for counters in [device.counters() for device in self._devices]:
            discards.update(counters["discards"])
            counted = {name: int(count) for name, count in counters.get("path_client", {}).items() if name != "since_s"}
            path_client.update(counted)
        return messages.Finished(
            finished_s=timings.finished_s,
            step_finished_s=list(timings.step_finished_s),
            last_arrival_s=timings.last_arrival_s,
            wrong_bytes=wrong_bytes(result, workload.expected(rank, ranks, self._configuration.seed)),
            lanes=[lane.since(self._idle_lanes.get(key)) for key, lane in self._lanes().items()],
            discards=dict(discards),
            path_client=dict(path_client),
        )

    def _warm_up(self, deadline: float) -> None:
        """Send a message on every connection and wait for all of them, before the clock starts, as nccl-tests does."""
        size = self._configuration.device.warm_up_bytes // np.dtype(np.int64).itemsize
        nothing = np.zeros(size, dtype=np.int64)
        requests = [
            connection.recv(np.empty_like(nothing), _WARM_UP_TAG) for connection in self._connections.incoming.values()
        ]
        requests += [connection.send(nothing, _WARM_UP_TAG) for connection in self._connections.outgoing.values()]
        for request in requests:
            request.wait(_left_s(deadline))

    def _lanes(self) -> dict[tuple[str, str, int], LaneCounters]:
        fields = [name for name in LaneCounters.model_fields if name != "local"]
        addresses = [
            self._configuration.device.address,
            *(other.device.address for other in self._configuration.others),
        ]
        found: dict[tuple[str, str, int], LaneCounters] = {}
        for address, device in zip(addresses, self._devices, strict=True):
            members = address.split("+")
            for row in device.counters()["lanes"]:
                lane = LaneCounters(local=members[row["member"]], **{name: row[name] for name in fields})
                key = address, lane.peer, lane.lane
                found[key] = lane.plus(found.get(key))
        return found

    def close(self) -> None:
        for device in self._devices:
            device.close()


def _numbers(shares: Sequence[float] | None) -> range:
    """The numbers of a pair's routes."""
    return range(len(shares or (1.0,)))


def wrong_bytes(got: Elements, expected: Elements) -> int:
    """The number of bytes of `got` that differ from `expected`. NaNs and signed zeros are compared bytewise too."""
    return int(np.count_nonzero(got.view(np.uint8) != expected.view(np.uint8)))


def serve(commands: IO[str], reports: IO[str], transport: Transport) -> int:
    """Execute commands until the end of the input or the first failure. Returns the exit status."""

    def send(report: messages.Report) -> None:
        print(report.model_dump_json(), file=reports, flush=True)

    with ExitStack() as open_runs:
        run: RankOfRun | None = None
        try:
            for line in commands:
                command = messages.COMMANDS.validate_json(line, context=PythonFiles())  # the runner has run them
                if isinstance(command, messages.Prepare):
                    run = _open(command, transport)
                    open_runs.callback(run.close)
                    send(run.prepared())
                elif run is None:
                    raise ValueError(f"{command.op} came before prepare")
                elif isinstance(command, messages.Connect):
                    send(run.connect(command))
                elif isinstance(command, messages.Start):
                    send(run.start(command))
                else:
                    open_runs.close()
                    run = None
                    send(messages.Closed())
        except Exception as error:  # the runner needs every failure as one sentence
            traceback.print_exc()
            lost = transport.lost_peer(error) or isinstance(error, PeerLostError)
            send(messages.Failed(error=f"{error}" or type(error).__name__, peer_lost=lost))
            return 1
    return 0


def _open(command: messages.Prepare, transport: Transport) -> RankOfRun:
    workload = command.workload
    if workload.RANK is None:
        raise TestbedError(f"workload {workload.kind} has no data that an agent could send; use fluid or packet")
    if workload.RANK not in _RANKS:
        raise TestbedError(
            f"workload {workload.kind} has ranks {workload.RANK!r}, which is none of {', '.join(_RANKS)}"
        )
    return _RANKS[workload.RANK](command, transport)


def _schedule_rank(command: messages.Prepare, transport: Transport) -> RankOfRun:
    workload = cast(VerifiedWorkload, command.workload)
    return _Run(command, workload.of_job(command.job), transport)


# A module is imported where its rank is asked for: every rank of a run would pay for all of them.


def _driver_rank(command: messages.Prepare, transport: Transport) -> RankOfRun:
    from testbed.run.native_rank import NativeRun

    return NativeRun(command, cast("NcclAllreduce", command.workload))


def _nccl_rank(command: messages.Prepare, transport: Transport) -> RankOfRun:
    from testbed.run.nccl_rank import NcclRun

    return NcclRun(command, cast("NcclCollective", command.workload))


def _torch_rank(command: messages.Prepare, transport: Transport) -> RankOfRun:
    from testbed.run.torch_rank import TorchRun

    return TorchRun(command, cast("TorchTraining", command.workload))


def _command_rank(command: messages.Prepare, transport: Transport) -> RankOfRun:
    from testbed.run.command_rank import CommandRun

    return CommandRun(command, cast("Commands", command.workload))


_RANKS = {
    "schedule": _schedule_rank,
    "nccl driver": _driver_rank,
    "nccl": _nccl_rank,
    "torch": _torch_rank,
    "command": _command_rank,
}
"""By `Workload.RANK`: what makes a rank."""


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
