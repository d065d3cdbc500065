# SPDX-License-Identifier: Apache-2.0
"""Rules on ranges of source ports: what they choose, and the files that switches take."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from netmodel import (
    ENTROPY_PORTS,
    PortRef,
    Topology,
    equal_cost_paths,
    fat_tree,
    forwarding,
    leaf_spine,
    paths_of_ports,
    router_addresses,
)
from netmodel.port_ranges import PortRanges, port_rules
from netmodel.port_rule_files import linux_rules, sonic_acl

RATE = 10**9
TOPOLOGIES = [
    leaf_spine(2, 4, 2, RATE),
    leaf_spine(3, 3, 1, RATE, parallel_links=2, ipv6=True),
    fat_tree(4, RATE),
    fat_tree(6, RATE),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_ports_reach_every_path_and_spread_evenly(topology: Topology) -> None:
    ranges = PortRanges.of(topology, forwarding(topology))
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    paths, taken = paths_of_ports(topology, src, dst, ranges)
    assert set(paths) == set(equal_cost_paths(topology, src, dst))
    counts = Counter(taken.tolist())
    assert len(counts) == len(paths)
    assert max(counts.values()) < 1.1 * min(counts.values())


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
def test_rules_send_every_port_where_it_is_predicted(topology: Topology) -> None:
    routes = forwarding(topology)
    ranges, rules = PortRanges.of(topology, routes), port_rules(topology, routes)
    destination = topology.hosts[-1].nics[0].address
    paths, taken = paths_of_ports(topology, topology.hosts[0].name, topology.hosts[-1].name, ranges)
    for port, index in list(zip(ENTROPY_PORTS, taken.tolist(), strict=True))[:: len(ENTROPY_PORTS) // 500]:
        for hop in paths[index][1:]:
            if len(routes.groups[hop.node][destination]) > 1:
                matching = [
                    rule for rule in rules[hop.node] if destination in rule.network and rule.first <= port <= rule.last
                ]
                assert [rule.out for rule in matching] == [hop]


def test_switches_of_two_tiers_need_seeds_of_their_own() -> None:
    topology = TOPOLOGIES[0]
    same = replace(topology, switches=tuple(replace(one, hash_seed=7) for one in topology.switches))
    with pytest.raises(ValueError, match="also that of a switch of another tier"):
        PortRanges.of(same, forwarding(same))


def test_files_name_the_next_router_and_the_range() -> None:
    topology = TOPOLOGIES[0]
    rules, addresses = port_rules(topology, forwarding(topology)), router_addresses(topology).port
    assert set(rules) == {"leaf1", "leaf2"}  # a spine has one link to each leaf
    far = addresses[topology.peer(PortRef("leaf1", 3))]
    listed = json.loads(sonic_acl(topology, rules, addresses)["leaf1"])
    assert listed["ACL_TABLE"]["PARALET"]["type"] == "L3"
    first = listed["ACL_RULE"]["PARALET|RULE1"]
    assert (first["L4_SRC_PORT_RANGE"], first["REDIRECT_ACTION"]) == ("49152-53247", str(far))
    assert (first["L4_DST_PORT"], first["IP_PROTOCOL"]) == ("4791", "17")
    lines = linux_rules(topology, rules, addresses)["leaf1"].splitlines()
    assert lines[0] == f"route add default via {far} table 20003"
    assert lines[4].startswith("rule add preference 1000 to ")
    assert lines[4].endswith(" ipproto udp dport 4791 sport 49152-53247 lookup 20003")
    assert lines[7].startswith("rule add preference 1001 to ")  # Linux has no range that ends with 65535
    assert lines[7].endswith(" ipproto udp dport 4791 lookup 20006")
