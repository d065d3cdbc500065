# SPDX-License-Identifier: Apache-2.0
"""Addresses and AS numbers of routers, which follow from the topology."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from netmodel import (
    Nic,
    Topology,
    TopologyError,
    clos,
    fat_tree,
    in_planes,
    leaf_spine,
    rail_only,
    router_addresses,
)

RATE = 10_000_000


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("planes", [1, 2])
def test_every_router_and_every_end_of_a_link_has_an_address_of_its_own(ipv6: bool, planes: int) -> None:
    topology = in_planes(clos(2, 2, 2, 2, 3, RATE, parallel_links=2, ipv6=ipv6), planes)
    given = router_addresses(topology)
    assert set(given.loopback) == {switch.name for switch in topology.switches}
    between = [link for link in topology.links if not topology.has_host(link.a.node)]
    assert set(given.port) == {end for link in between for end in (link.a, link.b)}
    everything = [*given.loopback.values(), *given.port.values(), *(n.address for h in topology.hosts for n in h.nics)]
    assert len(set(everything)) == len(everything)
    assert {address.version for address in everything} == {6 if ipv6 else 4}
    length = 127 if ipv6 else 31
    for link in between:
        assert given.port[link.b] in ip_network(f"{given.port[link.a]}/{length}")


def test_they_are_the_same_for_every_reader() -> None:
    given = router_addresses(fat_tree(4, RATE))
    assert given.loopback["leaf1"] == ip_address("192.168.0.1")
    assert given.loopback["core4"] == ip_address("192.168.0.20")
    first = min(given.port, key=lambda end: given.port[end])
    assert (str(first), str(given.port[first])) == ("leaf1:3", "172.16.0.0")
    assert max(map(str, given.port.values())) == "172.16.0.9"
    assert str(max(given.port.values())) == "172.16.0.63"
    assert str(router_addresses(fat_tree(4, RATE, ipv6=True)).loopback["agg1"]) == "fd01::9"


@pytest.mark.parametrize(
    ("topology", "numbers"),
    [(fat_tree(4, RATE), 8 + 4 + 1), (leaf_spine(3, 2, 1, RATE), 3 + 1), (rail_only(2, 2, RATE, RATE), 2 + 2)],
)
def test_switches_of_an_upper_tier_share_a_number_by_pod(topology: Topology, numbers: int) -> None:
    asn = router_addresses(topology).asn
    assert len(set(asn.values())) == numbers
    assert all(4_200_000_000 < number <= 4_294_967_294 for number in asn.values())
    leaves = Counter(number for name, number in asn.items() if name.startswith(("leaf", "rail", "hb")))
    assert set(leaves.values()) == {1}


def test_the_aggs_of_a_pod_share_a_number_and_all_cores() -> None:
    asn = router_addresses(fat_tree(4, RATE)).asn
    assert asn["agg1"] == asn["agg2"] != asn["agg3"] == asn["agg4"]
    assert len({asn[f"core{n}"] for n in range(1, 5)}) == 1


def test_optical_switches_are_no_routers() -> None:
    given = router_addresses(leaf_spine(2, 2, 1, RATE, optical_switches=2))
    assert (len(given.loopback), given.port) == (4, {})


def test_an_address_of_a_host_is_not_given_again() -> None:
    topology = leaf_spine(2, 1, 1, RATE)
    first = replace(topology.hosts[0], nics=(Nic("nic0", ip_address("172.16.0.2"), "02:00:00:00:00:01"),))
    with pytest.raises(TopologyError, match=r"host 'h1' has the address 172.16.0.2, which router 'leaf2' gets"):
        router_addresses(replace(topology, hosts=(first, *topology.hosts[1:])))
