# SPDX-License-Identifier: Apache-2.0
"""Fabrics with rails: links and reachability."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import (
    PortRef,
    SpecError,
    Topology,
    TopologySpec,
    dump_topology,
    equal_cost_paths,
    forwarding,
    parse_yaml,
    rail_only,
    rail_optimised,
    tiers,
    uplinks,
)
from netmodel import pods as pods_of

RAIL, HB = 10_000_000, 80_000_000
ONLY = "rail_only: {domains: 4, gpus_per_domain: 2, rail_rate: 10M, hb_rate: 80M}"
OPTIMISED = "rail_optimised: {domains: 4, gpus_per_domain: 2, rail_rate: 10M, hb_rate: 80M, spines: 3}"


def read(text: str) -> Topology:
    return parse_yaml(text, TopologySpec, file="t.yaml").topology


def home(topology: Topology, domain: int, gpu: int, nic: int) -> str:
    return topology.peer(PortRef(f"d{domain}g{gpu}", nic + 1)).node


def reaches(topology: Topology, switch: str, domain: int, gpu: int, nic: int) -> bool:
    return topology.host(f"d{domain}g{gpu}").nics[nic].address in forwarding(topology).groups[switch]


@given(
    m=st.integers(1, 5), k=st.integers(1, 5), leaves=st.integers(1, 3), spines=st.integers(1, 3), shared=st.booleans()
)
def test_rails_join_equal_ranks_and_domains_join_their_gpus(
    m: int, k: int, leaves: int, spines: int, shared: bool
) -> None:
    build = rail_optimised if shared else rail_only
    topology = build(m * leaves, k, RAIL, HB, spines=spines, leaves_per_rail=leaves)
    for d in range(1, m * leaves + 1):
        for g in range(1, k + 1):
            rail, domain = home(topology, d, g, 0), home(topology, d, g, 1)
            for other_d in range(1, m * leaves + 1):
                for other_g in range(1, k + 1):
                    assert reaches(topology, rail, other_d, other_g, 0) == (shared or g == other_g)
                    assert reaches(topology, domain, other_d, other_g, 1) == (d == other_d)
                    assert not reaches(topology, rail, other_d, other_g, 1)
    # Domains are spread over a rail's leaves evenly, and every leaf sees all of its spines.
    hosts = Counter(home(topology, d, g, 0) for d in range(1, m * leaves + 1) for g in range(1, k + 1))
    assert set(hosts.values()) == {m}
    assert len(hosts) == k * leaves


def test_a_rail_only_fabric_has_no_spines_and_names_by_position() -> None:
    topology = rail_only(4, 2, RAIL, HB)
    assert [switch.name for switch in topology.switches] == ["rail1", "rail2", "hb1", "hb2", "hb3", "hb4"]
    assert [str(nic.address) for nic in topology.host("d3g2").nics] == ["10.1.0.3", "10.128.2.2"]
    assert topology.peer(PortRef("d3g2", 1)) == PortRef("rail2", 3)
    assert topology.peer(PortRef("d3g2", 2)) == PortRef("hb3", 2)
    rates = {nic: topology.link_at(PortRef("d3g2", nic)).rate_bps for nic in (1, 2)}
    assert rates == {1: RAIL, 2: HB}


def test_a_rail_optimised_fabric_crosses_rails_over_every_spine() -> None:
    topology = rail_optimised(2, 2, RAIL, HB, spines=3)
    assert len(equal_cost_paths(topology, "d1g1", "d2g2")) == 3
    assert len(equal_cost_paths(topology, "d1g1", "d2g1")) == 1


@given(
    share=st.integers(1, 2),
    k=st.integers(1, 3),
    pods=st.integers(2, 3),
    leaves=st.integers(1, 2),
    aggs=st.integers(1, 2),
    cores=st.integers(1, 2),
    shared=st.booleans(),
)
def test_rails_over_three_tiers(
    share: int, k: int, pods: int, leaves: int, aggs: int, cores: int, shared: bool
) -> None:
    build = rail_optimised if shared else rail_only
    per_rail = pods * leaves
    topology = build(
        share * per_rail, k, RAIL, HB, aggs, per_rail, RAIL, pods=pods, cores_per_agg=cores, core_rate_bps=HB
    )
    tier, pod = tiers(topology), pods_of(topology)
    planes = 1 if shared else k
    assert Counter(tier.values()) == {
        1: k * per_rail + share * per_rail,
        2: planes * pods * aggs,
        3: planes * aggs * cores,
    }
    leaf = {(d, g): home(topology, d, g, 0) for d in range(1, share * per_rail + 1) for g in range(1, k + 1)}
    for (d, g), near in leaf.items():
        for (other_d, other_g), far in leaf.items():
            if (d, g) == (other_d, other_g):
                continue
            if not shared and g != other_g:
                assert not reaches(topology, near, other_d, other_g, 0)
                continue
            paths = len(equal_cost_paths(topology, f"d{d}g{g}", f"d{other_d}g{other_g}"))
            assert paths == (1 if near == far else aggs if pod[near] == pod[far] else aggs * cores)
    between = {topology.link_at(port).rate_bps for port in uplinks(topology) if tier[port.node] == 2}
    assert between == {HB}


def test_three_tiers_of_rails_are_read_from_yaml() -> None:
    text = OPTIMISED.replace("spines: 3", "spines: 3, leaves_per_rail: 2, pods: 2, cores_per_agg: 2, core_rate: 20M")
    built = rail_optimised(4, 2, RAIL, HB, 3, 2, pods=2, cores_per_agg=2, core_rate_bps=2 * RAIL)
    assert read(text) == built
    assert read(dump_topology(built)) == built
    with pytest.raises(SpecError, match="3 leaves of a rail cannot be parted evenly among 2 pods"):
        read(text.replace("leaves_per_rail: 2", "leaves_per_rail: 3").replace("domains: 4", "domains: 6"))


def test_many_domains_and_gpus_have_distinct_addresses() -> None:
    topology = rail_only(600, 3, RAIL, HB)
    assert str(topology.host("d255g2").nics[0].address) == "10.1.1.1"
    assert str(topology.host("d600g3").nics[1].address) == "10.130.87.3"


def test_domains_of_256_gpus_have_distinct_addresses() -> None:
    topology = rail_only(3, 256, RAIL, HB)
    addresses = [nic.address for host in topology.hosts for nic in host.nics]
    assert len(set(addresses)) == 2 * 3 * 256
    assert [str(nic.address) for nic in topology.host("d2g256").nics] == ["10.255.0.2", "100.64.3.0"]
    assert home(topology, 2, 256, 0) == "rail256"
    assert reaches(topology, "hb2", 2, 256, 1)


def test_rail_fabrics_are_built_from_parameters_in_yaml() -> None:
    assert read(ONLY) == rail_only(4, 2, RAIL, HB)
    assert read(OPTIMISED) == rail_optimised(4, 2, RAIL, HB, 3)
    assert read(dump_topology(read(OPTIMISED))) == read(OPTIMISED)


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (ONLY, "domains: 4", "domains: 0", "1: rail_only.domains: domains is 0, but must lie in 1..32768"),
        (ONLY, "domain: 2", "domain: 257", "1: rail_only.gpus_per_domain: gpus_per_domain is 257, but must lie in"),
        (ONLY, "80M", "0", "1: rail_only.hb_rate: rate 0 must lie between"),
        (ONLY, "80M", "80M, leaves_per_rail: 2", "1: rail_only.leaves_per_rail: 2 leaves of a rail need"),
        (ONLY, "80M", "80M, spines: 1, leaves_per_rail: 3", "1: rail_only.leaves_per_rail: 4 domains cannot be parted"),
        (ONLY, "rail_only:", "name: x\nrail_only:", "1: name: give either rail_only or name, not both"),
        (ONLY, "rail_only:", f"{OPTIMISED}\nrail_only:", "2: rail_only: give either rail_optimised or rail_only"),
        (OPTIMISED, "spines: 3", "spines: 0", "1: rail_optimised.spines: spines is 0, but must lie in 1..65535"),
        (OPTIMISED, ", spines: 3", "", "1: rail_optimised.spines: is missing"),
    ],
)
def test_errors_name_line_and_field(text: str, old: str, new: str, expected: str) -> None:
    assert old in text
    with pytest.raises(SpecError) as refusal:
        read(text.replace(old, new, 1))
    assert str(refusal.value).startswith(f"t.yaml:{expected}")
