# SPDX-License-Identifier: Apache-2.0
"""A fibre fails while four hosts reduce over a ring: it goes on over another NIC, relayed, then by swapped ports."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from emul import MininetFabric
from netmodel import PortRef
from testbed.arrangements import FibreState
from testbed.spec import load
from tests.integration.topoopt.direct import names
from tests.integration.topoopt.rings import all_reduce
from tests.testbed.experiments import first_of, write_spec

pytestmark = pytest.mark.sandboxed

ELEMENTS = 131_072
HOP = 2 * 3 * 8 * ELEMENTS // 4
"""The bytes of an all-reduce on each hop of a ring of four hosts: 1.26 s at 10 Mbit/s."""


def random_data() -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(7)
    return {host: random.integers(-(1 << 40), 1 << 40, ELEMENTS) for host in names(4)}


def test_a_ring_goes_on_over_another_nic_and_then_by_swapped_ports(tmp_path: Path) -> None:
    made = load(
        write_spec(
            tmp_path,
            fabric="mininet",
            topology={"direct_connect": {"hosts": 4, "degree": 2, "rate": "10 Mbit/s"}},
            optical={"strides": [1, 3]},
            workload={"kind": "ring_allreduce", "bytes": 8 * ELEMENTS},
            placement={"rule": "in_order"},
            policies=[{"name": "direct", "policy": "ecmp"}],
            events=[{"at_s": 1, "cut": "ocs1:3"}],
            seeds=1,
        )
    )
    (circuits,) = made.arrangements
    cable = made.cable("ocs1:3")
    with MininetFabric(made.cabled, log_dir=tmp_path) as fabric, ExitStack() as undo, ThreadPoolExecutor(1) as pool:

        def arrived(port: str) -> int:
            return fabric.link_counters()[PortRef.parse(port)].tx_bytes

        def summed(data: dict[str, NDArray[np.int64]]) -> None:
            all_reduce(fabric, data, [1], 10_000_000, timeout_s=120)

        arranger = circuits.on(fabric)
        arranger.before_run(first_of(made).job_hosts, undo)
        assert arranger.receivers(cable) == {PortRef("h3", 1), PortRef("h4", 1)}
        data = random_data()
        expected = sum(data.values())
        running = pool.submit(summed, data)
        while arrived("ocs1:3") < HOP // 4:
            assert not running.done()
            time.sleep(0.01)
        fabric.set_link(cable, False)
        dead = frozenset({cable})
        arranger.fibres_changed(FibreState(dead))
        running.result()
        assert all(np.array_equal(found, expected) for found in data.values())
        # h2 reaches h3 by h1 and h4, over the ring back of the second NICs.
        before = arrived("ocs1:3")
        assert before < 0.8 * HOP
        assert all(arrived(port) > HOP - before for port in ("ocs2:1", "ocs2:4", "ocs2:3"))

        arranger.fibres_changed(FibreState(dead, ((PortRef("ocs1", 3), dead),)))
        assert fabric.circuits["ocs2"] == {1: 2, 2: 3, 3: 4, 4: 1}
        ports = ("ocs2:3", "ocs2:4", "ocs2:1")
        healed, data = [arrived(port) for port in ports], random_data()
        summed(data)
        assert all(np.array_equal(found, expected) for found in data.values())
        into, out, relayed = (arrived(port) - count for port, count in zip(ports, healed, strict=True))
        assert min(into, out) > HOP
        assert relayed < HOP / 4  # acknowledgements
        assert arrived("ocs1:3") == before

        arranger.before_run(first_of(made).job_hosts, undo)
        assert fabric.circuits == first_of(made).arrangements[0].setting.circuits  # type: ignore[attr-defined]
