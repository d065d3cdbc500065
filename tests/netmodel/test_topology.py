# SPDX-License-Identifier: Apache-2.0
import dataclasses
import math
import pickle
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import (
    Host,
    Nic,
    PortRef,
    Switch,
    Topology,
    TopologyError,
    derived_hash_seed,
    derived_mac,
    direct_connect,
    leaf_spine,
    rail_only,
    rail_optimised,
)
from tests.netmodel.sample import host, link, switch

H1, H2 = host("h1", "10.0.0.1"), host("h2", "10.0.0.2")
LEAF = switch("leaf1", "leaf", 1)
CABLES = (link("h1:1", "leaf1:1"), link("h2:1", "leaf1:2"))
PAIR = Topology("pair", (H1, H2), (LEAF,), CABLES, 1500)


def test_leaf_spine_numbers_hosts_first_and_then_uplinks_by_spine() -> None:
    fabric = leaf_spine(2, 3, 4, 10**7, 10**8, parallel_links=2)
    assert [h.name for h in fabric.hosts] == [f"h{i}" for i in range(1, 9)]
    assert [s.name for s in fabric.switches] == ["leaf1", "leaf2", "spine1", "spine2", "spine3"]
    assert [s.dpid for s in fabric.switches] == [1, 2, 3, 4, 5]
    assert fabric.host("h6").nics[0].address == IPv4Address("10.0.1.2")
    assert fabric.peer(PortRef("h6", 1)) == PortRef("leaf2", 2)
    assert fabric.peer(PortRef("leaf2", 5)) == PortRef("spine1", 3)
    assert fabric.peer(PortRef("leaf2", 6)) == PortRef("spine1", 4)
    assert fabric.peer(PortRef("leaf2", 10)) == PortRef("spine3", 4)
    assert fabric.link_at(PortRef("leaf1", 1)).rate_bps == 10**7
    assert fabric.link_at(PortRef("spine3", 4)).rate_bps == 10**8
    assert fabric.mtu_bytes == 9000


def test_a_leaf_spine_with_ipv6_has_the_same_numbers_at_the_end_of_its_addresses() -> None:
    one, other = leaf_spine(2, 2, 2, 10**7), leaf_spine(2, 2, 2, 10**7, ipv6=True)
    assert other.host("h3").nics[0].address == IPv6Address("fd00::a00:101")
    assert [h.nics[0].mac for h in other.hosts] == [h.nics[0].mac for h in one.hosts]
    assert (one.ip_header_bytes, other.ip_header_bytes) == (20, 40)


def test_links_of_a_leaf_spine_are_counted_and_default_to_the_host_rate() -> None:
    fabric = leaf_spine(3, 2, 5, 123, parallel_links=2)
    assert len(fabric.links) == 3 * 5 + 3 * 2 * 2
    assert {each.rate_bps for each in fabric.links} == {123}
    assert len(list(fabric.linked_ports())) == 2 * len(fabric.links)


def test_a_leaf_spine_of_sixteen_thousand_hosts_builds() -> None:
    fabric = leaf_spine(128, 64, 128, 10**11)
    assert len(fabric.hosts) == 16_384
    assert fabric.host_of(IPv4Address("10.0.127.128")).name == "h16384"


def test_addresses_beyond_leaf_256_go_on_in_the_second_byte() -> None:
    fabric = leaf_spine(258, 1, 1, 1)
    assert fabric.host("h257").nics[0].address == IPv4Address("10.1.0.1")
    assert fabric.host("h256").nics[0].address == IPv4Address("10.0.255.1")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"leaves": 0}, "leaves"),
        ({"spines": -1}, "spines"),
        ({"hosts_per_leaf": 255}, "hosts_per_leaf"),
        ({"parallel_links": 0}, "parallel_links"),
        ({"host_rate_bps": 0}, "host_rate"),
        ({"fabric_rate_bps": -5}, "fabric_rate"),
        ({"mtu_bytes": 100}, "mtu_bytes"),
        ({"mtu_bytes": 65536}, "mtu_bytes"),
    ],
)
def test_a_leaf_spine_out_of_range_is_refused_by_argument(arguments: dict[str, int], where: str) -> None:
    good = {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate_bps": 10**7}
    with pytest.raises(TopologyError, match=next(iter(arguments))) as refusal:
        leaf_spine(**{**good, **arguments})
    assert refusal.value.where == (where,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: leaf_spine(60_000, 60_000, 1, 1, parallel_links=60_000),
        lambda: leaf_spine(800, 800, 1, 1, optical_switches=1),
        lambda: rail_optimised(32_768, 128, 1, 1, 1),
        lambda: rail_only(2, 128, 1, 1, spines=10_000, leaves_per_rail=2),
        lambda: direct_connect(50_000, 255, 1),
        lambda: direct_connect(20_000, 20, 1, look_ahead=True),
    ],
)
def test_topologies_too_large_for_memory_are_refused(make: Callable[[], Topology]) -> None:
    with pytest.raises(TopologyError, match="links, and 1,000,000 are the most; take smaller ones"):
        make()


def changed(**changes: object) -> Topology:
    return dataclasses.replace(PAIR, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentence", "where"),
    [
        ({"hosts": (H1, H1)}, "two hosts are called 'h1'", ("hosts", 1, "name")),
        ({"hosts": (H1, Host("h2", ()))}, "host 'h2' has no NIC", ("hosts", 1, "nics")),
        (
            {"hosts": (H1, host("h2", "10.0.0.1"))},
            "hosts 'h1' and 'h2' both have address 10.0.0.1",
            ("hosts", 1, "nics", 0, "address"),
        ),
        (
            {"hosts": (H1, Host("h2", (Nic("nic0", IPv4Address("10.0.0.2"), H1.nics[0].mac),)))},
            "two NICs have the MAC",
            ("hosts", 1, "nics", 0, "mac"),
        ),
        (
            {"hosts": (H1, Host("h2", (Nic("nic0", IPv4Address("10.0.0.2"), "02:00"),)))},
            "MAC '02:00' of host 'h2' must be written like",
            ("hosts", 1, "nics", 0, "mac"),
        ),
        (
            {"hosts": (H1, Host("h2", (H2.nics[0], dataclasses.replace(H2.nics[0]))))},
            "two NICs of host 'h2' have the same name",
            ("hosts", 1, "nics"),
        ),
        ({"hosts": (H1, host("2 h", "10.0.0.2"))}, "must start with a letter", ("hosts", 1, "name")),
        ({"switches": (switch("h1", "leaf", 1),)}, "two nodes are called 'h1'", ("switches", 0, "name")),
        ({"switches": (LEAF, switch("s", "spine", 1))}, "both have dpid 1", ("switches", 1, "dpid")),
        ({"switches": (Switch("leaf1", "leaf", 0, 0),)}, "dpid 0 of switch 'leaf1'", ("switches", 0, "dpid")),
        ({"switches": (Switch("leaf1", "leaf", 1, 2**64),)}, "hash_seed", ("switches", 0, "hash_seed")),
        ({"switches": (Switch("leaf1", "top", 1, 0),)}, "role 'top'", ("switches", 0, "role")),  # type: ignore[arg-type]
        ({"links": (link("h1:1", "leaf2:1"),)}, "there is no host or switch 'leaf2'", ("links", 0, "b")),
        ({"links": (link("h1:2", "leaf1:1"),)}, "the ports of host 'h1' .* are 1..1", ("links", 0, "a")),
        (
            {"links": (*CABLES, link("leaf1:2", "leaf1:3"))},
            "two links are plugged into port leaf1:2",
            ("links", 2, "a"),
        ),
        ({"links": (link("leaf1:0", "h1:1"),)}, "switch ports are 1..65535", ("links", 0, "a")),
        ({"links": (link("h1:1", "h2:1"),)}, "joins two hosts", ("links", 0)),
        ({"links": (link("leaf1:4", "leaf1:5"),)}, "to itself", ("links", 0)),
        ({"links": (link("h1:1", "leaf1:1", 0),)}, "rate of link h1:1 to leaf1:1 is 0 bit/s", ("links", 0, "rate")),
        *(
            (
                {"links": (dataclasses.replace(CABLES[0], delay_s=delay_s),)},
                f"delay of link h1:1 to leaf1:1 is {delay_s} s, but must lie in 0..1",
                ("links", 0, "delay"),
            )
            for delay_s in (-1e-9, 1.1, math.nan)
        ),
        ({"mtu_bytes": 575}, "mtu_bytes is 575", ("mtu_bytes",)),
        ({"name": ""}, "topology name", ("name",)),
    ],
)
def test_contradictions_are_refused_with_a_sentence_and_a_place(
    changes: dict[str, object], sentence: str, where: tuple[str | int, ...]
) -> None:
    with pytest.raises(TopologyError, match=sentence) as refusal:
        changed(**changes)
    assert refusal.value.where == where


def test_look_ups_by_name_address_and_port() -> None:
    assert PAIR.host("h2") is H2
    assert PAIR.switch("leaf1") is LEAF
    assert PAIR.has_host("h1")
    assert not PAIR.has_host("leaf1")
    assert PAIR.host_of(IPv4Address("10.0.0.2")) is H2
    assert PAIR.port_of(IPv4Address("10.0.0.2")) == PortRef("h2", 1)
    assert PAIR.peer(PortRef("leaf1", 2)) == PortRef("h2", 1)
    assert PAIR.link_at(PortRef("h1", 1)) is CABLES[0]


def test_failed_look_ups_name_what_is_missing() -> None:
    for look_up, sentence in (
        (lambda: PAIR.host("h9"), "topology 'pair' has no host 'h9'"),
        (lambda: PAIR.switch("h1"), "topology 'pair' has no switch 'h1'"),
        (lambda: PAIR.host_of(IPv4Address("10.9.9.9")), "no host of topology 'pair' has the address 10.9.9.9"),
        (lambda: PAIR.peer(PortRef("leaf1", 3)), "no link of topology 'pair' is plugged into port leaf1:3"),
    ):
        with pytest.raises(KeyError) as failure:
            look_up()
        assert failure.value.args == (sentence,)


def test_a_topology_is_a_value() -> None:
    again = leaf_spine(2, 2, 2, 10**7)
    assert again == leaf_spine(2, 2, 2, 10**7)
    assert hash(again) == hash(leaf_spine(2, 2, 2, 10**7))
    assert again != leaf_spine(2, 2, 2, 10**6)
    assert pickle.loads(pickle.dumps(again)) == again
    assert "_index" not in repr(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.name = "other"  # type: ignore[misc]


@given(st.sets(st.integers(0, 2**64 - 1), min_size=2))
def test_hash_seeds_of_distinct_switches_are_distinct(dpids: set[int]) -> None:
    seeds = {derived_hash_seed(dpid) for dpid in dpids}
    assert len(seeds) == len(dpids)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_hash_seeds_of_neighbours_differ_in_about_half_their_bits() -> None:
    flips = [(derived_hash_seed(dpid) ^ derived_hash_seed(dpid + 1)).bit_count() for dpid in range(1, 1000)]
    assert 30 < sum(flips) / len(flips) < 34
    assert derived_hash_seed(0) == 0xE220A8397B1DCDAF  # first output of SplitMix64 seeded with 0


def test_a_derived_mac_is_local_and_contains_the_address() -> None:
    assert derived_mac(IPv4Address("10.0.255.1")) == "02:00:0a:00:ff:01"


@pytest.mark.parametrize("text", ["leaf1:5", "h1:1", "a-b.c_d:65535"])
def test_a_port_is_parsed_as_it_is_written(text: str) -> None:
    assert str(PortRef.parse(text)) == text


@pytest.mark.parametrize("text", ["", "leaf1", ":3", "leaf1:", "leaf1:x", "leaf1:-1", "leaf1:1.0", "leaf1:123456"])
def test_a_text_that_is_not_a_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a port: write it like 'leaf1:3'"):
        PortRef.parse(text)
