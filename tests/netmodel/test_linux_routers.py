# SPDX-License-Identifier: Apache-2.0
"""What the kernels of routers and their hosts are set to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from netmodel import Host, Link, Nic, PortRef, Switch, Topology, leaf_spine
from netmodel.linux_routers import host_lines, router_sysctls
from netmodel.router_plan import RouterPlan

TOPOLOGY = leaf_spine(2, 2, 1, 20_000_000)


def test_a_host_sends_by_the_nic_that_owns_the_source_address() -> None:
    nics = tuple(Nic(f"nic{k}", ip_address(f"10.0.{k}.1"), f"02:00:00:00:00:0{k}") for k in (0, 1))
    topology = Topology(
        "two",
        (Host("h1", nics),),
        (Switch("leaf1", "leaf", 1, 1), Switch("leaf2", "leaf", 2, 2)),
        tuple(Link(PortRef("h1", k), PortRef(f"leaf{k}", 1), 1000) for k in (1, 2)),
        9000,
    )
    lines = host_lines(RouterPlan(topology), topology.hosts[0], lambda port: f"nic{port.port - 1}")
    assert "route add default via 192.168.0.1 dev nic0 onlink src 10.0.0.1 metric 100" in lines
    assert "route add default via 192.168.0.2 dev nic1 onlink src 10.0.1.1 table 101" in lines
    assert "rule add from 10.0.1.1 lookup 101" in lines


def test_a_router_hashes_with_the_low_half_of_its_seed() -> None:
    settings = router_sysctls(RouterPlan(TOPOLOGY), "spine2")
    seed = TOPOLOGY.switch("spine2").hash_seed & 0xFFFFFFFF
    assert settings["net.ipv4.fib_multipath_hash_seed"] == str(seed)
    assert settings["net.ipv6.conf.all.disable_ipv6"] == "1"
    unnumbered = router_sysctls(RouterPlan(TOPOLOGY, unnumbered=True), "spine2")
    assert unnumbered["net.ipv6.conf.all.disable_ipv6"] == "0"


def test_a_seed_that_linux_takes_for_none_is_refused() -> None:
    unseeded = Topology("one", TOPOLOGY.hosts[:0], (Switch("leaf1", "leaf", 1, 1 << 32),), (), 9000)
    with pytest.raises(ValueError, match="hash_seed of 'leaf1' are 0"):
        router_sysctls(RouterPlan(unseeded), "leaf1")
