# SPDX-License-Identifier: Apache-2.0
"""Optical switches as bridges: circuits, dark ports during a change, and look-ahead panels."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from emul import MininetFabric
from netmodel import PortRef, TopologyError, direct_connect, joined
from sdn.topoopt import Demand, data_parallel, find_topology
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.permutations import ring_circuits
from sdn.topoopt.relays import Way, plan_relays
from tests.integration.topoopt.direct import FRAME, RATE_BPS, arrives, names

pytestmark = pytest.mark.sandboxed


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


def test_twelve_hosts_relay_over_circuits_that_change(tmp_path: Path) -> None:
    """Rings of an all-reduce, then a ring and matchings of pairs: every circuit carries what is predicted."""
    topology, hosts = direct_connect(12, 3, RATE_BPS), names(12)
    opposite = 1e6 * np.roll(np.eye(12), 6, axis=1)
    with MininetFabric(topology, log_dir=tmp_path) as fabric:
        for job in (data_parallel(12, 1e6), Demand(12, (), opposite)):
            found = find_topology(job, 3)
            fabric.set_circuits(patch(topology, hosts, found.layers), 0.05)
            routes = {(hosts[a], hosts[b]): [[hosts[at] for at in ways[0]]] for (a, b), ways in found.routes.items()}
            plan = plan_relays(topology, fabric.circuits, hosts, routes=routes)
            fabric.set_relays(plan)
            ways = [connection.there for (connection,) in plan.connections.values()]
            predicted = Counter(topology.peer(port) for way in ways for port in way.ports)
            before = fabric.link_counters()
            assert all(arrives(fabric, way) for way in ways)
            counted = {port: now.rx_bytes - before[port].rx_bytes for port, now in fabric.link_counters().items()}
            assert len(ways) == 12 * 11
            assert counted == {port: FRAME * predicted[port] for port in counted}


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
