# SPDX-License-Identifier: Apache-2.0
"""Optical switches as bridges: circuits, dark ports during a change, and look-ahead panels."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import pytest

from emul import MininetFabric
from netmodel import PortRef, TopologyError, direct_connect, joined
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.permutations import ring_circuits
from sdn.topoopt.relays import Way
from tests.integration.topoopt.direct import RATE_BPS, arrives, names

pytestmark = [pytest.mark.sandboxed, pytest.mark.alone]


def test_only_ports_of_changing_circuits_are_dark(tmp_path: Path) -> None:
    topology = direct_connect(4, 1, RATE_BPS)
    first = {"ocs1": {1: 2, 2: 1, 3: 4, 4: 3}}
    second = {"ocs1": {1: 3, 3: 1}}
    with MininetFabric(topology, log_dir=tmp_path) as fabric:
        assert fabric.circuits == {"ocs1": {}}
        with pytest.raises(TopologyError, match="optical port 2 of 'ocs1' is used twice"):
            fabric.set_circuits({"ocs1": {1: 2, 3: 2}})
        fabric.set_circuits(first)
        pairs = {(a, b): Way((PortRef(a, 1),), PortRef(b, 1)) for a, b in permutations(names(4), 2)}
        assert arrives(fabric, pairs["h1", "h2"])
        assert arrives(fabric, pairs["h3", "h4"])
        assert not arrives(fabric, pairs["h1", "h3"], timeout_s=0.2)
        with ThreadPoolExecutor(1) as pool:
            turning = pool.submit(fabric.set_circuits, second, 4.0)
            time.sleep(0.5)
            assert not turning.done()
            assert not arrives(fabric, pairs["h1", "h3"], timeout_s=0.1)
            turning.result()
        assert arrives(fabric, pairs["h1", "h3"])
        assert not arrives(fabric, pairs["h1", "h2"], timeout_s=0.2)
        # A circuit that stays carries light while another one turns.
        with ThreadPoolExecutor(1) as pool:
            turning = pool.submit(fabric.set_circuits, {"ocs1": {1: 3, 3: 1, 2: 4, 4: 2}}, 4.0)
            time.sleep(0.3)
            assert arrives(fabric, pairs["h1", "h3"], timeout_s=2.0)
            assert not turning.done()
            turning.result()
        assert arrives(fabric, pairs["h2", "h4"])


def test_look_ahead_prepares_the_next_job_while_the_current_one_runs(tmp_path: Path) -> None:
    topology = direct_connect(3, 1, RATE_BPS, look_ahead=True)
    hosts = names(3)
    with MininetFabric(topology, log_dir=tmp_path) as fabric:
        now = patch(topology, hosts, [ring_circuits(range(3), 1)])
        then = patch(topology, hosts, [ring_circuits(range(3), 2)], bank=1)
        fabric.set_circuits(joined(now, flip(topology, hosts, 0)))
        forth, back = Way((PortRef("h1", 1),), PortRef("h2", 1)), Way((PortRef("h2", 1),), PortRef("h1", 1))
        fabric.set_circuits(then, 0.5)  # the slow panel, ahead of its use
        assert arrives(fabric, forth)
        assert not arrives(fabric, back, timeout_s=0.2)
        fabric.set_circuits(flip(topology, hosts, 1))
        assert arrives(fabric, back)
        assert not arrives(fabric, forth, timeout_s=0.2)
