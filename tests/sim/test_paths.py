# SPDX-License-Identifier: Apache-2.0
"""Hashed paths of many flows at once equal those of single flows."""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np
import pytest

from netmodel import (
    CrcHash,
    EcmpHash,
    Flow,
    FlowFields,
    LinuxL4Hash,
    NoRouteError,
    OvsHash,
    PortRef,
    XorHash,
    forwarding,
    in_order_of,
    leaf_spine,
    path_of,
)
from netmodel.flow import address_array
from sim.links import Links
from sim.paths import hashed_paths, spread_paths

TOPOLOGY = leaf_spine(4, 3, 3, 10**9, parallel_links=2)


def random_flows(count: int, seed: int) -> list[Flow]:
    rng = np.random.default_rng(seed)
    addresses = [host.nics[0].address for host in TOPOLOGY.hosts]
    pairs = [rng.choice(len(addresses), 2, replace=False) for _ in range(count)]
    return [Flow(addresses[a], addresses[b], int(rng.integers(0xC000, 0x10000))) for a, b in pairs]


def fields(flows: list[Flow]) -> FlowFields:
    return FlowFields(
        src=np.array([int(flow.src) for flow in flows], dtype=np.uint32),
        dst=np.array([int(flow.dst) for flow in flows], dtype=np.uint32),
        sport=np.array([flow.src_port for flow in flows], dtype=np.uint16),
        dport=np.array([4791], dtype=np.uint16),
        proto=np.array([17], dtype=np.uint8),
    )


@pytest.mark.parametrize("ecmp_hash", [OvsHash(), LinuxL4Hash(), CrcHash("crc32"), XorHash()], ids=repr)
@pytest.mark.parametrize("dead", [(), ("leaf1:4", "leaf2:9")], ids=["whole", "with dead links"])
def test_paths_of_many_flows_equal_those_of_single_flows(ecmp_hash: EcmpHash, dead: tuple[str, ...]) -> None:
    cut = {TOPOLOGY.link_at(PortRef.parse(text)) for text in dead}
    routes = forwarding(TOPOLOGY, frozenset(cut))
    links, flows = Links(TOPOLOGY), random_flows(80, 7)
    rows = hashed_paths(links, fields(flows), ecmp_hash, routes)
    for flow, row in zip(flows, rows.tolist(), strict=True):
        expected = links.row(path_of(TOPOLOGY, flow, ecmp_hash, routes=routes))
        assert row == expected + [-1] * (len(row) - len(expected))


@pytest.mark.parametrize("ecmp_hash", [LinuxL4Hash(), OvsHash()], ids=repr)
def test_hosts_of_one_leaf_may_be_reached_by_groups_in_different_orders(ecmp_hash: EcmpHash) -> None:
    """As those that routers give to their kernels, one address at a time."""
    rng = np.random.default_rng(3)
    order = {
        name: {str(address): rng.permutation(ports).tolist() for address, ports in groups.items()}
        for name, groups in forwarding(TOPOLOGY).groups.items()
    }
    routes = in_order_of(order, forwarding(TOPOLOGY))
    links, flows = Links(TOPOLOGY), random_flows(80, 7)
    rows = hashed_paths(links, fields(flows), ecmp_hash, routes)
    for flow, row in zip(flows, rows.tolist(), strict=True):
        expected = links.row(path_of(TOPOLOGY, flow, ecmp_hash, routes=routes))
        assert row == expected + [-1] * (len(row) - len(expected))


def test_a_host_that_is_cut_off_has_no_path() -> None:
    routes = forwarding(TOPOLOGY, frozenset({TOPOLOGY.link_at(PortRef("h1", 1))}))
    flow = Flow(IPv4Address("10.0.1.1"), IPv4Address("10.0.0.1"), 0xC000)
    with pytest.raises(NoRouteError, match="h1:1 is dead"):
        hashed_paths(Links(TOPOLOGY), fields([flow]), OvsHash(), routes)


def test_links_are_numbered_by_egress_port() -> None:
    links = Links(TOPOLOGY)
    assert len(links) == len(links.ports) == len(links.rate_bps)
    for number, port in enumerate(links.ports):
        assert links.number(port) == number
        assert links.ports[Links.back(number)] == TOPOLOGY.peer(port)
    with pytest.raises(KeyError):
        links.number(PortRef("leaf1", 99))


def test_a_switch_spreads_evenly_over_all_equal_cost_ports() -> None:
    topology = leaf_spine(2, 4, 2, 10**9)
    links = Links(topology)
    h1, h2, h3 = (topology.hosts[n].nics[0].address for n in range(3))
    spread = spread_paths(links, address_array([h1, h1]), address_array([h3, h2]))
    own = spread.links[: spread.uses[1]].tolist(), spread.shares[: spread.uses[1]].tolist()
    assert sorted(own[1]) == [0.25] * 8 + [1.0] * 2
    ups = {links.number(PortRef("leaf1", port)) for port in (3, 4, 5, 6)}
    assert {link for link, share in zip(*own, strict=True) if share < 1} > ups
    assert spread.shares[spread.uses[1] :].tolist() == [1.0, 1.0]  # two hosts of one leaf
    routes = forwarding(topology, frozenset({topology.link_at(PortRef("leaf1", 3))}))
    assert sorted(spread_paths(links, address_array([h1]), address_array([h3]), routes).shares) == pytest.approx(
        [1 / 3] * 6 + [1.0] * 2
    )
