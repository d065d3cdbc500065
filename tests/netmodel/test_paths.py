# SPDX-License-Identifier: Apache-2.0
import itertools
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from netmodel import (
    CrcHash,
    EcmpHash,
    Flow,
    Forwarding,
    LinuxL4Hash,
    NoRouteError,
    OvsHash,
    PortRef,
    Topology,
    XorHash,
    equal_cost_paths,
    forwarding,
    leaf_spine,
    path_of,
    paths_of_ports,
    ports_for_path,
)
from tests.netmodel.sample import host, link, random_fabric, switch, three_tier

FABRIC = leaf_spine(3, 2, 2, 10**7, parallel_links=2)
FABRICS = [FABRIC, leaf_spine(3, 2, 2, 10**7, parallel_links=2, ipv6=True)]
HASHES: list[EcmpHash] = [OvsHash(), LinuxL4Hash(), CrcHash("crc16"), CrcHash("crc32"), XorHash()]


def refs(*ports: str) -> tuple[PortRef, ...]:
    return tuple(map(PortRef.parse, ports))


def test_hosts_on_one_leaf_have_one_path() -> None:
    assert equal_cost_paths(FABRIC, "h1", "h2") == (refs("h1:1", "leaf1:2"),)


def test_paths_across_leaves_multiply_parallel_links_in_port_order() -> None:
    paths = equal_cost_paths(FABRIC, "h1", "h4")
    assert len(paths) == len(set(paths)) == 2 * 2 * 2
    assert paths[0] == refs("h1:1", "leaf1:3", "spine1:3", "leaf2:2")
    assert paths[-1] == refs("h1:1", "leaf1:6", "spine2:4", "leaf2:2")
    assert list(paths) == sorted(paths)


def test_paths_through_three_tiers() -> None:
    topology = three_tier(pods=2, leaves=2, aggregations=2, cores=3)
    assert {len(path) for path in equal_cost_paths(topology, "h0-0", "h0-1")} == {4}
    far = equal_cost_paths(topology, "h0-0", "h1-1")
    assert {len(path) for path in far} == {6}
    assert len(far) == 2 * 3 * 2  # aggregation switch up, core, aggregation switch down


@pytest.mark.parametrize("fabric", FABRICS, ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("hash_", HASHES, ids=str)
def test_ports_for_path_inverts_paths_of_ports(hash_: EcmpHash, fabric: Topology) -> None:
    paths, index = paths_of_ports(fabric, "h1", "h4", hash_)
    assert paths == equal_cost_paths(fabric, "h1", "h4")
    assert index.shape == (16_384,)
    for number, path in enumerate(paths):
        ports = ports_for_path(fabric, "h1", "h4", path, hash_)
        assert ports.dtype == np.uint16
        assert ports.tolist() == (0xC000 + np.flatnonzero(index == number)).tolist()
    src, dst = (fabric.host(name).nics[0].address for name in ("h1", "h4"))
    for port in range(0xC000, 0x10000, 997):
        assert path_of(fabric, Flow(src, dst, port), hash_) == paths[index[port - 0xC000]]


def test_seeds_of_leaf_and_spine_decorrelate_their_choices() -> None:
    paths, index = paths_of_ports(FABRIC, "h1", "h4", OvsHash())
    counts = np.bincount(index, minlength=len(paths))
    assert counts.min() > 0.8 * 16_384 / len(paths)


@given(st.integers(0, 10**6), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_every_prediction_is_an_equal_cost_path(seed: int, src_port: int, dst_port: int) -> None:
    topology, dead = random_fabric(seed)
    routes = forwarding(topology, dead)
    src, dst = topology.hosts[0], topology.hosts[-1]
    try:
        paths = equal_cost_paths(topology, src.name, dst.name, routes=routes)
    except NoRouteError:
        assume(False)
    flow = Flow(src.nics[0].address, dst.nics[0].address, src_port, dst_port)
    path = path_of(topology, flow, OvsHash(), routes=routes)
    assert path in paths
    assert len({len(each) for each in paths}) == 1
    assert topology.peer(path[-1]) == PortRef(dst.name, 1)
    for here, onward in itertools.pairwise(path):
        assert topology.peer(here).node == onward.node
    assert not {topology.link_at(port) for port in path} & dead
    same, index = paths_of_ports(topology, src.name, dst.name, OvsHash(), [src_port] * 2, dst_port, routes=routes)
    assert [same[i] for i in index] == [path, path]
    if src_port >= 0xC000:
        chosen = ports_for_path(topology, src.name, dst.name, path, OvsHash(), dst_port, routes=routes)
        assert src_port in chosen.tolist()


def test_dead_links_move_flows() -> None:
    dead = FABRIC.link_at(PortRef("leaf1", 3))
    routes = forwarding(FABRIC, frozenset({dead}))
    paths, index = paths_of_ports(FABRIC, "h1", "h4", OvsHash(), routes=routes)
    assert len(paths) == 6
    assert PortRef("leaf1", 3) not in {port for path in paths for port in path}
    assert index.max() == 5
    with pytest.raises(ValueError, match="is not an equal-cost path"):
        ports_for_path(FABRIC, "h1", "h4", equal_cost_paths(FABRIC, "h1", "h4")[0], OvsHash(), routes=routes)


def test_a_dead_link_of_the_source_host_leaves_no_path() -> None:
    routes = forwarding(FABRIC, frozenset({FABRIC.link_at(PortRef("h1", 1))}))
    with pytest.raises(NoRouteError, match=r"no path from 'h1' to 10\.0\.1\.2: the link at h1:1 is dead"):
        equal_cost_paths(FABRIC, "h1", "h4", routes=routes)


def test_chosen_ports_keep_their_order_and_may_be_none() -> None:
    paths, index = paths_of_ports(FABRIC, "h1", "h4", OvsHash(), np.array([60000, 50000, 60000]))
    assert index[0] == index[2]
    assert paths_of_ports(FABRIC, "h1", "h4", OvsHash(), [])[1].shape == (0,)
    assert paths_of_ports(FABRIC, "h1", "h4", OvsHash(), [50000])[1].tolist() == [index[1]]
    assert len(paths) == 8


def test_a_path_that_no_port_takes_has_no_ports() -> None:
    # XOR and CRC only XOR their seed in, so leaf and spine choose alike and half of the paths stay empty.
    counts = [ports_for_path(FABRIC, "h1", "h4", p, XorHash()).size for p in equal_cost_paths(FABRIC, "h1", "h4")]
    assert sum(counts) == 16_384
    assert counts.count(0) == 4


TWO_NICS = Topology(
    "two-nics",
    (host("h1", "10.0.0.1", "10.1.0.1"), host("h2", "10.0.0.2", "10.1.0.2"), host("h3", "10.0.0.3")),
    (switch("leaf1", "leaf", 1), switch("leaf2", "leaf", 2)),
    tuple(link(*ends) for ends in (("h1:1", "leaf1:1"), ("h1:2", "leaf2:1"), ("h2:1", "leaf1:2"), ("h2:2", "leaf2:2"))),
    1500,
)


def test_nics_are_chosen_by_index() -> None:
    assert equal_cost_paths(TWO_NICS, "h1", "h2") == (refs("h1:1", "leaf1:2"),)
    assert equal_cost_paths(TWO_NICS, "h1", "h2", src_nic=1, dst_nic=1) == (refs("h1:2", "leaf2:2"),)
    path = refs("h1:2", "leaf2:2")
    assert ports_for_path(TWO_NICS, "h1", "h2", path, OvsHash(), src_nic=1, dst_nic=1).size == 16_384
    with pytest.raises(ValueError, match="host 'h3' has no NIC 1: it has 1"):
        equal_cost_paths(TWO_NICS, "h1", "h3", dst_nic=1)


def test_unreachable_destinations_raise_with_the_reason() -> None:
    with pytest.raises(NoRouteError, match=r"no path from 'h1' to 10\.1\.0\.2: switch 'leaf1' has no path"):
        equal_cost_paths(TWO_NICS, "h1", "h2", dst_nic=1)
    with pytest.raises(NoRouteError, match=r"no path from 'h1' to 10\.0\.0\.3: no NIC with address"):
        path_of(TWO_NICS, Flow(IPv4Address("10.0.0.1"), IPv4Address("10.0.0.3"), 50000), OvsHash())
    with pytest.raises(NoRouteError, match="no link of topology 'two-nics' is plugged into port h3:1"):
        paths_of_ports(TWO_NICS, "h3", "h1", OvsHash())


@pytest.mark.parametrize("path", [(), refs("h1:1"), refs("h1:1", "leaf1:2"), refs("h2:1", "leaf1:3", "spine1:3")])
def test_a_path_that_is_not_an_equal_cost_path_is_refused(path: tuple[PortRef, ...]) -> None:
    with pytest.raises(ValueError, match="is not an equal-cost path from 'h1' to 'h4'"):
        ports_for_path(FABRIC, "h1", "h4", path, OvsHash())


def test_a_path_beyond_its_destination_is_refused() -> None:
    path = equal_cost_paths(FABRIC, "h1", "h4")[0]
    with pytest.raises(ValueError, match="is not an equal-cost path"):
        ports_for_path(FABRIC, "h1", "h4", (*path, PortRef("h4", 1)), OvsHash())


def test_routes_that_loop_or_end_elsewhere_are_refused() -> None:
    fabric = leaf_spine(2, 1, 1, 10**7)
    dst = IPv4Address("10.0.1.1")
    loop = Forwarding({"leaf1": {dst: (2,)}, "spine1": {dst: (1,)}})
    with pytest.raises(NoRouteError, match=r"the routes to 10\.0\.1\.1 loop: h1:1 leaf1:2 spine1:1"):
        path_of(fabric, Flow(IPv4Address("10.0.0.1"), dst, 50000), OvsHash(), routes=loop)
    with pytest.raises(NoRouteError, match="loop"):
        equal_cost_paths(fabric, "h1", "h2", routes=loop)
    astray = Forwarding({"leaf1": {dst: (1,)}})
    with pytest.raises(NoRouteError, match="end at host 'h1', which does not own it"):
        path_of(fabric, Flow(IPv4Address("10.0.0.1"), dst, 50000), OvsHash(), routes=astray)


def test_wrong_arguments_are_refused() -> None:
    address = FABRIC.host("h1").nics[0].address
    with pytest.raises(KeyError, match="no host 'h99'"):
        equal_cost_paths(FABRIC, "h1", "h99")
    with pytest.raises(KeyError, match=r"has the address 9\.9\.9\.9"):
        path_of(FABRIC, Flow(address, IPv4Address("9.9.9.9"), 50000), OvsHash())
    with pytest.raises(ValueError, match="both on host 'h1'"):
        equal_cost_paths(FABRIC, "h1", "h1")
    with pytest.raises(ValueError, match="both on host 'h1'"):
        path_of(FABRIC, Flow(address, address, 50000), OvsHash())
    with pytest.raises(ValueError, match="port 65536"):
        Flow(address, address, 65536)
    with pytest.raises(ValueError, match="port -1"):
        paths_of_ports(FABRIC, "h1", "h4", OvsHash(), [-1])
    with pytest.raises(ValueError, match="array of integers"):
        paths_of_ports(FABRIC, "h1", "h4", OvsHash(), [1.5])
    with pytest.raises(ValueError, match="port 70000"):
        ports_for_path(FABRIC, "h1", "h4", equal_cost_paths(FABRIC, "h1", "h4")[0], OvsHash(), 70000)
