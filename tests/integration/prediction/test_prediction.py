# SPDX-License-Identifier: Apache-2.0
"""Prediction is exact: for each flow, the links whose counters move are those of the predicted path."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from emul import MininetFabric
from netmodel import ENTROPY_PORTS, Flow, OvsHash, PortRef, Topology, leaf_spine, path_of
from netmodel import Path as LinkPath
from tests.integration.traffic import RawSender, address, receiver

pytestmark = pytest.mark.sandboxed

RATE_BPS = 1_000_000_000


class Fleet:
    """A fabric with a sender and a receiver in every host, which sends one datagram at a time."""

    def __init__(self, fabric: MininetFabric) -> None:
        self.fabric = fabric
        self.names = [host.name for host in fabric.topology.hosts]
        self.receivers = {name: receiver(fabric, name) for name in self.names}
        self.senders = {name: RawSender(fabric, name) for name in self.names}

    def close(self) -> None:
        for name in self.names:
            self.receivers[name].close()
            self.senders[name].close()

    def moved_by(self, source: str, destination: str, port: int) -> dict[PortRef, int]:
        """Send one datagram. Returns the switch ports whose transmit counters moved, with the packets of each."""
        before = self.fabric.link_counters()
        self.senders[source].send(address(self.fabric, destination), port)
        self.receivers[destination].recv(100)
        deadline = time.monotonic() + 1
        while True:  # a counter may be read before it includes the packet's last hop
            after = self.fabric.link_counters()
            moved = {at: after[at].tx_packets - before[at].tx_packets for at in after}
            moved = {at: packets for at, packets in moved.items() if packets}
            if len(moved) > 1 or time.monotonic() > deadline:
                return moved


@contextmanager
def running(topology: Topology, log_dir: Path) -> Iterator[Fleet]:
    with MininetFabric(topology, log_dir=log_dir) as fabric, closing(Fleet(fabric)) as fleet:
        yield fleet


def check(fleet: Fleet, triples: int, seed: int) -> set[LinkPath]:
    """Compare the path of a datagram for each of `triples` random triples across leaves. Returns the paths taken."""
    topology, generator = fleet.fabric.topology, random.Random(seed)
    taken: set[LinkPath] = set()
    for _ in range(triples):
        source, destination = generator.sample(fleet.names, 2)
        flow = Flow(address(fleet.fabric, source), address(fleet.fabric, destination), generator.choice(ENTROPY_PORTS))
        predicted = path_of(topology, flow, OvsHash())
        if len(predicted) == 2:
            continue  # there is one path within a leaf
        assert fleet.moved_by(source, destination, flow.src_port) == dict.fromkeys(predicted[1:], 1), flow
        taken.add(predicted)
    return taken


def test_every_packet_takes_the_predicted_uplink_over_four_leaves_and_four_spines(tmp_path: Path) -> None:
    topology = leaf_spine(4, 4, 4, RATE_BPS)
    with running(topology, tmp_path) as fleet:
        taken = check(fleet, triples=2600, seed=1)
    assert len(taken) > 700  # of 960: the flows are spread over many paths
    uplinks = {path[1] for path in taken}
    assert len(uplinks) == 16


def test_every_packet_takes_the_predicted_parallel_links_up_and_down(tmp_path: Path) -> None:
    topology = leaf_spine(2, 2, 2, RATE_BPS, parallel_links=2)
    with running(topology, tmp_path) as fleet:
        taken = check(fleet, triples=600, seed=2)
    assert len({path[1:3] for path in taken}) == 2 * 4 * 2  # each leaf's four uplinks, then both links down
