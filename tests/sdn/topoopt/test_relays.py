# SPDX-License-Identifier: Apache-2.0
"""Circuits for jobs and logical connections between all their hosts."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import PortRef, TopologyError, check_circuits, direct_connect, duplex, far_end, joined
from sdn.topoopt import data_parallel, find_topology, select_permutations, totient_perms
from sdn.topoopt.least_load import least_load
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.permutations import ring_circuits
from sdn.topoopt.relays import RelayDown, RelayPlan, next_mac, plan_relays, relay_mac
from sdn.topoopt.routing import Unreachable

RATE = 10_000_000


def hosts_of(count: int) -> list[str]:
    return [f"h{i + 1}" for i in range(count)]


def check(plan: RelayPlan, hosts: list[str]) -> None:
    assert set(plan.connections) == set(permutations(hosts, 2))
    for (a, b), (connection,) in plan.connections.items():
        there, back = connection.there, connection.back
        assert (there.ports[0].node, there.arrival.node) == (a, b)
        assert (back.ports[0], back.arrival) == (there.arrival, there.ports[0])
        for way in (there, back):
            visited = [*(port.node for port in way.ports), way.arrival.node]
            assert len(set(visited)) == len(visited)
            assert plan.ways[way.ports[0], way.arrival] == way


@settings(max_examples=40)
@given(st.integers(3, 10), st.data())
def test_rings_give_every_pair_a_connection_with_a_way_back(size: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(1, min(3, len(totient_perms(size)))))
    topology, hosts = direct_connect(size, degree, RATE), hosts_of(size)
    strides = select_permutations(size, degree, totient_perms(size))
    circuits = patch(topology, hosts, [ring_circuits(range(size), stride) for stride in strides])
    check_circuits(topology, circuits)
    plan = plan_relays(topology, circuits, hosts)
    check(plan, hosts)
    for way in plan.ways.values():
        for port, after in zip(way.ports, (*way.ports[1:], way.arrival), strict=True):
            far = far_end(topology, circuits, port)
            assert far is not None
            assert far.node == after.node


def test_the_routes_of_the_algorithm_are_taken() -> None:
    topology, hosts = direct_connect(8, 2, RATE), hosts_of(8)
    found = find_topology(data_parallel(8, 1e6), 2)
    circuits = patch(topology, hosts, found.layers)
    routes = {(hosts[a], hosts[b]): [[hosts[s] for s in way] for way in ways] for (a, b), ways in found.routes.items()}
    plan = plan_relays(topology, circuits, hosts, routes=routes)
    check(plan, hosts)
    hops = {pair: len(ways[0]) - 1 for pair, ways in routes.items()}
    assert all(connection.there.hops == hops[pair] for pair, (connection,) in plan.connections.items())


def test_only_the_last_hop_is_addressed_to_the_engine() -> None:
    topology, hosts = direct_connect(4, 1, RATE), hosts_of(4)
    circuits = patch(topology, hosts, [ring_circuits(range(4), 1)])
    way = plan_relays(topology, circuits, hosts).connections["h1", "h4"][0].there
    assert way.relays == ("h2", "h3")
    target = topology.host("h4").nics[0]
    macs = [next_mac(topology, circuits, port, target.address) for port in way.ports]
    assert macs == [relay_mac(topology.host("h2").nics[0]), relay_mac(topology.host("h3").nics[0]), target.mac]
    every = [mac for host in topology.hosts for nic in host.nics for mac in (nic.mac, relay_mac(nic))]
    assert len(set(every)) == len(every)


def test_a_relay_that_is_down_is_avoided_or_named() -> None:
    topology, hosts = direct_connect(6, 2, RATE), hosts_of(6)
    pairs = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 0)]]  # a ring of duplex patches
    circuits = patch(topology, hosts, [tuple(duplex(layer).items()) for layer in pairs])
    plan = plan_relays(topology, circuits, hosts, down=["h3"])
    check(plan, [host for host in hosts if host != "h3"])
    assert not any("h3" in way.relays for way in plan.ways.values())
    with pytest.raises(RelayDown, match="h1 and h4 have no connection but through h3, which is down"):
        plan_relays(topology, circuits, hosts, down=["h3", "h6"])
    one_way = patch(topology, hosts, [ring_circuits(range(6), 1)])
    with pytest.raises(RelayDown, match="h1 and h3 have no connection but through h2, which is down"):
        plan_relays(topology, one_way, hosts, down=["h2"])
    with pytest.raises(Unreachable, match="no circuits lead from h1 to h2"):
        plan_relays(topology, {}, hosts)


def test_two_jobs_share_the_switches_and_no_port() -> None:
    topology = direct_connect(8, 2, RATE)
    odd, even = ["h1", "h3", "h5", "h7"], ["h2", "h4", "h6", "h8"]
    layers = find_topology(data_parallel(4, 1e6), 2).layers
    circuits = joined(patch(topology, odd, layers), patch(topology, even, layers))
    check_circuits(topology, circuits)
    for job in (odd, even):
        plan = plan_relays(topology, circuits, job)
        check(plan, job)
        assert all(set(way.relays) <= set(job) for way in plan.ways.values())
    with pytest.raises(TopologyError, match="is used twice"):
        joined(patch(topology, odd, layers), patch(topology, ["h1", "h2", "h4", "h6"], layers))


def test_the_next_job_is_set_up_on_the_other_bank() -> None:
    topology, hosts = direct_connect(4, 2, RATE, look_ahead=True), hosts_of(4)
    now = patch(topology, hosts, [ring_circuits(range(4), 1)] * 2)
    then = patch(topology, hosts, [ring_circuits(range(4), 3)] * 2, bank=1)
    assert now.keys().isdisjoint(then)
    for bank, stride in ((0, 1), (1, 3)):
        circuits = joined(now, then, flip(topology, hosts, bank))
        check_circuits(topology, circuits)
        plan = plan_relays(topology, circuits, hosts)
        assert plan.connections["h1", f"h{1 + stride}"][0].there.hops == 1
    with pytest.raises(ValueError, match="no look-ahead"):
        flip(direct_connect(4, 2, RATE), hosts, 0)


def test_impossible_patches_are_refused_in_a_sentence() -> None:
    topology, hosts = direct_connect(4, 2, RATE), hosts_of(4)
    with pytest.raises(TopologyError, match="a degree of 3 is impossible: host 'h1' has 2 NICs"):
        patch(topology, hosts, [()] * 3)
    with pytest.raises(TopologyError, match="optical port 2 of 'ocs1' is used twice"):
        patch(topology, hosts, [((0, 1), (2, 1))])
    with pytest.raises(TopologyError, match="more than the 4 hosts"):
        patch(topology, hosts, [((0, 4),)])


@pytest.mark.parametrize(("size", "strides"), [(12, [1, 5, 7, 11]), (6, [1, 5]), (2, [1, 1])])
def test_pairs_share_their_bytes_among_nics_for_the_least_load(size: int, strides: list[int]) -> None:
    topology, hosts = direct_connect(size, len(strides), RATE), hosts_of(size)
    layers = [ring_circuits(range(size), stride) for stride in strides]
    sent = dict.fromkeys(permutations(hosts, 2), 1.0)
    plan = plan_relays(topology, patch(topology, hosts, layers), hosts, sent=sent)
    load: Counter[PortRef] = Counter()
    for several in plan.connections.values():
        assert sum(connection.share for connection in several) == pytest.approx(1.0)
        assert len({connection.there.ends for connection in several}) == len(several)
        for connection in several:
            assert plan.ways[connection.back.ends] == connection.back
            assert connection.back.ends == (connection.remote, connection.local)
            for port in connection.there.ports:
                load[port] += connection.share
    least = least_load(np.ones((size, size)) - np.eye(size), [circuit for layer in layers for circuit in layer]).load
    assert max(load.values()) == pytest.approx(least)


def test_every_nic_reaches_the_nics_of_its_number_where_programs_connect_by_tcp() -> None:
    topology, hosts = direct_connect(4, 2, RATE), hosts_of(4)
    circuits = patch(topology, hosts, [ring_circuits(range(4), stride) for stride in (1, 3)])
    plan = plan_relays(topology, circuits, hosts, same_nic=True)
    assert {(a, b) for a, b in plan.ways if a.port == b.port} == {
        (PortRef(a, nic), PortRef(b, nic)) for a, b in permutations(hosts, 2) for nic in (1, 2)
    }
