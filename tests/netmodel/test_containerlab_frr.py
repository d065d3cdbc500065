# SPDX-License-Identifier: Apache-2.0
"""Labs of FRR routers for containerlab. tests/integration/routed/test_exported_lab.py runs what they say."""

from __future__ import annotations

import pytest
import yaml

from netmodel import Topology, clos, in_planes, leaf_spine
from netmodel.containerlab_frr import write_router_lab

TWO_TIERS = leaf_spine(2, 2, 2, 10**9)


@pytest.mark.parametrize(
    "topology",
    [TWO_TIERS, clos(2, 2, 2, 2, 1, 10**9), in_planes(clos(2, 1, 2, 1, 1, 10**9, ipv6=True), 2)],
    ids=["two tiers", "three tiers", "two planes of three tiers, IPv6"],
)
def test_every_node_and_link_is_there_and_every_file_is_bound(topology: Topology) -> None:
    lab = write_router_lab(topology)
    found = yaml.safe_load(lab[f"{topology.name}.clab.yml"])
    nodes = found["topology"]["nodes"]
    assert set(nodes) == {node.name for node in (*topology.hosts, *topology.switches)}
    ends = [end for link in found["topology"]["links"] for end in link["endpoints"]]
    assert sorted(ends) == sorted(f"{port.node}:eth{port.port}" for port in topology.linked_ports())
    assert {link["mtu"] for link in found["topology"]["links"]} == {9000}
    bound = {bind.partition(":")[0] for node in nodes.values() for bind in node.get("binds", [])}
    assert bound == set(lab) - {f"{topology.name}.clab.yml"}
    assert {node["network-mode"] for node in nodes.values()} == {"none"}


def test_routers_have_addresses_routes_to_their_hosts_and_sessions() -> None:
    lab = write_router_lab(TWO_TIERS)
    lines = lab["leaf2.conf"].splitlines()
    for name, address in (("lo", "192.168.0.2/32"), ("eth1", "192.168.0.2/32"), ("eth3", "172.16.0.4/31")):
        assert lines[lines.index(f"interface {name}") + 1] == f" ip address {address}"
    assert "ip route 10.0.1.1/32 eth1" in lines
    assert " neighbor 172.16.0.5 remote-as 4200000003" in lines
    nodes = yaml.safe_load(lab[f"{TWO_TIERS.name}.clab.yml"])["topology"]["nodes"]
    seed = TWO_TIERS.switch("leaf2").hash_seed & 0xFFFFFFFF
    assert nodes["leaf2"]["sysctls"]["net.ipv4.fib_multipath_hash_seed"] == str(seed)
    assert "ip route add default via 192.168.0.2 dev eth1 onlink src 10.0.1.1 metric 100" in nodes["h3"]["exec"]


def test_unnumbered_links_have_no_addresses() -> None:
    lines = write_router_lab(TWO_TIERS, unnumbered=True)["spine1.conf"].splitlines()
    assert [line for line in lines if "address 1" in line] == [" ip address 192.168.0.3/32"]
    assert " neighbor eth1 interface peer-group fabric" in lines


def test_switches_that_are_no_routers_are_refused() -> None:
    with pytest.raises(ValueError, match="'ocs1' is an optical circuit switch, which is no router"):
        write_router_lab(leaf_spine(2, 2, 2, 10**9, optical_switches=1))
