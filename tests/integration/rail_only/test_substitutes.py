# SPDX-License-Identifier: Apache-2.0
"""A GPU dies in an all-reduce: an optical switch brings an idle one to its rail, or its HB domain's tasks move."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import hostlib
from emul import MininetFabric
from netmodel import PortRef, rail_only
from sdn.failover.substitutes import circuits_of, substituted
from testbed.run.collective_executor import Connections, RankRun
from testbed.workloads import Buffers
from testbed.workloads.hierarchical import HierarchicalAllreduce
from tests.integration.traffic import in_host

pytestmark = pytest.mark.sandboxed

RATE_BPS = 10_000_000
ELEMENTS = 131_072
RAIL = 2 * 8 * ELEMENTS // 4
"""The bytes that a GPU sends over its rail: two rings, each with a step of a quarter of the data."""


class JobEnded(Exception):
    """The scheduler has ended the job."""


def all_reduce(fabric: MininetFabric, gpus: Sequence[str], elements: int, ended: Event | None = None) -> None:
    """Sum an array of every GPU over rails and HB domains, and check each sum. Raises JobEnded once that is set."""
    workload = HierarchicalAllreduce(bytes=8 * elements, gpus_per_domain=2)
    transfers = workload.schedule(len(gpus), seed=0)
    random = np.random.default_rng(3)
    data = [random.integers(-(1 << 40), 1 << 40, elements) for _ in gpus]
    expected = sum(data)
    domain = [fabric.topology.peer(PortRef(gpu, 2)).node for gpu in gpus]

    def wait(requests: Any, left_s: float) -> int:
        end_s = time.monotonic() + left_s
        while ended is None or not ended.is_set():
            try:
                return hostlib.wait_any(requests, 0.05)
            except TimeoutError:
                if time.monotonic() >= end_s:
                    raise
        raise JobEnded

    closing: list[hostlib.Device] = []
    with ThreadPoolExecutor(2 * len(gpus)) as pool, ExitStack() as stack:
        # All at once, because each waits for its peers, and one of these may be dead.
        stack.callback(lambda: [*pool.map(hostlib.Device.close, closing)])

        def device(rank: int, nic: int) -> hostlib.Device:
            where = str(fabric.topology.host(gpus[rank]).nics[nic].address)
            made = in_host(fabric, gpus[rank], lambda: hostlib.Device(where, line_rate_bps=RATE_BPS, path_mtu=4096))
            closing.append(made)
            return made

        devices = {(rank, nic): device(rank, nic) for rank in range(len(gpus)) for nic in (0, 1)}
        outgoing: list[dict[tuple[int, int], hostlib.Connection]] = [{} for _ in gpus]
        incoming: list[dict[tuple[int, int], hostlib.Connection]] = [{} for _ in gpus]
        for src, dst in sorted({(transfer.src, transfer.dst) for transfer in transfers}):
            nic = int(domain[src] == domain[dst])
            listener = in_host(fabric, gpus[dst], devices[dst, nic].listen)
            accepted = pool.submit(listener.accept, 60)
            handle, sender = listener.handle, devices[src, nic]
            outgoing[src][dst, 0] = in_host(
                fabric, gpus[src], lambda sender=sender, handle=handle: sender.connect(handle, timeout_s=60)
            )
            incoming[dst][src, 0] = accepted.result()
        ends = [Connections(*both) for both in zip(outgoing, incoming, strict=True)]
        runs = [RankRun(rank, transfers, Buffers(own, own)) for rank, own in enumerate(data)]
        for run, own in zip(runs, ends, strict=True):
            run.post(own)
        done = [pool.submit(run.run, own, wait, 120.0) for run, own in zip(runs, ends, strict=True)]
        for future in done:
            future.result()
    assert all(np.array_equal(own, expected) for own in data)


def test_an_idle_gpu_takes_the_place_of_a_dead_one_and_then_a_domain_moves(tmp_path: Path) -> None:
    topology = rail_only(3, 2, RATE_BPS, RATE_BPS, spare_gpus=1)
    ended = Event()
    gpus: tuple[str, ...] = ("d1g1", "d1g2", "d2g1", "d2g2")
    with MininetFabric(topology, log_dir=tmp_path) as fabric, ThreadPoolExecutor(1) as pool:

        def left(port: str) -> int:
            return fabric.link_counters()[PortRef.parse(port)].tx_bytes

        fabric.set_circuits(circuits_of(topology, gpus))
        running = pool.submit(all_reduce, fabric, gpus, 4 * ELEMENTS, ended)
        while left("rail2:2") < RAIL // 4:  # what d1g2 has sent to d2g2
            assert not running.done()
            time.sleep(0.01)
        for number in (1, 2):
            fabric.set_link(topology.link_at(PortRef("d1g2", number)), False)
        ended.set()
        with pytest.raises(JobEnded):
            running.result()

        # The job begins again with its last data. d1g3 is on rail 2 now.
        gpus = substituted(topology, gpus, "d1g2")
        assert gpus == ("d1g1", "d1g3", "d2g1", "d2g2")
        fabric.set_circuits(circuits_of(topology, gpus))
        before = left("rail2:2"), left("ocs1:3")
        all_reduce(fabric, gpus, ELEMENTS)
        assert left("rail2:2") - before[0] > RAIL
        assert left("ocs1:3") - before[1] > RAIL

        # The next GPU of the domain to die has no substitute there: all tasks of the domain move.
        moved = substituted(topology, gpus, "d1g1", dead=["d1g2"])
        assert moved == ("d3g1", "d3g2", "d2g1", "d2g2")
        fabric.set_circuits({"ocs1": {}, **circuits_of(topology, moved)})
        before = left("rail2:2"), left("rail2:1")
        all_reduce(fabric, moved, ELEMENTS)
        assert left("rail2:2") - before[0] > RAIL
        assert left("rail2:1") == before[1]
