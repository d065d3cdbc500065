# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.agent`: one rank, on one emulated host.

It takes orders on standard input and reports on standard output, one JSON object a line (`testbed.messages`). Whatever
else it has to say goes to standard error, which the runner keeps as the host's log.
"""

from __future__ import annotations

import base64
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Any, Protocol, cast

import numpy as np

from testbed import messages
from testbed.movement import Connection, Connections, RankRun, Request
from testbed.workloads import Elements

_WARM_UP_TAG = 0xFFFF_FFFF
"""Of the warm-up message; the transfers of a pair count up from 0."""

_WARM_UP_BYTES = 4096
"""Per lane, where the spec leaves the path MTU to the engine: the largest there is."""

_COUNTED = ("tx_bytes", "tx_packets", "flowlets", "retransmits", "timeouts")
"""Fields of `messages.Lane` that only ever grow."""


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
        workload, rank, ranks = order.workload, order.rank, order.ranks
        transfers = workload.schedule(ranks, order.seed)
        self._sources = sorted({transfer.src for transfer in transfers if transfer.dst == rank})
        self._targets = sorted({transfer.dst for transfer in transfers if transfer.src == rank})
        self._buffers = workload.buffers(rank, ranks, order.seed)
        self._rank_run = RankRun(rank, transfers, self._buffers, sends_in_flight=workload.sends_in_flight)
        self._connections = Connections({}, {})
        self._idle_lanes: dict[tuple[str, int], dict[str, Any]] = {}
        self._device = transport.open(order.device)
        # One listener per source: who connects is then known without asking.
        self._listeners = {source: self._device.listen() for source in self._sources}

    def prepared(self) -> messages.Prepared:
        handles = {source: base64.b64encode(listener.handle).decode() for source, listener in self._listeners.items()}
        return messages.Prepared(handles=handles)

    def connect(self, order: messages.Connect) -> messages.Connected:
        deadline = time.monotonic() + order.timeout_s
        self._connections = Connections(
            outgoing={
                target: self._device.connect(base64.b64decode(order.handles[target]), timeout_s=_left_s(deadline))
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
        expected = self._order.workload.expected(self._order.rank, self._order.ranks, self._order.seed)
        return messages.Finished(
            finished_s=timings.finished_s,
            step_finished_s=list(timings.step_finished_s),
            last_arrival_s=timings.last_arrival_s,
            wrong_bytes=wrong_bytes(self._buffers.output, expected),
            lanes=self._lanes_since_start(),
            discards=self._device.counters()["discards"],
        )

    def _warm_up(self, deadline: float) -> None:
        """Send a packet's worth per lane on every connection, and wait until it has come.

        QPs are made, and switches learn flows, when first used. As in nccl-tests that is done before the clock starts.
        """
        lanes = self._order.device.lanes
        size = lanes * (self._order.device.path_mtu or _WARM_UP_BYTES) // np.dtype(np.int64).itemsize
        nothing = np.zeros(size, dtype=np.int64)
        requests = [
            connection.recv(np.empty_like(nothing), _WARM_UP_TAG) for connection in self._connections.incoming.values()
        ]
        requests += [connection.send(nothing, _WARM_UP_TAG) for connection in self._connections.outgoing.values()]
        for request in requests:
            request.wait(_left_s(deadline))

    def _lanes(self) -> dict[tuple[str, int], dict[str, Any]]:
        return {(lane["peer"], lane["lane"]): lane for lane in self._device.counters()["lanes"]}

    def _lanes_since_start(self) -> list[messages.Lane]:
        """The lanes' counters now; what is counted up, less what it was before the start."""
        rows = []
        for key, lane in self._lanes().items():
            before = self._idle_lanes.get(key, {})
            row = {name: lane[name] for name in messages.Lane.model_fields}
            rows.append(messages.Lane(**row | {name: lane[name] - before.get(name, 0) for name in _COUNTED}))
        return rows

    def close(self) -> None:
        self._device.close()


def wrong_bytes(got: Elements, expected: Elements) -> int:
    """How many bytes of `got` differ from `expected`; all of them count, also those of NaNs and zeros' signs."""
    return int(np.count_nonzero(got.view(np.uint8) != expected.view(np.uint8)))


def serve(orders: IO[str], reports: IO[str], transport: Transport) -> int:
    """Obey orders until there are no more, or one fails. Returns the exit status."""

    def say(report: messages.Report) -> None:
        print(report.model_dump_json(), file=reports, flush=True)

    with ExitStack() as open_runs:
        run: _Run | None = None
        try:
            for line in orders:
                order = messages.ORDERS.validate_json(line)
                if isinstance(order, messages.Prepare):
                    run = _Run(order, transport)
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


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def main() -> int:
    """Entry point."""
    return serve(sys.stdin, sys.stdout, Hostlib())


if __name__ == "__main__":
    sys.exit(main())
