# SPDX-License-Identifier: Apache-2.0
"""An all-reduce over several rings at once, each with a share of the elements and its own NIC."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

import hostlib
from emul import MininetFabric
from sdn.topoopt.permutations import ring
from testbed.run.collective_executor import Connections, RankRun
from testbed.workloads import Buffers
from testbed.workloads.ring_allreduce import RingAllreduce
from tests.integration.traffic import in_host


def all_reduce(
    fabric: MininetFabric, data: dict[str, NDArray[np.int64]], strides: Sequence[int], rate_bps: int, timeout_s: float
) -> None:
    """Sum every host's array in place: ring k is "+strides[k]" by NIC k, and reduces the k-th part of the elements."""
    hosts = list(data)
    elements = len(data[hosts[0]])
    jobs = []
    with ExitStack() as stack, ThreadPoolExecutor(len(hosts) * len(strides)) as pool:
        for k, stride in enumerate(strides):
            order = [hosts[i] for i in ring(range(len(hosts)), stride)]
            part = slice(k * elements // len(strides), (k + 1) * elements // len(strides))
            workload = RingAllreduce(bytes=8 * (part.stop - part.start), slices=2)
            transfers = workload.schedule(len(order), seed=0)
            devices = [_device(fabric, host, k, rate_bps, stack) for host in order]
            listeners = [in_host(fabric, host, device.listen) for host, device in zip(order, devices, strict=True)]
            accepted = [pool.submit(listener.accept, timeout_s) for listener in listeners]
            out = []
            for rank, (host, device) in enumerate(zip(order, devices, strict=True)):
                handle = listeners[(rank + 1) % len(order)].handle
                out.append(in_host(fabric, host, lambda d=device, h=handle: d.connect(h, timeout_s=timeout_s)))
            for rank, host in enumerate(order):
                view = data[host][part]
                run = RankRun(rank, transfers, Buffers(view, view))
                ends = Connections(
                    outgoing={((rank + 1) % len(order), 0): out[rank]},
                    incoming={((rank - 1) % len(order), 0): accepted[rank].result()},
                )
                run.post(ends)
                jobs.append((run, ends))
        done = [pool.submit(run.run, ends, hostlib.wait_any, timeout_s) for run, ends in jobs]
        for future in done:
            future.result()


def _device(fabric: MininetFabric, host: str, nic: int, rate_bps: int, stack: ExitStack) -> hostlib.Device:
    where = str(fabric.topology.host(host).nics[nic].address)
    return stack.enter_context(
        in_host(fabric, host, lambda: hostlib.Device(where, line_rate_bps=rate_bps, path_mtu=1024))
    )
