# SPDX-License-Identifier: Apache-2.0
"""Direct-connect fabrics and the circuits of their optical switches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import (
    PortRef,
    SpecError,
    Topology,
    TopologyError,
    TopologySpec,
    check_circuits,
    direct_connect,
    dump_topology,
    duplex,
    far_end,
    joined,
    leaf_spine,
    panel_of,
    parse_yaml,
)

RATE = 10_000_000


def read(text: str) -> Topology:
    return parse_yaml(text, TopologySpec, file="spec.yaml").topology


@given(st.integers(2, 12), st.data(), st.booleans())
def test_every_nic_is_on_the_switch_of_its_number(hosts: int, data: st.DataObject, look_ahead: bool) -> None:
    degree = data.draw(st.integers(1, hosts + 3))
    topology = direct_connect(hosts, degree, RATE, look_ahead=look_ahead)
    assert read(dump_topology(topology)) == topology
    assert {switch.role for switch in topology.switches} == {"ocs"}
    banks = (0, 1) if look_ahead else (0,)
    seen = set()
    for number, host in enumerate(topology.hosts, start=1):
        assert len(host.nics) == degree
        for nic in range(degree):
            for bank in banks:
                panel = panel_of(topology, host.name, nic, bank)
                assert panel == PortRef(f"ocs{bank * degree + nic + 1}", number)
                seen.add(panel)
    assert len(seen) == hosts * degree * len(banks)


def test_yaml_is_loaded_and_its_errors_are_located() -> None:
    text = "direct_connect: {hosts: 8, degree: 2, rate: 10 Mbit/s}"
    assert read(text) == direct_connect(8, 2, RATE)
    unequal = read(text.replace("10 Mbit/s", "[10 Mbit/s, 20 Mbit/s]"))
    assert [unequal.link_at(PortRef("h3", port)).rate_bps for port in (1, 2)] == [RATE, 2 * RATE]
    for bad, sentence in (
        (
            text.replace("degree: 2", "degree: 256"),
            "1: direct_connect.degree: degree is 256, but must lie in 1..255",
        ),
        (text.replace("10 Mbit/s", "[10 Mbit/s]"), "1: direct_connect.rate: there are 1 rates for 2 NICs"),
        (text.replace("hosts: 8", "hosts: 1"), "1: direct_connect.hosts: hosts is 1, but must lie in 2.."),
    ):
        with pytest.raises(SpecError) as refusal:
            read(bad)
        assert sentence in str(refusal.value)


def test_light_follows_circuits_in_one_direction() -> None:
    topology = direct_connect(4, 2, RATE)
    circuits = {"ocs1": {1: 2, 2: 3}, "ocs2": duplex([(1, 4)])}
    check_circuits(topology, circuits)
    assert far_end(topology, circuits, PortRef("h1", 1)) == PortRef("h2", 1)
    assert far_end(topology, circuits, PortRef("h2", 1)) == PortRef("h3", 1)
    assert far_end(topology, circuits, PortRef("h3", 1)) is None
    assert far_end(topology, circuits, PortRef("h1", 2)) == PortRef("h4", 2)
    assert far_end(topology, circuits, PortRef("h4", 2)) == PortRef("h1", 2)


@pytest.mark.parametrize(
    ("circuits", "sentence"),
    [
        ({"ocs1": {1: 2, 3: 2}}, "optical port 2 of 'ocs1' is used twice: light of ports 1 and 3"),
        ({"ocs1": {1: 9}}, "uses port 9, in which there is no link"),
        ({"ocs1": {1: 1}}, "joins port 1 to itself"),
        ({"ocs7": {1: 2}}, "no switch 'ocs7'"),
    ],
)
def test_impossible_circuits_are_refused(circuits: dict[str, dict[int, int]], sentence: str) -> None:
    with pytest.raises(TopologyError, match=sentence):
        check_circuits(direct_connect(4, 2, RATE), circuits)


def test_only_optical_switches_take_circuits() -> None:
    with pytest.raises(TopologyError, match="'leaf1', which is a leaf, not an optical circuit switch"):
        check_circuits(leaf_spine(2, 2, 2, RATE), {"leaf1": {1: 2}})


def test_two_jobs_share_switches_but_no_port() -> None:
    first, second = {"ocs1": duplex([(1, 2)])}, {"ocs1": duplex([(3, 4)]), "ocs2": {1: 2}}
    assert joined(first, second) == {"ocs1": {1: 2, 2: 1, 3: 4, 4: 3}, "ocs2": {1: 2}}
    with pytest.raises(TopologyError, match="optical port 2 of 'ocs1' is used twice"):
        joined(first, {"ocs1": {3: 2}})


def test_fabrics_without_look_ahead_have_one_bank() -> None:
    with pytest.raises(ValueError, match="one bank"):
        panel_of(direct_connect(4, 2, RATE), "h1", 0, 1)
    with pytest.raises(ValueError, match="no bank 2"):
        panel_of(direct_connect(4, 2, RATE, look_ahead=True), "h1", 0, 2)
