# SPDX-License-Identifier: Apache-2.0
"""Routers' AS numbers, addresses, sessions, FRR configuration, and the routes to which BGP converges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmodel import Link, PortRef, Topology, clos, forwarding, leaf_spine
from netmodel.bgp_routes import bgp_routes
from netmodel.frr import BgpTimers, bgpd_configuration, zebra_configuration
from netmodel.router_plan import RouterPlan

RATE_BPS = 20_000_000


def interface(port: PortRef) -> str:
    return f"{port.node}-eth{port.port}"


def groups_of(routes_of: Topology | RouterPlan) -> dict[str, dict[object, tuple[int, ...]]]:
    routes = forwarding(routes_of) if isinstance(routes_of, Topology) else bgp_routes(routes_of)
    return {name: dict(groups) for name, groups in routes.groups.items()}


def test_neighbours_of_one_as_are_refused() -> None:
    topology = leaf_spine(2, 2, 1, RATE_BPS)
    joined = replace(topology, links=(*topology.links, Link(PortRef("spine1", 9), PortRef("spine2", 9), RATE_BPS)))
    with pytest.raises(ValueError, match="link spine1:9 to spine2:9 joins two routers of one tier"):
        RouterPlan(joined)


def test_bgpd_has_a_session_on_each_link_and_announces_the_router_and_its_hosts() -> None:
    plan = RouterPlan(leaf_spine(2, 2, 1, RATE_BPS))
    assert bgpd_configuration(plan, "leaf1", interface).splitlines() == [
        "hostname leaf1",
        "router bgp 4200000001",
        " bgp router-id 192.168.0.1",
        " no bgp ebgp-requires-policy",
        " no bgp default ipv4-unicast",
        " bgp bestpath as-path multipath-relax",
        " timers bgp 1 3",
        " neighbor fabric peer-group",
        " neighbor fabric advertisement-interval 0",
        " neighbor fabric timers connect 1",
        " neighbor 172.16.0.1 remote-as 4200000003",
        " neighbor 172.16.0.1 peer-group fabric",
        " neighbor 172.16.0.3 remote-as 4200000003",
        " neighbor 172.16.0.3 peer-group fabric",
        " address-family ipv4 unicast",
        "  network 192.168.0.1/32",
        "  network 10.0.0.1/32",
        "  neighbor fabric activate",
        "  maximum-paths 64",
        " exit-address-family",
        "exit",
    ]
    assert zebra_configuration(plan, "leaf1", interface) == "hostname leaf1\nno zebra nexthop kernel enable\n"


def test_unnumbered_sessions_name_interfaces_and_find_each_other_by_router_advertisements() -> None:
    plan = RouterPlan(leaf_spine(2, 2, 1, RATE_BPS), unnumbered=True)
    assert not plan.link_addresses
    bgpd = bgpd_configuration(plan, "spine1", interface, BgpTimers(3, 9, 5)).splitlines()
    assert " neighbor spine1-eth2 interface peer-group fabric" in bgpd
    assert " neighbor spine1-eth2 remote-as 4200000002" in bgpd
    assert {" timers bgp 3 9", " neighbor fabric timers connect 5"} <= set(bgpd)
    zebra = zebra_configuration(plan, "spine1", interface)
    assert zebra.count("interface ") == zebra.count(" no ipv6 nd suppress-ra") == 2


def test_ipv6_fabrics_have_ipv6_links_and_routers() -> None:
    plan = RouterPlan(leaf_spine(2, 2, 1, RATE_BPS, ipv6=True))
    bgpd = bgpd_configuration(plan, "leaf2", interface).splitlines()
    assert " bgp router-id 192.168.0.2" in bgpd
    assert " neighbor fd02::5 remote-as 4200000003" in bgpd
    assert bgpd[bgpd.index(" address-family ipv6 unicast") + 1 :][:2] == [
        "  network fd01::2/128",
        f"  network {plan.topology.host('h2').nics[0].address}/128",
    ]


def test_optical_switches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"switch 'ocs1' is an optical circuit switch, which is no router"):
        RouterPlan(leaf_spine(2, 2, 1, RATE_BPS, optical_switches=1))


@pytest.mark.parametrize(
    "topology",
    [
        leaf_spine(3, 2, 2, RATE_BPS, parallel_links=2),
        clos(2, 2, 2, 2, 1, RATE_BPS),
        leaf_spine(2, 3, 1, RATE_BPS, ipv6=True),
    ],
    ids=["parallel links", "three tiers", "IPv6"],
)
def test_bgp_converges_to_the_shortest_paths_while_all_links_live(topology: Topology) -> None:
    assert groups_of(RouterPlan(topology)) == groups_of(topology)


def test_bgp_has_no_path_down_and_up_again() -> None:
    """The shortest path of spine1 to leaf1 would be by leaf2 and spine2, which refuse each other's AS."""
    topology = leaf_spine(2, 2, 1, RATE_BPS)
    dead = frozenset({topology.link_at(PortRef("leaf1", 2))})
    h1, h2 = (host.nics[0].address for host in topology.hosts)
    routes = bgp_routes(RouterPlan(topology), dead).groups
    assert h1 in forwarding(topology, dead).groups["spine1"]
    assert h1 not in routes["spine1"]
    assert routes["leaf1"][h2] == (3,)
    assert routes["leaf2"][h1] == (3,)
    own = frozenset({topology.link_at(PortRef("h1", 1))})
    assert all(h1 not in groups for groups in bgp_routes(RouterPlan(topology), own).groups.values())


def test_routers_send_around_one_that_is_drained_where_they_can() -> None:
    topology = clos(2, 2, 2, 2, 1, RATE_BPS)
    plan = RouterPlan(topology)
    far, near = (topology.host(name).nics[0].address for name in ("h3", "h1"))
    routes = bgp_routes(plan, drained={"agg1"}).groups
    assert routes["leaf1"][far] == (3,)  # by agg2 only
    assert routes["leaf3"][near] == (3,)  # agg3 reaches that pod through agg1 only
    assert routes["agg3"][near] == (3, 4)
    assert routes["core1"][near] == (1,)
    assert routes["agg1"] == bgp_routes(plan).groups["agg1"]
