# SPDX-License-Identifier: Apache-2.0
"""Ways around a dead fibre, and circuits of another NIC in its place."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import Circuits, PortRef, Topology, check_circuits, direct_connect, joined
from sdn.topoopt import select_permutations, totient_perms
from sdn.topoopt.healing import around, arrivals, swapped
from sdn.topoopt.patching import flip, patch
from sdn.topoopt.permutations import ring_circuits
from sdn.topoopt.relays import Way, plan_relays

RATE = 10_000_000


def fabric(size: int, strides: tuple[int, ...], *, look_ahead: bool = False) -> tuple[Topology, list[str], Circuits]:
    topology, hosts = (
        direct_connect(size, len(strides), RATE, look_ahead=look_ahead),
        [f"h{i + 1}" for i in range(size)],
    )
    return topology, hosts, patch(topology, hosts, [ring_circuits(range(size), stride) for stride in strides])


def test_a_ring_goes_on_over_the_other_nic_of_its_hosts() -> None:
    """Rings +1 and +3 of eight hosts; NIC 0 of h3 is cut off. Three circuits +3 lead one host further."""
    topology, hosts, circuits = fabric(8, (1, 3))
    ways = plan_relays(topology, circuits, hosts).ways
    dead = [topology.link_at(PortRef("h3", 1))]
    healed = around(ways, arrivals(topology, circuits, dead))
    assert healed.keys() == ways.keys()
    into = healed[PortRef("h2", 1), PortRef("h3", 1)]
    assert (into.relays, into.arrival) == (("h5", "h8"), PortRef("h3", 2))
    assert healed[PortRef("h3", 1), PortRef("h4", 1)].ports[0] == PortRef("h3", 2)
    assert healed[PortRef("h4", 1), PortRef("h5", 1)] is ways[PortRef("h4", 1), PortRef("h5", 1)]
    assert around(healed, arrivals(topology, circuits)).keys() == ways.keys()


def test_a_way_takes_circuits_that_carry_little() -> None:
    """Rings +1, +3 and +5. Where +3 carries as much as the broken hop, five idle circuits +5 are taken."""
    topology, hosts, circuits = fabric(8, (1, 3, 5))
    ways = plan_relays(topology, circuits, hosts).ways
    far = arrivals(topology, circuits, [topology.link_at(PortRef("h3", 1))])
    hop = (PortRef("h2", 1), PortRef("h3", 1))
    assert around(ways, far, {hop: 1e6})[hop].hops == 3
    busy = {(port, arrival): 1e6 for port, arrival in far.items() if port.port < 3}
    assert [port.port for port in around(ways, far, {hop: 1e6, **busy})[hop].ports] == [3] * 5
    loads = {PortRef(host, 3): 1.0 for host in hosts}
    assert swapped(topology, circuits, PortRef("h3", 1))["ocs2"] == circuits["ocs2"]
    assert swapped(topology, circuits, PortRef("h3", 1), loads=loads)["ocs3"] == circuits["ocs3"]


def test_a_host_without_another_nic_is_left_out() -> None:
    topology, hosts, circuits = fabric(4, (1,))
    ways = plan_relays(topology, circuits, hosts).ways
    healed = around(ways, arrivals(topology, circuits, [topology.link_at(PortRef("h3", 1))]))
    assert {(near.node, end.node) for near, end in healed} == {("h4", "h1"), ("h4", "h2"), ("h1", "h2")}
    with pytest.raises(ValueError, match="h3 has no other NIC that could take the place of NIC 1"):
        swapped(topology, circuits, PortRef("h3", 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.data())
def test_all_hosts_reach_each_other_over_live_circuits(size: int, data: st.DataObject) -> None:
    degree = data.draw(st.integers(2, 3))
    chosen = select_permutations(size, degree, totient_perms(size))
    strides = tuple(chosen[k % len(chosen)] for k in range(degree))
    topology, hosts, circuits = fabric(size, strides)
    nic = PortRef(data.draw(st.sampled_from(hosts)), data.draw(st.integers(1, degree)))
    dead = {topology.link_at(nic)}
    ways = plan_relays(topology, circuits, hosts).ways
    then = swapped(topology, circuits, nic, dead)
    check_circuits(topology, then)
    for now in (circuits, then):
        far = arrivals(topology, now, dead)
        healed = around(ways, far)
        assert {(near.node, end.node) for near, end in healed} >= {*permutations(hosts, 2)}
        for (near, end), way in healed.items():
            assert (way.ports[0].node, way.arrival.node) == (near.node, end.node)
            after = (*(port.node for port in way.ports[1:]), way.arrival.node)
            assert tuple(far[port].node for port in way.ports) == after
            assert nic not in (*way.ports, way.arrival)


@pytest.mark.parametrize("look_ahead", [False, True])
def test_a_swap_joins_the_host_with_its_neighbours_again(look_ahead: bool) -> None:
    topology, hosts, circuits = fabric(8, (1, 3), look_ahead=look_ahead)
    if look_ahead:
        circuits = joined(circuits, flip(topology, hosts, 0))
    panel = swapped(topology, circuits, PortRef("h3", 1))["ocs2"]
    # h2 -> h3 -> h4 on the second panel; what led to h3 and h4 leads to where h2 and h3 led.
    assert panel == {1: 6, 2: 3, 3: 4, 4: 7, 5: 8, 6: 1, 7: 2, 8: 5}
    if not look_ahead:
        far = arrivals(topology, {**circuits, "ocs2": panel}, [topology.link_at(PortRef("h3", 1))])
        way = Way((PortRef("h2", 1),), PortRef("h3", 1))
        assert around({way.ends: way}, far)[way.ends] == Way((PortRef("h2", 2),), PortRef("h3", 2))
