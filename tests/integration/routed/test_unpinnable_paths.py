# SPDX-License-Identifier: Apache-2.0
"""`paralet probe` where paths cannot be pinned, or not all of them: real routers that spray, hash otherwise, or hide.

Each test sets up the routers of one fabric, and leaves them as they were.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emul import RoutedFabric
from emul.routed.requirements import lack
from netmodel import PortRef, leaf_spine
from netmodel.router_plan import RouterPlan

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]

ROOT = Path(__file__).parents[3]
TOPOLOGY = leaf_spine(2, 2, 1, 100_000_000, parallel_links=2)
HERE, THERE = (str(host.nics[0].address) for host in TOPOLOGY.hosts)
UPLINKS = [port for port in TOPOLOGY.linked_ports() if port.node == "leaf1" and port.port > 1]
INBOUND = "net.ipv4.icmp_errors_use_inbound_ifaddr"


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoutedFabric]:
    with RoutedFabric(TOPOLOGY, log_dir=tmp_path_factory.mktemp("unpinnable")) as running:
        set_routers(running, "net.ipv4.icmp_ratelimit=0")
        yield running


def in_router(fabric: RoutedFabric, router: str, *argv: str, text: str | None = None) -> None:
    enter = ["nsenter", "--target", str(fabric._nodes.pid(router)), "--net"]
    subprocess.run([*enter, *argv], input=text, text=True, check=True)


def set_routers(fabric: RoutedFabric, setting: str) -> None:
    for switch in TOPOLOGY.switches:
        in_router(fabric, switch.name, "sysctl", "-qw", setting)


@contextmanager
def setting(fabric: RoutedFabric, name: str, value: int, before: int) -> Iterator[None]:
    set_routers(fabric, f"{name}={value}")
    try:
        yield
    finally:
        set_routers(fabric, f"{name}={before}")


def next_hop(uplink: PortRef) -> str:
    return str(RouterPlan(TOPOLOGY).link_addresses[TOPOLOGY.peer(uplink)])


@contextmanager
def sprayed(fabric: RoutedFabric) -> Iterator[None]:
    """leaf1 sends every packet to the other host by any of its uplinks."""
    mark = f"ip daddr {THERE} meta mark set numgen random mod {len(UPLINKS)} offset 1"
    rules = f"table ip spray {{ chain before {{ type filter hook prerouting priority mangle; {mark}; }}; }}"
    for table, uplink in enumerate(UPLINKS, start=1):
        in_router(fabric, "leaf1", "ip", "route", "add", THERE, "via", next_hop(uplink), "table", str(1000 + table))
        in_router(fabric, "leaf1", "ip", "rule", "add", "fwmark", str(table), "lookup", str(1000 + table))
    in_router(fabric, "leaf1", "nft", "-f", "-", text=rules)
    try:
        yield
    finally:
        in_router(fabric, "leaf1", "nft", "delete", "table", "ip", "spray")
        for table in range(1, len(UPLINKS) + 1):
            in_router(fabric, "leaf1", "ip", "rule", "del", "fwmark", str(table))


@contextmanager
def weighted(fabric: RoutedFabric) -> Iterator[None]:
    """leaf1 has a better route to the other host, whose first next hop gets five of eight packets."""
    hops = [
        word
        for weight, uplink in zip((5, 1, 1, 1), UPLINKS, strict=True)
        for word in ("nexthop", "via", next_hop(uplink), "weight", str(weight))
    ]
    in_router(fabric, "leaf1", "ip", "route", "add", THERE, "metric", "1", *hops)
    try:
        yield
    finally:
        in_router(fabric, "leaf1", "ip", "route", "del", THERE, "metric", "1")


@contextmanager
def routed_elsewhere(fabric: RoutedFabric) -> Iterator[None]:
    """The first host has its routes to routers by another interface, and takes packets by these routes only."""
    links = RouterPlan(TOPOLOGY).link_addresses.values()
    in_router(fabric, "h1", "ip", "link", "add", "elsewhere", "up", "type", "veth", "peer", "name", "nowhere")
    in_router(fabric, "h1", "ip", "link", "set", "dev", "nowhere", "up")
    in_router(fabric, "h1", "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
    try:
        for address in links:
            in_router(fabric, "h1", "ip", "route", "add", str(address), "dev", "elsewhere")
        yield
    finally:
        in_router(fabric, "h1", "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0")
        in_router(fabric, "h1", "ip", "link", "del", "elsewhere")


def probed(fabric: RoutedFabric, *arguments: str, status: int = 0) -> dict[str, Any]:
    """What `paralet probe` finds from the first host to the last, with its sentences in one text as `said`.

    The kernel answers 1000 probes per second of all namespaces together (icmp_msgs_per_sec), and 50 at once.
    """
    rates = ["--router-rate", "0", "--rate", "400"]
    argv = [sys.executable, "-m", "testbed", "probe", THERE, "--json", *rates, *arguments]
    process = fabric.popen("h1", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors + out
    (pair,) = json.loads(out)["pairs"]
    assert isinstance(pair, dict)
    return {**pair, "said": "\n".join(pair["findings"])}


def test_nothing_hinders_on_the_fabric_as_it_is(fabric: RoutedFabric) -> None:
    pair = probed(fabric)
    assert len(pair["paths"]) == 8
    assert pair["pinnable"]
    assert pair["said"] == ""


def test_ports_that_are_sprayed_are_not_pinned(fabric: RoutedFabric) -> None:
    with sprayed(fabric):
        pair = probed(fabric, status=1)
    assert not pair["pinnable"]
    assert "spray or route adaptively" in pair["said"]
    assert "only static hashing can be pinned" in pair["said"]


def test_a_hash_without_ports_has_one_path_for_each_pair(fabric: RoutedFabric) -> None:
    with setting(fabric, "net.ipv4.fib_multipath_hash_policy", 0, 1):
        pair = probed(fabric)
    assert len(pair["paths"]) == 1
    assert "all 64 ports from" in pair["said"]
    assert "the switches' hash leaves out the ports of layer 4" in pair["said"]


def test_weighted_next_hops_are_uneven_and_still_pinned(fabric: RoutedFabric) -> None:
    with weighted(fabric):
        pair = probed(fabric, "--ports", "512")
    assert pair["pinnable"]
    assert "next hops have weights, or a path stands for several links" in pair["said"]


def test_routers_that_answer_by_one_address_hide_parallel_links(fabric: RoutedFabric) -> None:
    """Linux answers by a port of its choice then. What it says of the way down would make 16 paths of eight."""
    with setting(fabric, INBOUND, 0, 1):
        pair = probed(fabric)
    assert len(pair["paths"]) == len(UPLINKS)
    assert pair["told_apart_at"] == [2]
    assert "parallel links are not told apart" in pair["said"]
    assert f"{INBOUND}=1" in pair["said"]


def test_answers_that_the_host_itself_drops_are_told(fabric: RoutedFabric) -> None:
    with routed_elsewhere(fabric):
        pair = probed(fabric, "--ports", "4", status=1)
    assert not pair["pinnable"]
    assert [len(path["hops"]) for path in pair["paths"]] == [1]  # the leaf has the host's own network
    assert "packets meanwhile because its route to their source leaves by another interface" in pair["said"]
