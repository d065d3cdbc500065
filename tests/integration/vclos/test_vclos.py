# SPDX-License-Identifier: Apache-2.0
"""Steering of running switches: source routing, virtual Clos networks, and stray packets.

leaf1: h1 h2, leaf2: h3 h4, each leaf to spine1 and spine2; job a has h1 and h3, job b h2 and h4.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emul import MininetFabric
from netmodel import Flow, OvsHash, PortRef, leaf_spine, path_of
from sdn.isolation.source_routing import SourceRouting
from sdn.isolation.virtual_clos import VirtualClos, sub_clos
from sdn.openflow.steering import Steering
from tests.integration.traffic import address
from tests.integration.vclos.packets import arrives, is_lost

pytestmark = pytest.mark.sandboxed

JOBS = {"a": ["h1", "h3"], "b": ["h2", "h4"]}


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MininetFabric]:
    with MininetFabric(leaf_spine(2, 2, 2, 100_000_000), log_dir=tmp_path_factory.mktemp("fabric")) as made:
        yield made


@pytest.fixture(autouse=True)
def unsteered(fabric: MininetFabric) -> Iterator[None]:
    """Restores the fabric's initial state after each test."""
    yield
    for link in fabric.topology.links:
        fabric.set_link(link, up=True)
    fabric.steer(None)


def seen(fabric: MininetFabric, src: str, dst: str, port: int) -> PortRef:
    """Where the flow has left the leaf."""
    flow = Flow(address(fabric, src), address(fabric, dst), port)
    leaf = fabric.topology.peer(PortRef(src, 1)).node
    return PortRef(leaf, fabric.observed_ports(leaf)[flow])


def predicted(fabric: MininetFabric, steering: Steering, src: str, dst: str, port: int) -> PortRef:
    flow = Flow(address(fabric, src), address(fabric, dst), port)
    return path_of(fabric.topology, flow, OvsHash(), routes=steering.routes(fabric.topology))[1]


def test_source_routing_can_be_changed_while_switches_run(fabric: MininetFabric) -> None:
    for mapping in ({1: 3, 2: 4}, {1: 4, 2: 3}):
        steering = SourceRouting({"leaf1": mapping})
        fabric.steer(steering)
        for src, uplink in (("h1", mapping[1]), ("h2", mapping[2])):
            for port in range(50_000, 50_006):
                assert arrives(fabric, src, "h4", port)
                assert seen(fabric, src, "h4", port) == PortRef("leaf1", uplink)
                assert predicted(fabric, steering, src, "h4", port) == PortRef("leaf1", uplink)
    fabric.steer(None)
    for port in range(50_000, 50_006):
        assert arrives(fabric, "h1", "h4", port)
        flow = Flow(address(fabric, "h1"), address(fabric, "h4"), port)
        assert seen(fabric, "h1", "h4", port) == path_of(fabric.topology, flow, OvsHash())[1]


def test_a_packet_that_leaves_its_virtual_clos_is_dropped_and_counted(fabric: MininetFabric) -> None:
    assert arrives(fabric, "h1", "h4")
    fabric.steer(sub_clos(fabric.topology, JOBS))
    for src, dst in (("h1", "h3"), ("h3", "h1"), ("h2", "h4"), ("h4", "h2")):
        assert arrives(fabric, src, dst)
    assert set(fabric.strays().values()) == {0}
    assert is_lost(fabric, "h1", "h4")  # of the other job, on another leaf
    assert is_lost(fabric, "h1", "h2")  # of the other job, on the same leaf
    assert is_lost(fabric, "h4", "h1")
    assert {port: count for port, count in fabric.strays().items() if count} == {
        PortRef("leaf1", 1): 2,
        PortRef("leaf2", 2): 1,
    }
    fabric.steer(VirtualClos(sub_clos(fabric.topology, JOBS).jobs[:1]))  # job b has ended
    assert arrives(fabric, "h1", "h3")
    assert is_lost(fabric, "h2", "h4")
    fabric.steer(None)
    assert fabric.strays() == {}
    assert arrives(fabric, "h1", "h4")


def test_jobs_keep_to_their_links_when_one_dies(fabric: MininetFabric) -> None:
    steering = sub_clos(fabric.topology, JOBS)
    fabric.steer(steering)
    own = {job.job: {fabric.topology.link_at(port) for port in job.uplinks} for job in steering.jobs}
    (link,) = [link for link in own["a"] if "leaf1" in (link.a.node, link.b.node)]
    fabric.set_link(link, up=False)
    assert is_lost(fabric, "h1", "h3")  # job a had this one only, and takes none of job b's
    assert arrives(fabric, "h2", "h4")
    fabric.set_link(link, up=True)
    assert arrives(fabric, "h1", "h3")


def test_a_steering_that_does_not_fit_is_refused(fabric: MininetFabric) -> None:
    with pytest.raises(ValueError, match="port 9 of leaf1 is not a host port"):
        fabric.steer(SourceRouting({"leaf1": {9: 3}}))
    assert arrives(fabric, "h1", "h4")
