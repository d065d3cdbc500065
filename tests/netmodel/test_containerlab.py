# SPDX-License-Identifier: Apache-2.0
"""Topologies as containerlab's YAML."""

import pytest
import yaml

from netmodel import TopologySpec, dump_topology, leaf_spine, parse_yaml
from netmodel.containerlab import write_containerlab


def test_every_link_and_address_of_a_leaf_spine_is_there() -> None:
    topology = leaf_spine(2, 2, 2, 100_000_000_000, 400_000_000_000)
    text = write_containerlab(topology)
    found = yaml.safe_load(text)
    nodes = found["topology"]["nodes"]
    assert found["name"] == topology.name
    assert {name for name, node in nodes.items() if node["kind"] == "linux"} == {host.name for host in topology.hosts}
    assert {name for name, node in nodes.items() if node == {"kind": "ovs-bridge"}} == {
        "leaf1",
        "leaf2",
        "spine1",
        "spine2",
    }
    assert nodes["h3"]["exec"] == [
        f"ip link set eth1 address {topology.host('h3').nics[0].mac} mtu 9000 up",
        "ip addr add 10.0.1.1/8 dev eth1",
    ]
    links = {tuple(link["endpoints"]) for link in found["topology"]["links"]}
    assert len(links) == len(topology.links) == 8
    assert ("h3:eth1", "leaf2:leaf2p1") in links
    assert ("leaf2:leaf2p4", "spine2:spine2p2") in links
    ends = [end for link in links for end in link]
    assert len(set(ends)) == len(ends)
    assert "for b in leaf1 leaf2 spine1 spine2; do ovs-vsctl add-br $b; done" in text
    assert "Links here have 100 Gbit/s, 400 Gbit/s" in text


def test_what_containerlab_has_no_kind_or_name_for_is_refused() -> None:
    with pytest.raises(ValueError, match="has optical switches, for which containerlab has no kind"):
        write_containerlab(leaf_spine(2, 2, 2, 10**9, optical_switches=1))
    topology = leaf_spine(1, 1, 1, 10**9)
    text = dump_topology(topology).replace("leaf1", "a-long-leaf-1")
    assert "a-long-leaf-1:a-long-leaf-1p1" in write_containerlab(parse_yaml(text, TopologySpec).topology)
    text = text.replace("a-long-leaf-1", "a-long-leaf-100")
    with pytest.raises(ValueError, match="a-long-leaf-100p1 is longer than the 15 characters of an interface"):
        write_containerlab(parse_yaml(text, TopologySpec).topology)
