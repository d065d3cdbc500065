# SPDX-License-Identifier: Apache-2.0
"""Programs follow forwarding, and a change touches only what differs."""

from __future__ import annotations

from ipaddress import IPv4Address

from netmodel import Flow, Link, OvsHash, Topology, forwarding, leaf_spine, path_of
from sdn.openflow.program import EMPTY, Change, Output, Program, ViaGroup, difference, programs

TOPOLOGY = leaf_spine(3, 3, 2, 1_000_000)
H1, H3, H5 = IPv4Address("10.0.0.1"), IPv4Address("10.0.1.1"), IPv4Address("10.0.2.1")


def uplink(topology: Topology, leaf: str, spine: str) -> Link:
    return next(link for link in topology.links if {link.a.node, link.b.node} == {leaf, spine})


def apply(program: Program, steps: Change) -> Program:
    """Carry steps out as a switch does."""
    groups = {number: group for number, group in program.groups.items() if number not in steps.delete_groups}
    groups |= {group.group_id: group for group in (*steps.add_groups, *steps.modify_groups)}
    routes = {address: route for address, route in program.routes.items() if address not in steps.delete_routes}
    return Program(routes | dict(steps.put_routes), groups, program.arp)


def test_groups_hold_the_members_of_forwarding_in_its_order_with_the_switchs_seed() -> None:
    routes = forwarding(TOPOLOGY).groups
    for name, program in programs(TOPOLOGY).items():
        assert set(program.routes) == set(routes[name])
        for address, ports in routes[name].items():
            target = program.routes[address].target
            if len(ports) == 1:
                assert target == Output(ports[0])
            else:
                assert isinstance(target, ViaGroup)
                group = program.groups[target.group_id]
                assert group.ports == ports
                assert group.hash_seed == TOPOLOGY.switch(name).hash_seed


def test_one_group_per_leaf_with_hosts_serves_all_of_its_hosts() -> None:
    leaf1 = programs(TOPOLOGY)["leaf1"]
    assert len(leaf1.groups) == 2
    assert leaf1.routes[H3].target == leaf1.routes[H3 + 1].target != leaf1.routes[H5].target


def test_the_last_hop_sets_the_hosts_mac_and_leaves_answer_arp() -> None:
    held = programs(TOPOLOGY)
    assert held["leaf2"].routes[H3].rewrite_mac == TOPOLOGY.host_of(H3).nics[0].mac
    assert held["leaf1"].routes[H3].rewrite_mac is None
    assert len(held["leaf1"].arp) == 6
    assert held["spine1"].arp == {}


def test_a_dead_uplink_changes_remote_leaves_too_and_only_their_groups() -> None:
    before = programs(TOPOLOGY)
    after = programs(TOPOLOGY, frozenset({uplink(TOPOLOGY, "leaf3", "spine1")}))
    steps = {name: difference(before[name], after[name]) for name in before}
    assert not steps["spine2"]
    assert [group.ports for group in steps["leaf1"].modify_groups] == [before["leaf1"].groups[3].ports[1:]]
    assert not steps["leaf1"].put_routes
    assert before["spine1"].routes[H5].target == Output(3)


def test_a_group_left_with_one_member_becomes_an_output_and_back() -> None:
    before = programs(TOPOLOGY)
    dead = frozenset({uplink(TOPOLOGY, "leaf3", "spine1"), uplink(TOPOLOGY, "leaf3", "spine2")})
    after = programs(TOPOLOGY, dead)
    steps = difference(before["leaf1"], after["leaf1"])
    assert steps.delete_groups == (3,)
    assert after["leaf1"].routes[H5].target == Output(5)
    back = difference(after["leaf1"], before["leaf1"])
    assert [group.group_id for group in back.add_groups] == [3]


def test_the_difference_of_any_two_programs_leads_from_one_to_the_other() -> None:
    states = [
        programs(TOPOLOGY, frozenset(dead))
        for dead in ((), TOPOLOGY.links[:1], TOPOLOGY.links[6:9], TOPOLOGY.links[7:12])
    ]
    for old in states:
        for new in states:
            for name in old:
                assert apply(old[name], difference(old[name], new[name])) == new[name]
                assert bool(difference(old[name], new[name])) == (old[name] != new[name])
    for program in states[0].values():
        assert apply(Program({}, {}, program.arp), difference(EMPTY, program)) == program


def test_bucket_ids_are_indices_of_live_members_as_in_the_predictor() -> None:
    dead = frozenset({uplink(TOPOLOGY, "leaf3", "spine1")})
    group = programs(TOPOLOGY, dead)["leaf1"].groups[3]
    for port in range(50000, 50050):
        flow = Flow(H1, H5, port)
        path = path_of(TOPOLOGY, flow, OvsHash(), routes=forwarding(TOPOLOGY, dead))
        member = int(OvsHash().select(flow.fields(), group.hash_seed, len(group.ports))[0])
        assert group.ports[member] == path[1].port
