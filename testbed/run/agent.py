# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.run.agent`: one rank, on one emulated host.

It takes orders on standard input and reports on standard output, one JSON object a line (`agent_messages`). Whatever
else it has to say goes to standard error, which the runner keeps as the host's log.
"""

from __future__ import annotations

import base64
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any, Protocol, cast

import numpy as np

from testbed.analysis.observations import LaneCounters
from testbed.run import agent_messages as messages
from testbed.run.collective_executor import Connection, Connections, RankRun, Request
from testbed.run.native_rank import NativeRun
from testbed.workloads import Elements, NcclAllreduce

_WARM_UP_TAG = 0xFFFF_FFFF
"""Of the warm-up message; the transfers of a pair count up from 0."""


class Listener(Protocol):
    """The part of `hostlib.Listener` that is used here."""

    @property
    def handle(self) -> bytes:
        """What a peer needs to connect."""

    def accept(self, timeout_s: float | None = None) -> Connection:
        """The next connection."""


class Device(Protocol):
    """The part of `hostlib.Device` that is used here."""

    def listen(self) -> Listener:
        """A new listener."""

    def connect(self, handle: bytes, timeout_s: float = 10.0) -> Connection:
        """A connection to a listener of a peer."""

    def counters(self) -> dict[str, Any]:
        """Counters of the device."""

    def close(self) -> None:
        """Close the device and all that belongs to it."""


class Transport(Protocol):
    """The part of the module `hostlib` that is used here."""

    def open(self, config: messages.DeviceConfig) -> Device:
        """A device."""

    def wait_any(self, requests: Sequence[Request], timeout_s: float) -> int:
        """Index of a finished request, or TimeoutError."""


class Hostlib:
    """The real transport."""

    def open(self, config: messages.DeviceConfig) -> Device:
        """A `hostlib.Device`; options that the spec leaves out are the engine's to choose."""
        import hostlib

        options = config.model_dump(exclude={"address"}, exclude_none=True)
        return hostlib.Device(config.address, **options)

    def wait_any(self, requests: Sequence[Request], timeout_s: float) -> int:
        """`hostlib.wait_any`."""
        import hostlib

        own = cast(Sequence[hostlib.Request], requests)  # they come from this transport's connections
        return hostlib.wait_any(own, timeout_s=timeout_s)


class _Run:
    """One policy and seed: from the opened device to the compared output."""

    def __init__(self, order: messages.Prepare, transport: Transport) -> None:
        self._order = order
        self._transport = transport
        workload, rank, ranks = order.workload.of_job(order.job), order.rank, order.ranks
        transfers = workload.schedule(ranks, order.seed)
        self._sources = sorted({transfer.src for transfer in transfers if transfer.dst == rank})
        self._targets = sorted({transfer.dst for transfer in transfers if transfer.src == rank})
        self._workload = workload
        self._buffers = workload.buffers(rank, ranks, order.seed)
        self._rank_run = RankRun(
            rank,
            transfers,
            self._buffers,
            sends_in_flight=workload.sends_in_flight,
            phase_starts=workload.phase_starts(ranks),
            pauses=workload.pauses(ranks),
        )
        self._connections = Connections({}, {})
        self._idle_lanes: dict[tuple[str, str, int], LaneCounters] = {}
        self._devices = [transport.open(order.device)]
        self._device_to: dict[int, Device] = {}
        self._device_from: dict[int, Device] = {}
        for other in order.others:
            self._devices.append(transport.open(other.device))
            self._device_to |= dict.fromkeys(other.targets, self._devices[-1])
            self._device_from |= dict.fromkeys(other.sources, self._devices[-1])
        # One listener per source: who connects is then known without asking.
        self._listeners = {source: self._device_from.get(source, self._devices[0]).listen() for source in self._sources}

    def prepared(self) -> messages.Prepared:
        handles = {source: base64.b64encode(listener.handle).decode() for source, listener in self._listeners.items()}
        return messages.Prepared(handles=handles)

    def connect(self, order: messages.Connect) -> messages.Connected:
        deadline = time.monotonic() + order.timeout_s
        self._connections = Connections(
            outgoing={
                target: self._device_to.get(target, self._devices[0]).connect(
                    base64.b64decode(order.handles[target]), timeout_s=_left_s(deadline)
                )
                for target in self._targets
            },
            incoming={
                source: listener.accept(timeout_s=_left_s(deadline)) for source, listener in self._listeners.items()
            },
        )
        self._warm_up(deadline)
        self._rank_run.post(self._connections)
        return messages.Connected()

    def start(self, order: messages.Start) -> messages.Finished:
        self._idle_lanes = self._lanes()
        time.sleep(max(0.0, order.at_s - time.monotonic()))
        timings = self._rank_run.run(self._connections, self._transport.wait_any, order.timeout_s, order.at_s)
        workload, rank, ranks = self._workload, self._order.rank, self._order.ranks
        result = self._buffers.output[workload.result(rank, ranks)]
        discards, controller = Counter[str](), Counter[str]()
        for counters in [device.counters() for device in self._devices]:
            discards.update(counters["discards"])
            counted = {name: int(count) for name, count in counters.get("controller", {}).items() if name != "since_s"}
            controller.update(counted)
        return messages.Finished(
            finished_s=timings.finished_s,
            step_finished_s=list(timings.step_finished_s),
            last_arrival_s=timings.last_arrival_s,
            wrong_bytes=wrong_bytes(result, workload.expected(rank, ranks, self._order.seed)),
            lanes=[lane.since(self._idle_lanes.get(key)) for key, lane in self._lanes().items()],
            discards=dict(discards),
            controller=dict(controller),
        )

    def _warm_up(self, deadline: float) -> None:
        """Send a message on every connection, and wait until all have come. As in nccl-tests no clock runs yet."""
        size = self._order.device.warm_up_bytes // np.dtype(np.int64).itemsize
        nothing = np.zeros(size, dtype=np.int64)
        requests = [
            connection.recv(np.empty_like(nothing), _WARM_UP_TAG) for connection in self._connections.incoming.values()
        ]
        requests += [connection.send(nothing, _WARM_UP_TAG) for connection in self._connections.outgoing.values()]
        for request in requests:
            request.wait(_left_s(deadline))

    def _lanes(self) -> dict[tuple[str, str, int], LaneCounters]:
        fields = [name for name in LaneCounters.model_fields if name != "local"]
        addresses = [self._order.device.address, *(other.device.address for other in self._order.others)]
        return {
            (local, row["peer"], row["lane"]): LaneCounters(local=local, **{name: row[name] for name in fields})
            for local, device in zip(addresses, self._devices, strict=True)
            for row in device.counters()["lanes"]
        }

    def close(self) -> None:
        for device in self._devices:
            device.close()


def wrong_bytes(got: Elements, expected: Elements) -> int:
    """How many bytes of `got` differ from `expected`; all of them count, also those of NaNs and zeros' signs."""
    return int(np.count_nonzero(got.view(np.uint8) != expected.view(np.uint8)))


def serve(orders: IO[str], reports: IO[str], transport: Transport) -> int:
    """Obey orders until there are no more, or one fails. Returns the exit status."""

    def say(report: messages.Report) -> None:
        print(report.model_dump_json(), file=reports, flush=True)

    with ExitStack() as open_runs:
        run: _Run | NativeRun | None = None
        try:
            for line in orders:
                order = messages.ORDERS.validate_json(line)
                if isinstance(order, messages.Prepare):
                    run = _open(order, transport)
                    open_runs.callback(run.close)
                    say(run.prepared())
                elif run is None:
                    raise ValueError(f"{order.op} came before prepare")
                elif isinstance(order, messages.Connect):
                    say(run.connect(order))
                elif isinstance(order, messages.Start):
                    say(run.start(order))
                else:
                    open_runs.close()
                    run = None
                    say(messages.Closed())
        except Exception as error:  # whatever it is, the runner must hear of it, in one sentence
            traceback.print_exc()
            say(messages.Failed(error=f"{error}" or type(error).__name__))
            return 1
    return 0


def _open(order: messages.Prepare, transport: Transport) -> _Run | NativeRun:
    if isinstance(order.workload, NcclAllreduce):
        return NativeRun(order, order.workload)
    return _Run(order, transport)


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def main() -> int:
    """Entry point."""
    return serve(sys.stdin, sys.stdout, Hostlib())


if __name__ == "__main__":
    sys.exit(main())
