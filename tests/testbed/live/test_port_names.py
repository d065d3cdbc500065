# SPDX-License-Identifier: Apache-2.0
"""Interfaces of switches, as vendors name them, and the ports of the topology that they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netmodel import PortRef, Topology, dump_topology, leaf_spine, load_topology
from testbed.live.port_names import Interface, mapped

FABRIC = leaf_spine(leaves=2, spines=4, hosts_per_leaf=4, host_rate_bps=10**9)
"""A leaf has ports 1 to 8: first its hosts, then spine1 to spine4."""


def ports(names: dict[str, str], topology: Topology = FABRIC) -> dict[str, int | str]:
    """The number of the port, or why there is none, of each interface of leaf1. By name: its LLDP neighbour."""
    interfaces = [Interface("leaf1", name, neighbour) for name, neighbour in names.items()]
    found = mapped(topology, interfaces)
    assert found.ports.keys() | found.unmapped.keys() == set(interfaces)
    assert all(port.node == "leaf1" for port in found.ports.values())
    return {**{each.name: port.port for each, port in found.ports.items()},
            **{each.name: why for each, why in found.unmapped.items()}}  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        "Ethernet1/{}/1",  # Arista with modules, Cisco NX-OS where a port is split
        "Ethernet{}/1",  # Arista without
        "Ethernet1/{}",  # Cisco NX-OS
        "HundredGigE0/0/0/{}",  # Cisco IOS XR
        "et-0/0/{}",  # Juniper
        "et-0/0/{}:0",
        "ethernet-1/{}",  # Nokia SR Linux
        "ethernet1/1/{}",  # Dell OS10
        "ethernet1/1/{}:1",
        "swp{}",  # Cumulus
        "swp{}s0",
        "s1-eth{}",  # Mininet
        "{}",
    ],
)
def test_names_of_vendors(form: str) -> None:
    assert ports({form.format(n): "" for n in range(1, 9)}) == {form.format(n): n for n in range(1, 9)}
    # So it is with further interfaces, of which none is a port of the topology.
    every = {form.format(n): "" for n in range(1, 33)}
    found = ports({**every, "Management1": "", "Vlan10": "", "ae1": "", "lo0": ""})
    assert {name for name, port in found.items() if isinstance(port, int)} == {form.format(n) for n in range(1, 9)}


@pytest.mark.parametrize("name", ["Ethernet1/5/1", "et-0/0/5:0", "swp5s0", "HundredGigE0/0/0/5", "Ethernet5"])
def test_one_interface_alone(name: str) -> None:
    assert ports({name: ""}) == {name: 5}


def test_what_names_do_not_tell_is_listed_with_the_reason() -> None:
    assert ports({"Ethernet1/5": ""}) == {"Ethernet1/5": "several numbers in its name may be the port's"}
    split = ports({f"Ethernet1/{port}/{part}": "" for port in range(1, 9) for part in (1, 2)})
    assert set(split.values()) == {f"2 interfaces would be port {port}" for port in range(1, 9)}
    assert ports({"swp9": "", "swp0": "", "Vlan1": "", "front": ""}) == {
        "swp9": "the topology has no link at such a port",
        "swp0": "the topology has no link at such a port",
        "front": "the topology has no link at such a port",
        "Vlan1": "it is no port with a cable",
    }


def test_a_neighbour_tells_the_port_where_one_link_leads_to_it() -> None:
    found = ports({"Ethernet13/1": "spine2.example.com", "Ethernet14/1": "h3", "Ethernet3/1": ""})
    assert found == {
        "Ethernet13/1": 6,
        "Ethernet14/1": 3,
        "Ethernet3/1": "several numbers in its name may be the port's",
    }
    doubled = leaf_spine(leaves=2, spines=1, hosts_per_leaf=1, host_rate_bps=10**9, parallel_links=2)
    assert ports({"swp2": "spine1", "swp3": "spine1"}, doubled) == {"swp2": 2, "swp3": 3}


def test_the_topology_may_name_the_interfaces(tmp_path: Path) -> None:
    """It is believed before anything else, also where a name or a neighbour says otherwise."""
    leaf1 = replace(FABRIC.switch("leaf1"), interfaces=((5, "Ethernet0"), (6, "Ethernet4"), (7, "swp8")))
    named = replace(FABRIC, switches=(leaf1, *FABRIC.switches[1:]))
    found = ports({"Ethernet0": "spine4", "Ethernet4": "", "swp8": "", "swp1": "", "swp7": ""}, named)
    assert found == {
        "Ethernet0": 5,
        "Ethernet4": 6,
        "swp8": 7,
        "swp1": 1,
        "swp7": "the topology has no link at such a port",
    }
    (tmp_path / "named.yaml").write_text(dump_topology(named))
    assert load_topology(tmp_path / "named.yaml") == named


def test_a_switch_has_the_name_of_the_topology_or_a_longer_one() -> None:
    names = ("leaf2", "leaf2:9339", "leaf2.example.com", "leaf2.example.com:9339")
    for name in names:
        assert mapped(FABRIC, [Interface(name, "swp5")]).ports == {Interface(name, "swp5"): PortRef("leaf2", 5)}
    assert set(mapped(FABRIC, [Interface("leaf22", "swp5")]).unmapped.values()) == {"its switch is not in the topology"}
