# SPDX-License-Identifier: Apache-2.0
"""The functions of the emulated fabric that the path service needs: reachability, dead links, rules on source ports."""

from __future__ import annotations

import queue
import random
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from emul import MininetFabric
from emul.management import MANAGEMENT_ADDRESS, host_address
from netmodel import ENTROPY_PORTS, Flow, Link, PortRef, Topology, forwarding, leaf_spine, path_of
from sdn.openflow.source_rules import SourcePortRules
from tests.integration.traffic import RawSender, address, in_host, receiver

pytestmark = pytest.mark.sandboxed

RATE_BPS = 1_000_000_000


def switch_link(topology: Topology, leaf: str, spine: str) -> Link:
    return next(link for link in topology.links if {link.a.node, link.b.node} == {leaf, spine})


def test_every_host_reaches_the_sandbox_and_no_other_host_by_the_management_network(tmp_path: Path) -> None:
    topology = leaf_spine(2, 2, 2, RATE_BPS)
    with MininetFabric(topology, log_dir=tmp_path, management=True) as fabric:
        with socket.create_server((MANAGEMENT_ADDRESS, 0)) as server:
            port = server.getsockname()[1]
            before = fabric.link_counters()
            for number, host in enumerate(topology.hosts):
                client = in_host(fabric, host.name, lambda: socket.create_connection((MANAGEMENT_ADDRESS, port), 5))
                accepted, (seen, _) = server.accept()
                assert seen == str(host_address(number))
                client.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
                client.close()
                accepted.close()
            assert fabric.link_counters() == before
        with pytest.raises(OSError, match="unreachable"):
            in_host(fabric, "h1", lambda: socket.create_connection((str(host_address(1)), 9), 0.5))


def test_dead_links_are_reported_before_routes_change(tmp_path: Path) -> None:
    topology = leaf_spine(2, 2, 1, RATE_BPS)
    heard: queue.SimpleQueue[Sequence[Link]] = queue.SimpleQueue()
    with MininetFabric(topology, log_dir=tmp_path, on_dead=heard.put) as fabric:
        link = switch_link(topology, "leaf1", "spine2")
        fabric.set_link(link, up=False)
        assert heard.get_nowait() == [link]  # set_link waits for the routes; this was there by then
        fabric.set_link(link, up=True)
        assert heard.get_nowait() == []


def check(fabric: MininetFabric, dead: frozenset[Link], datagrams: int) -> set[PortRef]:
    """Send datagrams of random ports between random hosts; each must take the path that its bits say. Ports used."""
    fabric.ovs.appctl("revalidator/wait")  # what the datapath remembers of earlier routes is put right a moment later
    topology, generator = fabric.topology, random.Random(len(dead))
    chooser, routes = SourcePortRules.of(topology), forwarding(topology, dead)
    names = [host.name for host in topology.hosts]
    receivers = {name: receiver(fabric, name) for name in names}
    senders = {name: RawSender(fabric, name) for name in names}
    used: set[PortRef] = set()
    for _ in range(datagrams):
        source, destination = generator.sample(names, 2)
        flow = Flow(address(fabric, source), address(fabric, destination), generator.choice(ENTROPY_PORTS))
        before = fabric.link_counters()
        senders[source].send(flow.dst, flow.src_port)
        receivers[destination].recv(100)
        after = fabric.link_counters()
        moved = {at for at in after if after[at].tx_packets != before[at].tx_packets}
        assert moved == set(path_of(topology, flow, chooser, routes=routes)[1:]), (flow, dead)
        used |= moved
    for opened in (*receivers.values(), *senders.values()):
        opened.close()
    return used


@pytest.mark.parametrize(("spines", "parallel"), [(4, 1), (3, 2)])
def test_source_port_rules_choose_paths_before_and_after_a_failure(tmp_path: Path, spines: int, parallel: int) -> None:
    topology = leaf_spine(3, spines, 2, RATE_BPS, parallel_links=parallel)
    with MininetFabric(topology, log_dir=tmp_path, pinning="rules") as fabric:
        uplinks = {link.a for link in topology.links if link.a.node.startswith("leaf") and link.b.node[:5] == "spine"}
        assert uplinks <= check(fabric, frozenset(), datagrams=300)
        cut = switch_link(topology, "leaf3", "spine1")
        fabric.set_link(cut, up=False)
        assert not {cut.a, cut.b} & check(fabric, frozenset({cut}), datagrams=200)
        fabric.set_link(cut, up=True)
        check(fabric, frozenset(), datagrams=50)
