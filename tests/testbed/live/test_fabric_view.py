# SPDX-License-Identifier: Apache-2.0
"""Loads of links from the rates of lanes: along predicted paths, and what is said of the busiest link."""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np
import pytest

from netmodel import Flow, OvsHash, PortRef, Topology, fat_tree, leaf_spine, path_of
from testbed.live.fabric_view import FabricLoad, FabricView
from testbed.live.lane_rates import LaneRates
from tests.testbed.live.snapshots import device, lane, survey

RATE_BPS = 10**7


def fabric() -> Topology:
    return leaf_spine(leaves=2, spines=2, hosts_per_leaf=4, host_rate_bps=RATE_BPS)


def sending(topology: Topology, src: str, dst: str, port: int, bps: float) -> LaneRates:
    address, peer = (str(topology.host(name).nics[0].address) for name in (src, dst))
    near_lane = lane(0, peer=peer, port=port)
    there = device(near_lane, address=address)
    return LaneRates(survey(there).processes[0], there, near_lane, bps, 0.0)


def port_via(topology: Topology, src: str, dst: str, spine: str) -> int:
    """A UDP source port whose path crosses this spine."""
    addresses = [topology.host(name).nics[0].address for name in (src, dst)]
    ports = range(50_000, 51_000)
    return next(p for p in ports if spine in {hop.node for hop in path_of(topology, Flow(*addresses, p), OvsHash())})


def test_a_lane_loads_the_links_of_its_predicted_path_with_headers() -> None:
    topology = fabric()
    view = FabricView(topology, OvsHash())
    rates = sending(topology, "h1", "h5", 50_123, 4e6)
    load = view.load([rates])
    flow = Flow(IPv4Address(rates.device.address), IPv4Address(rates.lane.peer), 50_123)
    busy = {view.name(int(link)) for link in load.utilisation.nonzero()[0]}
    path = path_of(topology, flow, OvsHash())
    assert busy == {f"{port.node} to {topology.peer(port).node}" for port in path}
    assert load.utilisation.max() == pytest.approx(0.4 * (4096 + 58) / 4096)
    assert load.outside == 0


def test_lanes_of_other_networks_are_counted() -> None:
    topology = fabric()
    near_lane = lane(0, peer="192.0.2.1")
    there = device(near_lane, address="192.0.2.2")
    load = FabricView(topology, OvsHash()).load([LaneRates(survey(there).processes[0], there, near_lane, 1e6, 0.0)])
    assert load.outside == 1
    assert not load.utilisation.any()


def test_the_busiest_link_is_named_with_its_flows_and_a_remedy() -> None:
    topology = fabric()
    view = FabricView(topology, OvsHash())
    pairs = [("h1", "h5"), ("h2", "h6")]
    ports = [port_via(topology, *pair, "spine1") for pair in pairs]
    load = view.load([sending(topology, *pair, port, RATE_BPS / 2) for pair, port in zip(pairs, ports, strict=True)])
    said = view.advice(load)
    assert said.startswith(f"Busiest: leaf1 to spine1, 101%, with h1 to h5 port {ports[0]}, h2 to h6 port {ports[1]}.")
    assert "leaf1 to spine2 carries 0%" in said
    heat = view.heat(load)
    assert heat["leaf1"] == [(pytest.approx(1.014, abs=1e-3), 0.0), (0.0, 0.0)]
    assert heat["leaf2"] == [(0.0, pytest.approx(1.014, abs=1e-3)), (0.0, 0.0)]


def test_links_to_cores_are_watched_too() -> None:
    topology = fat_tree(4, 20_000_000)
    view = FabricView(topology, OvsHash())
    assert view.leaves == [f"{tier}{n}" for tier in ("leaf", "agg") for n in range(1, 9)]
    assert view.spines == [*(f"agg{n}" for n in range(1, 9)), *(f"core{n}" for n in range(1, 5))]
    utilisation = np.zeros(2 * len(topology.links))
    utilisation[view.link(PortRef("agg3", 4))] = 0.75
    load = FabricLoad(utilisation, {}, 0)
    assert view.name(view.hottest(load)) == "agg3 to core2"
    heat = view.heat(load)
    assert heat["agg3"][view.spines.index("core2")] == (0.75, 0.0)
    assert sum(up + down for row in heat.values() for up, down in row) == 0.75


def test_no_remedy_is_offered_where_all_links_are_busy() -> None:
    topology = fabric()
    view = FabricView(topology, OvsHash())
    flows = [("h1", "h5", "spine1"), ("h2", "h6", "spine1"), ("h3", "h7", "spine2"), ("h4", "h8", "spine2")]
    lanes = [sending(topology, a, b, port_via(topology, a, b, spine), RATE_BPS / 2) for a, b, spine in flows]
    assert view.advice(view.load(lanes)).endswith("are busy: other paths would not help.")


def test_an_idle_fabric_has_no_busiest_link() -> None:
    view = FabricView(fabric(), OvsHash())
    load = view.load([])
    assert view.hottest(load) is None
    assert view.advice(load) == "No lane sends between leaves."
    assert len(view.pairs) == 4
    assert view.name(view.pairs[0][2]) == f"{view.pairs[0][0]} to {view.pairs[0][1]}"
